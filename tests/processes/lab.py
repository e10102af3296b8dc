"""The server of the process tests: handles requests, and prints events as JSON.

python -m tests.processes.lab [--listen 127.0.0.1:0] [--accept all|password] [--grace SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

import aqueduct
from aqueduct import Receiver, Sender

PASSWORD = b"open sesame"
WINDOW = 256 * 1024
"""The window of one channel: small, so that tests reach back pressure soon."""


class Report(msgspec.Struct):
    """What became of a channel that was read to its end."""

    count: int
    total: int
    digest: str
    ended: str
    in_order: bool


class Level3(msgspec.Struct):
    data: Receiver[bytes]
    back: Sender[bytes]


class Level2(msgspec.Struct):
    next: Receiver[Level3]


class Level1(msgspec.Struct):
    next: Receiver[Level2]


class Bag(msgspec.Struct):
    number: int
    content: Receiver[bytes]


class Collect(msgspec.Struct, tag=True):
    """Read a channel to its end and report."""

    source: Receiver[bytes]
    report: Sender[Report]


class Produce(msgspec.Struct, tag=True):
    """Send ``count`` messages, and end the channel as requested."""

    count: int
    size: int
    ending: str
    sink: Sender[bytes]
    report: Sender[str]


class Ask(msgspec.Struct, tag=True):
    text: str
    reply: Sender[str]


class Nest(msgspec.Struct, tag=True):
    level: Receiver[Level1]
    answer: Sender[Level1]


class Mirror(msgspec.Struct, tag=True):
    """Report the headers of all three levels."""

    source: Receiver[bytes]
    reply: Sender[dict[str, list[tuple[str, str]]]]


class Stall(msgspec.Struct, tag=True):
    """Do not read until a message arrives on ``go``."""

    source: Receiver[bytes]
    go: Receiver[bytes]
    report: Sender[Report]


class CloseAfter(msgspec.Struct, tag=True):
    """Take ``count`` messages, then close the receiver or drop it."""

    count: int
    ending: str
    source: Receiver[bytes]


class Bags(msgspec.Struct, tag=True):
    """Read bags, and report each once its content was read to the end."""

    source: Receiver[Bag]
    seen: Sender[tuple[int, bytes]]


class Keep(msgspec.Struct, tag=True):
    """Keep a channel open, and echo its messages."""

    source: Receiver[bytes]
    sink: Sender[bytes]


class Ignore(msgspec.Struct, tag=True):
    """Has halves that a reader of `Ask` would not claim."""

    extra: Receiver[bytes]


class Vitals(msgspec.Struct, tag=True):
    reply: Sender[dict[str, int]]


class Leave(msgspec.Struct, tag=True):
    """End the connection or the whole process."""

    how: str


Request = (
    Collect | Produce | Ask | Nest | Mirror | Stall | CloseAfter | Bags | Keep | Vitals | Leave
)


def say(event: str, **more: Any) -> None:
    """Print an event for the test."""
    print(json.dumps({"event": event, **more}), flush=True)


async def collect(source: Receiver[bytes]) -> Report:
    """Read to the end, and report how the channel ended."""
    count = total = 0
    digest = hashlib.sha256()
    in_order = True
    last = -1
    ended = "EndOfChannel"
    try:
        async for payload in source:
            count += 1
            total += len(payload)
            digest.update(payload)
            if len(payload) >= 4:
                number = int.from_bytes(payload[:4], "big")
                in_order = in_order and number > last
                last = number
    except aqueduct.AqueductError as error:
        ended = type(error).__name__
    return Report(count, total, digest.hexdigest(), ended, in_order)


def numbered(number: int, size: int) -> bytes:
    """Return a payload that contains its number."""
    return (number.to_bytes(4, "big") + bytes(size))[:size] if size >= 4 else bytes(size)


class Lab:
    """One server; each request runs in a task."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.server: aqueduct.Server[Any] | None = None

    async def handle(self, connection: aqueduct.Connection[Any]) -> None:
        peer = f"{connection.peer[0]}:{connection.peer[1]}"
        say("connection", peer=peer, early=connection.early_data)
        try:
            while True:
                try:
                    message = await connection.entrypoint.receive_message()
                except aqueduct.DecodeError as error:
                    say("undecodable", error=str(error))
                    continue
                self.start(connection, message)
        except aqueduct.EndOfChannel:
            await connection.wait_closed()
            say("gone", error="")
        except aqueduct.ConnectionLost as error:
            say("gone", error=str(error), code=error.code, by_peer=error.by_peer)

    def start(self, connection: aqueduct.Connection[Any], message: aqueduct.Message[Any]) -> None:
        task = asyncio.ensure_future(self.serve(connection, message))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(
        self, connection: aqueduct.Connection[Any], message: aqueduct.Message[Any]
    ) -> None:
        request = message.payload
        name = f"do_{type(request).__name__.lower()}"
        try:
            await getattr(self, name)(connection, message, request)
        except aqueduct.AqueductError as error:
            say("failed", request=name, error=type(error).__name__, text=str(error))

    async def do_collect(self, _: Any, __: Any, request: Collect) -> None:
        await request.report.send(await collect(request.source))

    async def do_produce(self, _: Any, __: Any, request: Produce) -> None:
        sink = request.sink
        outcome = request.ending
        try:
            for number in range(request.count):
                await sink.send(numbered(number, request.size))
            if request.ending == "finish":
                sink.finish()
                await sink.flush()
            elif request.ending == "flush and cancel":
                await sink.flush()
                sink.cancel()
            elif request.ending == "cancel":
                sink.cancel()
        except aqueduct.AqueductError as error:
            outcome = type(error).__name__
        if request.ending == "drop":
            request.sink = sink = None  # type: ignore[assignment]
            gc.collect()
        await request.report.send(outcome)

    async def do_ask(self, _: Any, __: Any, request: Ask) -> None:
        if request.text == "never":
            await asyncio.sleep(3600)
        if request.text == "drop":
            request.reply.cancel()
            return
        await request.reply.send(request.text.upper())

    async def do_nest(self, _: Any, __: Any, request: Nest) -> None:
        first = await request.level.receive()
        second = await first.next.receive()
        third = await second.next.receive()
        await send_nested(request.answer, third.data, third.back)
        for receiver in (request.level, first.next, second.next):
            receiver.close()

    async def do_mirror(
        self, connection: aqueduct.Connection[Any], message: aqueduct.Message[Any], request: Mirror
    ) -> None:
        inner = await request.source.receive_message()
        request.source.close()
        await request.reply.send(
            {
                "connection": as_text(connection.headers),
                "message": as_text(message.headers),
                "channel": as_text(request.source.headers),
                "inner message": as_text(inner.headers),
            }
        )

    async def do_stall(self, _: Any, __: Any, request: Stall) -> None:
        await request.go.receive()
        request.go.close()
        await request.report.send(await collect(request.source))

    async def do_closeafter(self, _: Any, message: Any, request: CloseAfter) -> None:
        for _number in range(request.count):
            await request.source.receive()
        if request.ending == "close":
            request.source.close()
        else:
            request.source = None  # type: ignore[assignment]
            del message
            gc.collect()

    async def do_bags(self, _: Any, __: Any, request: Bags) -> None:
        async with request.seen:
            async for bag in request.source:
                async with bag.content:
                    content = b"".join([part async for part in bag.content])
                await request.seen.send((bag.number, content))

    async def do_keep(self, _: Any, __: Any, request: Keep) -> None:
        async with request.sink:
            async for payload in request.source:
                await request.sink.send(payload)

    async def do_vitals(self, connection: Any, __: Any, request: Vitals) -> None:
        assert self.server is not None
        gc.collect()
        numbers = {
            "rss": resident(),
            "connections": len(self.server.connections),
            "channels": int(connection.statistics()["channels"]),
            "tasks": len(self.tasks),
        }
        await request.reply.send(numbers)

    async def do_leave(self, connection: Any, __: Any, request: Leave) -> None:
        if request.how == "close":
            await connection.close(reason="enough")
        elif request.how == "fail":
            await connection.close(aqueduct.CloseCode.INTERNAL, "broken")
        elif request.how == "drain":
            assert self.server is not None
            say("draining")
            await self.server.drain(5)
            say("drained")
        else:
            os._exit(3)


