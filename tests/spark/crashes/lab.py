"""Processes of the crash tests: started, observed, found and killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests import java

ROOT = Path(__file__).resolve().parents[3]
_MARK = "TESTS_FAMILY"
TIMEOUT = 300.0
"""Seconds; an idle machine needs a tenth of that for the slowest step."""


class Script:
    """A process that reports events as lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self.mark = mark()
        self._process: asyncio.subprocess.Process
        self._listening: asyncio.Task[None]
        self._news: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.last: dict[str, dict[str, Any]] = {}
        """The latest event of each kind."""
        self.said: list[dict[str, Any]] = []
        """All events so far."""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                **self.mark,
                "PYTHONPATH": os.pathsep.join([str(java.WORKERS), *sys.path, str(ROOT)]),
            },
            cwd=ROOT,
        )
        self._errors = b""
        self._complaining = asyncio.create_task(self._complain())
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in family(self.mark):
            kill(each)
        await self.ended()
        await asyncio.gather(self._listening, self._complaining)

    async def ended(self) -> None:
        """Wait for its exit."""
        await self._process.wait()

    async def _complain(self) -> None:
        """Keep the end of standard error."""
        assert self._process.stderr is not None
        while text := await self._process.stderr.read(65_536):
            self._errors = (self._errors + text)[-4_000:]

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event: dict[str, Any] = json.loads(line)
            self.last[event["event"]] = event
            self.said.append(event)
            self._news.put_nowait(event)
        self._news.put_nowait(None)

    async def event(self, *names: str) -> dict[str, Any]:
        """Wait for the next event with one of these names."""
        async with asyncio.timeout(TIMEOUT):
            while event := await self._news.get():
                if event["event"] in names:
                    return event
        raise AssertionError(f"the process ended: {self._errors.decode(errors='replace')}")

    def ask(self) -> None:
        """Write the line that the process waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid


def kill(process: int) -> None:
    """Kill a process, unless it has exited."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def command(process: int) -> str:
    """Return the command line of a process; empty if it has exited."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def parent(process: int) -> int:
    """Return the parent of a process; 0 if the process has exited."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def mark() -> dict[str, str]:
    """Return environment variables that mark a process and its descendants."""
    return {_MARK: uuid.uuid4().hex}


def family(marked: Mapping[str, str]) -> list[int]:
    """Return all marked processes, also orphans."""
    wanted = f"{_MARK}={marked[_MARK]}".encode()
    found = []
    for each in os.listdir("/proc"):
        if each.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{each}/environ").read_bytes():
                    found.append(int(each))
    return sorted(found)


async def until(condition: Callable[[], bool], what: str, pause: float = 0.01) -> None:
    """Wait until a condition holds."""
    try:
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110 -- what others do on disk sets no event
                await asyncio.sleep(pause)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None
