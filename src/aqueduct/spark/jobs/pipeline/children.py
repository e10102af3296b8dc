"""The processes of the pipeline, as it sees them: started, told what to do, and ended."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from aqueduct.spark.jobs.pipeline.faults import PipelineError
from aqueduct.spark.jobs.pipeline.messages import Failed, Listening, Marked, Order, Report, Told

R = TypeVar("R", Listening, Marked)

_report: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
_LINES = 20
"""Of what a process wrote on standard error, for when it fails."""


class Child:
    """A process that runs a module, and talks in lines of JSON."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._noise: deque[str] = deque(maxlen=_LINES)
        self._reason = ""
        self._closing = False
        self.told = Told()
        """The last that it told of how it goes."""
        self.done: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why it ended, if nobody asked it to."""

    async def start(self, plan: Any) -> None:
        """Start it with what it is to do."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"{__package__}.{self._module}"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            # Ctrl-C in a terminal is for the pipeline, which then has its processes finish.
            start_new_session=True,
        )
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._collect())]
        self._write(plan)

    def order(self, order: Order) -> None:
        """Tell it to do something."""
        self._write(order)

    async def expect(self, kind: type[R]) -> R:
        """The next answer, which has to be of this kind."""
        report = await self._reports.get()
        if not isinstance(report, kind):
            raise PipelineError(f"the {self.name} answered {report!r}")
        return report

    async def close(self, order: Order, patience: float) -> None:
        """Tell it to end, and wait for that."""
        self._closing = True
        if self._process is None:
            return
        # One that has ended already hears nothing; the event loops say so in different ways.
        with suppress(OSError, RuntimeError):
            self._write(order)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), patience)
        await self.kill()

    async def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._closing = True
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        for task in self._tasks:
            task.cancel()

    def _write(self, what: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            report = _report.decode(line)
            if isinstance(report, Told):
                self.told = report
                if report.done and not self.done.done():
                    self.done.set_result(report)
            elif isinstance(report, Failed):
                self._reason = report.reason
            else:
                self._reports.put_nowait(report)
        code = await self._process.wait()
        await asyncio.wait((self._tasks[1],), timeout=1.0)
        if not self._closing and not self.done.done() and not self.ended.done():
            reason = self._reason or "\n".join(self._noise) or f"exit code {code}"
            self.ended.set_result(f"the {self.name} ended: {reason}")

    async def _collect(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._noise.append(line.decode(errors="replace").rstrip())
