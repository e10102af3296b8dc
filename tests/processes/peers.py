"""Starts processes for tests, exchanges lines of JSON with them, and checks their errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import aqueduct
from tests.forking import AsyncForked

TIMEOUT = 60.0
"""Seconds within which a process answers on a busy machine."""
HANGS = 240.0
"""Time limit of a test, in seconds."""
LINE = 64 * 1024 * 1024
"""The longest line that a process prints."""
SCHEME = ""
"""The scheme of the addresses on which `lab` listens; a fixture sets it for each test."""
TCP = "aqueduct+tcp://"
BOTH = ("aqueduct+quic://", TCP)
"""The schemes of a module whose tests run over each transport."""

P = ParamSpec("P")
T = TypeVar("T")


def bounded(test: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Fail a test that hangs."""

    @functools.wraps(test)
    async def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        async with asyncio.timeout(HANGS):
            return await test(*args, **kwargs)

    return limited


class Peer:
    """Another process. On exit it is killed, and output on its standard error fails the test."""

    def __init__(self, module: str, *arguments: str, calm: bool = True) -> None:
        self._command = (module, *arguments)
        self._calm = calm
        self.events: list[dict[str, Any]] = []
        self.process: AsyncForked | None = None
        self.address = ""
        self.errors = ""
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        environment = {**os.environ, "PYTHONWARNINGS": "default"}
        self.process = await AsyncForked.start(*self._command, environment=environment, limit=LINE)
        self._reading = asyncio.create_task(self._read_errors())
        try:
            self.address = await self._wait_ready()
        except BaseException:
            await self.kill()
            raise
        return self

    async def _wait_ready(self) -> str:
        ready = await self.wait_for("ready")
        return str(ready["address"])

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()
        if self._calm and kind is None:
            assert "Traceback" not in self.errors, self.errors
            assert "never awaited" not in self.errors, self.errors
            trouble = [event for event in self.events if event.get("event") == "trouble"]
            assert trouble == []

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        """Kill it, and collect its output."""
        assert self.process is not None
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self._drain_output()
        await self.process.wait()
        if self._reading is not None:
            await self._reading

    async def stop(self) -> int:
        """Terminate it, and wait for its exit."""
        self.signal(signal.SIGTERM)
        await self._drain_output()
        assert self.process is not None
        return await self.process.wait()

    async def next_event(self) -> dict[str, Any]:
        """Return the next line that it prints."""
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            line = await self.process.stdout.readline()
        if not line:
            if self._reading is not None:
                await self._reading
            raise AssertionError(f"the process ended: {self.errors}")
        event: dict[str, Any] = json.loads(line)
        self.events.append(event)
        return event

    async def wait_for(self, name: str) -> dict[str, Any]:
        """Return the next event of a name; others are kept in ``events``."""
        while True:
            event = await self.next_event()
            if event["event"] == name:
                return event

    async def _drain_output(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            with contextlib.suppress(ValueError):
                self.events.append(json.loads(line))

    async def _read_errors(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        self.errors = (await self.process.stderr.read()).decode()


def lab(*arguments: str, calm: bool = True) -> Peer:
    """Return a server process, see ``tests/processes/lab.py``."""
    if "--listen" not in arguments:
        arguments = ("--listen", f"{SCHEME}127.0.0.1:0", *arguments)
    return Peer("tests.processes.lab", *arguments, calm=calm)


def connect(address: str, kind: Any, **options: Any) -> Any:
    """Connect with the development certificate."""
    options.setdefault("timeout", TIMEOUT)
    return aqueduct.connect(address, kind, trust=aqueduct.dev_trust(), **options)


async def play(scenario: Callable[[Peer, int], Awaitable[None]], *arguments: str) -> None:
    """Play a scenario with a server of its own and a seed."""
    async with lab(*arguments) as server:
        await scenario(server, 0)


async def eventually(check: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Wait until a condition holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT
    while loop.time() < deadline:
        found = check()
        if not isinstance(found, bool):
            found = await found
        if found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"timed out: {what}")


async def send_until_error(sender: Any, payload: bytes, pause: float = 0.0) -> None:
    """Send until it raises."""
    while True:
        await sender.send(payload)
        if pause:
            await asyncio.sleep(pause)


async def receive_until_error(receiver: Any, into: list[Any] | None = None) -> None:
    """Receive until it raises, also `EndOfChannel`."""
    while True:
        message = await receiver.receive()
        if into is not None:
            into.append(message)
