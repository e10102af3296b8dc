from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aqueduct.cli.trace import app


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_print_shows_rows_as_lines(recorded: Path) -> None:
    lines = run("print", recorded, "--limit", "5").splitlines()
    assert len(lines) == 5
    assert "connection opened" in lines[0]


def test_print_can_write_json(recorded: Path) -> None:
    rows = [json.loads(line) for line in run("print", recorded, "--json").splitlines()]
    assert {"connection_opened", "message_delivered"} <= {row["kind"] for row in rows}


def test_tree_draws_channels_and_explains_the_marks(recorded: Path) -> None:
    text = run("tree", recorded)
    assert "entrypoint" in text
    assert "lost with a channel above it" in text


def test_tree_can_write_json(recorded: Path) -> None:
    channels = [json.loads(line) for line in run("tree", recorded, "--json").splitlines()]
    assert {"entrypoint", "client#6>"} <= {one["channel"] for one in channels}
    assert sum(one["fates"].get("lost", 0) for one in channels) == 1


def test_html_writes_one_page(recorded: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "wrote" in run("html", recorded, "-o", page)
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("command", ["print", "tree", "html"])
def test_an_unreadable_trace_is_an_error_in_one_line(command: str, tmp_path: Path) -> None:
    assert run(command, tmp_path / "missing", code=1)
    assert run(command, tmp_path, "--connection", "ffff", code=1)
