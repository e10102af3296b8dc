"""Start, command and stop the child processes of the pipeline."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from aqueduct.spark.pipeline.messages import (
    ChildFailed,
    ChildProgress,
    ChildReport,
    Command,
    Listening,
    MarkersWritten,
)
from aqueduct.spark.pipeline.settings import PipelineError

R = TypeVar("R", Listening, MarkersWritten)

_report: msgspec.json.Decoder[ChildReport] = msgspec.json.Decoder(ChildReport)
_LINES = 20
"""The most lines of standard error in an error."""


class ChildProcess:
    """A process that runs a module of this package; see `process` for the other side."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module
        self._reports: asyncio.Queue[ChildReport] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: deque[str] = deque(maxlen=_LINES)
        self._reason = ""
        self._closing = False
        self.progress = ChildProgress()
        """The last progress report."""
        self.done: asyncio.Future[ChildProgress] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the process exited unexpectedly."""

    async def start(self, plan: Any) -> None:
        """Start the process, and send it its plan."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"{__package__}.{self._module}"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            # Ctrl-C in a terminal must reach only the pipeline, which stops its processes in order.
            start_new_session=True,
        )
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._collect())]
        self.send(plan)

    def send(self, message: Any) -> None:
        """Send a command, or the plan."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def expect(self, kind: type[R]) -> R:
        """Wait for the next report; raise `PipelineError` if it is of another kind."""
        report = await self._reports.get()
        if not isinstance(report, kind):
            raise PipelineError(f"the {self.name} answered {report!r}")
        return report

    async def close(self, command: Command, grace: float) -> None:
        """Send a last command, wait up to ``grace`` seconds for the exit, then kill."""
        self._closing = True
        if self._process is None:
            return
        # If the process has exited, the event loops raise different errors.
        with suppress(OSError, RuntimeError):
            self.send(command)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace)
        await self.kill()

    async def kill(self) -> None:
        """Kill the process, unless it has exited."""
        self._closing = True
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        for task in self._tasks:
            task.cancel()

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            report = _report.decode(line)
            if isinstance(report, ChildProgress):
                self.progress = report
                if report.done and not self.done.done():
                    self.done.set_result(report)
            elif isinstance(report, ChildFailed):
                self._reason = report.reason
            else:
                self._reports.put_nowait(report)
        code = await self._process.wait()
        await asyncio.wait((self._tasks[1],), timeout=1.0)
        if not self._closing and not self.done.done() and not self.ended.done():
            reason = self._reason or "\n".join(self._stderr) or f"exit code {code}"
            self.ended.set_result(f"the {self.name} ended: {reason}")

    async def _collect(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._stderr.append(line.decode(errors="replace").rstrip())
