"""Processes of the tests that kill: started, listened to, found and ended."""

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

ROOT = Path(__file__).resolve().parents[3]
_MARK = "TESTS_FAMILY"
PATIENCE = 120.0
"""Seconds; an idle machine needs a tenth of that for the slowest step."""


class Script:
    """A process of these tests, which says what happens in lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self.mark = mark()
        self._process: asyncio.subprocess.Process
        self._listening: asyncio.Task[None]
        self._news: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.last: dict[str, dict[str, Any]] = {}
        """Of each kind of event the latest."""
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
                "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)]),
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
        """Wait for its end, which somebody else sees to."""
        await self._process.wait()

    async def _complain(self) -> None:
        """Keep the end of what it has to complain of."""
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
        """The next event with one of these names."""
        async with asyncio.timeout(PATIENCE):
            while event := await self._news.get():
                if event["event"] in names:
                    return event
        raise AssertionError(f"the process ended: {self._errors.decode(errors='replace')}")

    def ask(self) -> None:
        """Write the line that it waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid


def kill(process: int) -> None:
    """End a process at once, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def command(process: int) -> str:
    """What a process runs; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def parent(process: int) -> int:
    """Who has started a process, or took it over; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def mark() -> dict[str, str]:
    """For the environment of a process: it and all that it starts can be found by this."""
    return {_MARK: uuid.uuid4().hex}


def family(marked: Mapping[str, str]) -> list[int]:
    """All processes that have a mark, also those whose parents have ended."""
    wanted = f"{_MARK}={marked[_MARK]}".encode()
    found = []
    for each in os.listdir("/proc"):
        if each.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{each}/environ").read_bytes():
                    found.append(int(each))
    return sorted(found)


async def until(condition: Callable[[], bool], what: str, pause: float = 0.01) -> None:
    """Wait until something is so."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 -- what others do on disk sets no event
                await asyncio.sleep(pause)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None
