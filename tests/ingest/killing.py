"""Servers in their own processes, which can be killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any, Self

import msgspec

from aqueduct.security import ServerTLS
from tests.forking import AsyncForked
from tests.ingest.crashing import Start

TIMEOUT = 60.0


class Script:
    """A process of these tests, which reports events as lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = (module, *arguments)
        self.process: AsyncForked
        self.logged: list[str] = []

    async def __aenter__(self) -> Self:
        self.process = await AsyncForked.start(*self._command, environment=os.environ, stderr=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()

    async def event(self, *names: str) -> dict[str, Any]:
        """Wait for the next event with one of these names; keep logged lines."""
        assert self.process.stdout is not None
        while True:
            async with asyncio.timeout(TIMEOUT):
                line = await self.process.stdout.readline()
            assert line, "the process ended"
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "log":
                self.logged.append(event["text"])
                assert event["level"] == "WARNING", event
            assert event["event"] != "trouble", event
            if event["event"] in names:
                return event


class Servers(Script):
    """Servers on one directory and one port, one after the other."""

    def __init__(self, directory: Path, tls: ServerTLS) -> None:
        super().__init__("tests.ingest.crashing")
        self.data = directory / "data"
        self._certificate, self._key = directory / "certificate", directory / "key"
        self._certificate.write_bytes(tls.certificate)
        self._key.write_bytes(tls.key)
        self.address = "127.0.0.1:0"
        self.pid = 0

    async def start(self, **options: Any) -> bool:
        """Start the next server; return False if it died before it listened."""
        files = str(self.data), str(self._certificate), str(self._key)
        line = msgspec.json.encode(Start(self.address, *files, **options))
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.pid = (await self.event("began"))["pid"]
        event = await self.event("ready", "ended")
        if event["event"] == "ready":
            self.address = event["address"]
            return True
        self.pid = 0
        return False

    async def ended(self) -> None:
        assert (await self.event("ended"))["killed"]
        self.pid = 0

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        await self.ended()

    async def __aexit__(self, *error: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            # Until then, its threads may write to files that tests read afterwards.
            with contextlib.suppress(AssertionError, TimeoutError):
                await self.event("ended")
        await super().__aexit__(*error)
