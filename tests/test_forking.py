"""A forked process differs from one of `subprocess.Popen` only in how fast it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forking import AsyncForked, Forked

Begin = Callable[..., "subprocess.Popen[str]"]
GREET = """
import os, sys
sys.stderr.write("errors")
print(os.environ["GREETING"], os.getcwd(), *sys.argv, sys.stdin.read(), end="")
"""
WAIT = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may start without it
print("ready", flush=True)
time.sleep(60)
"""


def launched(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def forked(module: str, *arguments: str) -> subprocess.Popen[str]:
    return Forked(module, arguments, os.environ)


@pytest.fixture(params=[launched, forked])
def begin(request: pytest.FixtureRequest) -> Iterator[Begin]:
    started: list[subprocess.Popen[str]] = []

    def begin_(*arguments: str) -> subprocess.Popen[str]:
        started.append(request.param(*arguments))
        return started[-1]

    yield begin_
    for process in started:
        process.kill()
        process.communicate()


def test_it_has_its_own_pipes_environment_and_directory(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GREETING", "hello")
    (tmp_path / "greet.py").write_text(GREET)
    process = begin("greet", "a", "b")
    said = ["hello", str(tmp_path), str(tmp_path / "greet.py"), "a", "b", "input"]
    assert process.communicate("input", 60) == (" ".join(said), "errors")
    assert process.returncode == 0


def test_its_failure_is_reported(begin: Begin) -> None:
    process = begin("json.tool")
    out, err = process.communicate("{", 60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("Expecting property name")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(
    begin: Begin, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waiting.py").write_text(WAIT)
    process = begin("waiting")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(60) == process.poll() == -number
    process.send_signal(number)
    _, err = process.communicate()
    assert ("KeyboardInterrupt" in err) == (number is signal.SIGINT)


async def test_on_an_event_loop_its_output_and_exit_are_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "greet.py").write_text(GREET)
    process = await AsyncForked.start("greet", environment={"GREETING": "hello"})
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.returncode is None
    process.stdin.write(b"input")
    process.stdin.close()
    assert await process.stdout.read() == f"hello {tmp_path} {tmp_path}/greet.py input".encode()
    assert await process.stderr.read() == b"errors"
    assert await process.wait() == 0
    process.kill()
    assert process.returncode == 0


async def test_on_an_event_loop_a_killed_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waiting.py").write_text(WAIT)
    process = await AsyncForked.start("waiting", environment={}, stderr=False)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.kill()
    assert await process.wait() == -signal.SIGKILL
