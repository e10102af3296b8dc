"""A process of the pipeline: its plan comes on standard input, lines of JSON go in and out.

The end of standard input ends it: that is how it notices that the pipeline was killed.
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
from aqueduct.spark.jobs.pipeline.messages import Failed, Order, Report

Plan = TypeVar("Plan")
Work = Callable[[Plan, AsyncIterator[Order]], Awaitable[None]]

_encode = msgspec.json.encode
_order: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)


def say(report: Report) -> None:
    """Tell the pipeline something."""
    data = _encode(report) + b"\n"
    with suppress(BrokenPipeError):  # the end of standard input tells the same
        os.write(sys.stdout.fileno(), data)


def main(plan: type[Plan], work: Work[Plan]) -> None:
    """Do the work of this process until it is done or nobody wants it any more."""
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
            _fail(_first(known))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of those that tasks raised; the others mostly follow from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _fail(error: BaseException) -> NoReturn:
    say(Failed(str(error) or type(error).__name__))
    sys.exit(1)


async def _main(plan: type[Plan], work: Work[Plan]) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    wanted = msgspec.json.decode(await reader.readline(), type=plan)
    orders: asyncio.Queue[Order | None] = asyncio.Queue()
    working = asyncio.ensure_future(work(wanted, _until_none(orders)))
    listening = asyncio.ensure_future(_listen(reader, orders))
    await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        # Whoever asked is gone. What closes by itself may; devices that wait for a gateway, no.
        await orders.put(None)
        await asyncio.wait((working,), timeout=_GRACE)
        working.cancel()
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await working


_GRACE = 5.0


async def _listen(reader: asyncio.StreamReader, orders: asyncio.Queue[Order | None]) -> None:
    while line := await reader.readline():
        await orders.put(_order.decode(line))


async def _until_none(orders: asyncio.Queue[Order | None]) -> AsyncIterator[Order]:
    while (order := await orders.get()) is not None:
        yield order
