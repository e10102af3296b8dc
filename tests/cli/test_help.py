"""``--help`` describes every command and option, with an example."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run

GROUPS = ["ipc", "cert", "trace"]
COMMANDS = [
    "echo",
    "ping",
    "send",
    "listen",
    "ipc send",
    "ipc listen",
    "cert make",
    "cert show",
    "trace print",
    "trace tree",
    "trace html",
    "ingest",
    "produce",
    "topics",
    "pipeline",
    "bench",
    "doctor",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_an_example(run: Run, command: str) -> None:
    ran = run(*command.split(), "--help")
    assert ran.returncode == 0, ran.stderr
    assert f"aqueduct {command}" in ran.stdout.partition("Example")[2]
    assert "<attribute" not in ran.stdout, "a default is a descriptor of a compiled class"


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_names_its_commands(run: Run, group: str) -> None:
    ran = run(group, "--help")
    assert ran.returncode == 0, ran.stderr
    for command in COMMANDS:
        if command.startswith(f"{group} "):
            assert re.search(rf"\b{command.split()[1]}\b", ran.stdout)
    assert f"aqueduct {group}" in ran.stdout.partition("Example")[2]


def test_the_help_names_all_commands(run: Run) -> None:
    ran = run("--help")
    assert ran.returncode == 0, ran.stderr
    for command in COMMANDS:
        assert re.search(rf"^\W*{command.split()[0]}\b", ran.stdout, re.M), command
    assert "Example: aqueduct echo" in ran.stdout
