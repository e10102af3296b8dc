"""``aqueduct bench``: measures channels between two processes of this machine in a few seconds."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from aqueduct.api.channels import channel
from aqueduct.api.client import connect
from aqueduct.api.connection import Connection
from aqueduct.api.handles import Receiver, Sender
from aqueduct.api.server import serve
from aqueduct.cli import options, running
from aqueduct.errors import AqueductError
from aqueduct.protocol.connection import Mode
from aqueduct.security import dev_tls, dev_trust

_BATCH = 64
"""Messages between two readings of the clock."""


class TransferReport(msgspec.Struct):
    """The counts of the receiving process, and the seconds since the first message."""

    messages: int
    size: int
    seconds: float


class Transfer(msgspec.Struct, tag=True):
    """A stream of messages that the server counts."""

    data: Receiver[bytes]
    report: Sender[TransferReport]


class Question(msgspec.Struct, tag=True):
    """A message that the server answers at once."""

    payload: bytes
    answer: Sender[bytes]


Request = Transfer | Question


@dataclass
class Result:
    """One row of the table."""

    what: str
    messages_per_second: float | None = None
    megabytes_per_second: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None


CASES = (
    ("ordered, 100 bytes", Mode.ORDERED, 100),
    ("ordered, 1 KiB", Mode.ORDERED, 1024),
    ("ordered, 64 KiB", Mode.ORDERED, 64 * 1024),
    ("unordered, 100 bytes", Mode.UNORDERED, 100),
    ("unreliable, 100 bytes", Mode.UNRELIABLE, 100),
)


def bench(
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", min=0.05, help="Duration of each measurement.")
    ] = 0.7,
    as_json: options.Json = False,
) -> None:
    """Measure throughput and round-trip times between two processes.

    Encrypted, over loopback, with messages counted one by one in the receiving Python code.

    Example: aqueduct bench --seconds 2
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_in_process, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        running.run(_measure(here, seconds, as_json))
    finally:
        here.close()
        process.join(5)


async def _measure(pipe: Pipe, seconds: float, as_json: bool) -> int:
    try:
        address = await asyncio.to_thread(pipe.recv)
    except EOFError:
        raise OSError("the second process did not start") from None
    results: list[Result] = []
    with running.notes.status("starting") as status:
        async with running.interrupts() as stop:

            async def measure_all() -> None:
                status.update("connect and first answer")
                results.append(await _measure_connect(address))
                async with connect(address, Request, trust=dev_trust()) as connection:
                    status.update("round trip")
                    results.append(await _measure_trips(connection, seconds))
                    for what, mode, size in CASES:
                        status.update(what)
                        results.append(await _measure_flow(connection, what, mode, size, seconds))

            done = await running.until(stop, measure_all())
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        _print(results)
    return 0 if done else running.INTERRUPTED


async def _measure_connect(address: str) -> Result:
    times = []
    for _ in range(10):
        start = time.perf_counter()
        async with connect(address, Request, trust=dev_trust()) as connection:
            await connection.entrypoint.call(Question, payload=b"hello", timeout=10)
            times.append(time.perf_counter() - start)
    return _trips("connect and first answer", times)


async def _measure_trips(connection: Connection[Any], seconds: float) -> Result:
    times = []
    now = time.perf_counter()
    end = now + seconds
    while now < end:
        start = now
        await connection.entrypoint.call(Question, payload=bytes(64), timeout=10)
        now = time.perf_counter()
        times.append(now - start)
    return _trips("round trip, 64 bytes", times)


async def _measure_flow(
    connection: Connection[Any], what: str, mode: Mode, size: int, seconds: float
) -> Result:
    sender, receiver = channel(bytes, mode=mode)
    payload = bytes(size)
    sending = asyncio.ensure_future(_send_for(sender, payload, seconds))
    try:
        report: TransferReport = await connection.entrypoint.call(
            Transfer, data=receiver, timeout=seconds + 30
        )
    finally:
        sending.cancel()
    rate = report.messages / max(report.seconds, 1e-9)
    volume = report.size / max(report.seconds, 1e-9) / 1e6
    return Result(what, messages_per_second=round(rate), megabytes_per_second=round(volume, 1))


async def _send_for(sender: Sender[bytes], payload: bytes, seconds: float) -> None:
    async with sender:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(_BATCH):
                await sender.send(payload)


def _trips(what: str, times: list[float]) -> Result:
    microseconds = [1e6 * one for one in times]
    return Result(
        what,
        p50_us=round(options.percentile(microseconds, 50), 1),
        p99_us=round(options.percentile(microseconds, 99), 1),
    )


def _print(results: list[Result]) -> None:
    table = Table(title="two processes on this machine, encrypted")
    table.add_column("")
    for heading in ("messages/s", "MB/s", "p50 µs", "p99 µs"):
        table.add_column(heading, justify="right")
    for result in results:
        what, *values = astuple(result)
        table.add_row(what, *map(_number, values, ("{:,.0f}", "{:,.1f}", "{:,.0f}", "{:,.0f}")))
    Console().print(table)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


# -- the other process -----------------------------------------------------------------------------


def _serve_in_process(pipe: Pipe) -> None:
    """Serve until the first process closes its end of the pipe."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = running.loop_factory()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_count_for(pipe))
    except KeyboardInterrupt:
        pass


async def _count_for(pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    async with running.interrupts(), serve("127.0.0.1:0", Request, tls=dev_tls()) as server:
        pipe.send(server.address)
        serving = asyncio.ensure_future(server.run(_handle))
        closed = loop.create_future()
        loop.add_reader(pipe.fileno(), closed.set_result, None)
        await closed
        loop.remove_reader(pipe.fileno())
        serving.cancel()


async def _handle(connection: Connection[Any]) -> None:
    async for request in connection.entrypoint:
        if isinstance(request, Question):
            await request.answer.send(request.payload)
        else:
            await _count(request)


async def _count(transfer: Transfer) -> None:
    messages = size = 0
    start = end = time.perf_counter()
    async with transfer.data, transfer.report:
        try:
            async for payload in transfer.data:
                if not messages:
                    start = time.perf_counter()
                messages += 1
                size += len(payload)
        except AqueductError:
            return
        end = time.perf_counter()
        await transfer.report.send(TransferReport(messages, size, end - start))
