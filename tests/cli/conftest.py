"""Commands as real processes, with their own development certificates."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SECONDS = 60

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def dev_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(autouse=True)
def own_certificates(dev_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(dev_directory))


@pytest.fixture
def run(own_certificates: None) -> Run:
    """Run a command to its end."""

    def run_(*arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "aqueduct", *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )

    return run_


@pytest.fixture
def start(own_certificates: None) -> Iterator[Start]:
    """Start a command that runs until it is stopped."""
    started: list[subprocess.Popen[str]] = []

    def start_(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "aqueduct", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

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
