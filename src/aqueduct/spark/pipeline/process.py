"""The frame of a child process: reads its plan and commands from standard input, prints reports.

Plans, commands and reports are lines of JSON. The end of standard input ends the process, also when
the pipeline was killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

import msgspec

from aqueduct.errors import AqueductError
from aqueduct.spark.pipeline.messages import ChildFailed, ChildReport, Command

Plan = TypeVar("Plan")
Work = Callable[[Plan, AsyncIterator[Command]], Awaitable[None]]

_encode = msgspec.json.encode
_command: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_GRACE = 5.0


def report(message: ChildReport) -> None:
    """Send a report to the pipeline."""
    data = _encode(message) + b"\n"
    with suppress(BrokenPipeError):  # standard input has ended, too, and ends this process
        os.write(sys.stdout.fileno(), data)


def main(plan: type[Plan], work: Work[Plan]) -> None:
    """Run the work of this process until it is done or standard input ends."""
    factory = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(_main(plan, work))
        except (AqueductError, OSError, ValueError) as error:
            _fail(error)
        except BaseExceptionGroup as group:
            known = group.subgroup((AqueductError, OSError, ValueError))
            if known is None:
                raise
            _fail(first_error(known))


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group of tasks; the others mostly follow from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _fail(error: BaseException) -> NoReturn:
    report(ChildFailed(str(error) or type(error).__name__))
    sys.exit(1)


async def _main(plan: type[Plan], work: Work[Plan]) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    wanted = msgspec.json.decode(await reader.readline(), type=plan)
    commands: asyncio.Queue[Command | None] = asyncio.Queue()
    working = asyncio.ensure_future(work(wanted, _until_none(commands)))
    listening = asyncio.ensure_future(_listen(reader, commands))
    await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        # The pipeline has exited. Servers close in time; devices may wait for a gateway forever.
        await commands.put(None)
        await asyncio.wait((working,), timeout=_GRACE)
        working.cancel()
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def _listen(reader: asyncio.StreamReader, commands: asyncio.Queue[Command | None]) -> None:
    while line := await reader.readline():
        await commands.put(_command.decode(line))


async def _until_none(commands: asyncio.Queue[Command | None]) -> AsyncIterator[Command]:
    while (command := await commands.get()) is not None:
        yield command
