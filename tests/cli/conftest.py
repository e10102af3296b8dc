"""Commands as real processes, with their own development certificates.

Most commands are forked, because Python needs longer to import the package than they need to run.
Each command is also started as users do: ``fresh=True``.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.forking import Forked

SECONDS = 60

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def dev_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(autouse=True)
def own_certificates(dev_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(dev_directory))


def launch(
    arguments: Sequence[str], environment: Mapping[str, str], *, stdin: bool
) -> "subprocess.Popen[str]":
    """Start a command in a new interpreter."""
    return subprocess.Popen(
        [sys.executable, "-m", "aqueduct", *arguments],
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def fork(
    arguments: Sequence[str], environment: Mapping[str, str], *, stdin: bool
) -> "subprocess.Popen[str]":
    """Start a command in a process that has imported the package already."""
    return Forked("aqueduct", arguments, environment, stdin=stdin)


@pytest.fixture
def run(own_certificates: None) -> Run:
    """Run a command to its end."""

    def run_(
        *arguments: str, stdin: str | None = None, fresh: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "COLUMNS": "200"}
        begin = launch if fresh else fork
        process = begin(arguments, environment, stdin=stdin is not None)
        try:
            out, err = process.communicate(stdin, SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)

    return run_


@pytest.fixture
def start(own_certificates: None) -> Iterator[Start]:
    """Start a command that runs until it is stopped."""
    started: list[subprocess.Popen[str]] = []

    def start_(*arguments: str, fresh: bool = False) -> "subprocess.Popen[str]":
        begin = launch if fresh else fork
        started.append(begin(arguments, os.environ, stdin=True))
        return started[-1]

    yield start_
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def echo(start: Start) -> str:
    """The address of an echo server in a process of its own."""
    process = start("echo", "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    return process.stdout.readline().strip()


def interrupt(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Press Ctrl-C, and wait for what comes of it."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err