async def send_nested(answer: Sender[Level1], data: Receiver[bytes], back: Sender[bytes]) -> None:
    """Echo messages into a channel that is sent back three levels deep."""
    to_second, second = aqueduct.channel(Level2)
    to_third, third = aqueduct.channel(Level3)
    copy_in, copy = aqueduct.channel()
    echo, echoed = aqueduct.channel()
    async with answer:
        await answer.send(Level1(second))
    async with to_second:
        await to_second.send(Level2(third))
    async with to_third:
        await to_third.send(Level3(copy, echo))
    async with copy_in:
        async for payload in data:
            await copy_in.send(payload)
    async with back:
        async for payload in echoed:
            await back.send(payload)


def as_text(headers: aqueduct.Headers) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in headers]


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0  # only Linux has /proc
    pages = int(statm.read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def check_password(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
    """Accept clients with the right password."""
    if headers.get("banned"):
        raise aqueduct.Refuse("you are banned")
    if headers.get("password") != PASSWORD:
        raise aqueduct.Refuse("the password is wrong", unauthenticated=True)
    return aqueduct.Accept(headers={"greeting": f"hello {peer[0]}"})


async def main(options: argparse.Namespace) -> None:
    lab = Lab()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: say(
            "trouble", message=context["message"], error=repr(context.get("exception"))
        )
    )
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with aqueduct.serve(
        options.listen,
        Request,
        tls=aqueduct.dev_tls(),
        accept=check_password if options.accept == "password" else None,
        limits=aqueduct.Limits(channel_window=WINDOW, max_channels=options.max_channels),
        early_data=options.early_data,
        options=aqueduct.QuicSettings(
            idle_timeout=options.idle,
            handshake_timeout=options.handshake,
            keep_alive=options.idle / 3,
            max_packet=options.max_packet,
        ),
    ) as server:
        lab.server = server
        say("ready", address=server.address)
        running = asyncio.ensure_future(server.run(lab.handle))
        await stop.wait()
        say("stopping")
        await server.drain(1)
        await running
    say("stopped")


def options_from(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--accept", default="all")
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--handshake", type=float, default=10.0)
    parser.add_argument("--max-packet", type=int)
    parser.add_argument("--early-data", action="store_true")
    parser.add_argument("--max-channels", type=int, default=65_536)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Imported by its name, so that there is only one `Request` class.
    from tests.processes import lab

    sys.exit(asyncio.run(lab.main(lab.options_from(sys.argv[1:]))))
