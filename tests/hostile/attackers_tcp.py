"""Attacks on channels over TCP: bytes that are not TLS, unfinished handshakes, records, frames."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from random import Random

import aqueduct
from aqueduct import channel, oneshot
from tests.hostile.attackers import Addresses, attack
from tests.hostile.raw import reset_stream, stream_frame, varint
from tests.hostile.raw_tcp import (
    GREETING,
    RECORD,
    RawTcpClient,
    client_hello,
    dialled,
    parameters,
    ping,
    raw_tcp_client,
    record,
)
from tests.hostile.target import Request
from tests.interop.frames import message, route_to, version
from tests.processes.lab import Produce

AREA = "tcp"
UNACCEPTED = 100
"""Megabytes that a server may hold for clients that it has not accepted, with a few addresses."""
SILENCE = 2.0
"""Seconds for which peers hold what they have opened."""


@attack(AREA, UNACCEPTED)
async def tcp_garbage(addresses: Addresses, random: Random) -> None:
    """Connections that send anything but TLS, or a damaged handshake."""
    loop = asyncio.get_running_loop()
    for _ in range(300):
        hello = bytearray(client_hello())
        for _ in range(random.randrange(1, 6)):
            hello[random.randrange(len(hello))] = random.randrange(256)
        data = random.choice(
            (
                random.randbytes(random.randrange(1, 3_000)),
                b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"\x16\x03\x01\x40\x00" + bytes(random.randrange(3_000)),
                bytes(hello),
                bytes(hello) * 100,
            )
        )
        with contextlib.suppress(OSError):
            async with dialled(addresses[AREA], random) as sock:
                await loop.sock_sendall(sock, data)
                await asyncio.sleep(0.005)


@attack(AREA, UNACCEPTED)
async def tcp_half_open(addresses: Addresses, random: Random) -> None:
    """Many connections that send nothing, or part of the first packet."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(500):
            sock = await stack.enter_async_context(dialled(addresses[AREA], random))
            with contextlib.suppress(OSError):
                await loop.sock_sendall(sock, client_hello()[: random.choice((0, 5, 42, 300))])
        await asyncio.sleep(SILENCE)


@attack(AREA, UNACCEPTED)
async def tcp_unfinished(addresses: Addresses, random: Random) -> None:
    """Connections that begin the handshake of TLS, and do not answer the server."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(300):
            sock = await stack.enter_async_context(dialled(addresses[AREA], random))
            with contextlib.suppress(OSError):
                await loop.sock_sendall(sock, client_hello())
        await asyncio.sleep(SILENCE)


@attack(AREA, UNACCEPTED)
async def tcp_slow_loris(addresses: Addresses, random: Random) -> None:
    """Connections that send the handshake byte by byte."""
    loop = asyncio.get_running_loop()

    async def drip() -> None:
        with contextlib.suppress(OSError):
            async with dialled(addresses[AREA], random) as sock:
                for byte in client_hello():
                    await loop.sock_sendall(sock, bytes((byte,)))
                    await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(drip())


@attack(AREA, UNACCEPTED)
async def tcp_silent_clients(addresses: Addresses, random: Random) -> None:
    """Clients that complete the handshake, and then send no headers."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(60):
            rude = await stack.enter_async_context(
                raw_tcp_client(addresses[AREA], random, greets=False)
            )
            await rude.say(record(parameters()) if random.random() < 0.5 else b"\x80")
        await asyncio.sleep(SILENCE)


BROKEN = (
    b"\x00",  # an empty record
    varint(65_537) + bytes(100),
    varint((1 << 62) - 1),
    record(b"\x06\x00\x01x"),  # CRYPTO
    record(b"\x02\x00\x00\x00\x00"),  # ACK
    record(parameters()),
    record(stream_frame(0, b"x")),
    record(stream_frame(1_000_002, b"x")),
    record(stream_frame(6, b"x", offset=9)),
    record(b"\x0a\x06\x40\xff"),  # a frame that goes beyond its record
    record(b"\x31\x02\xef"),
)


@attack(AREA)
async def tcp_broken_records(addresses: Addresses, random: Random) -> None:
    """Clients that break a rule of records or frames, and do not close their side."""
    async with contextlib.AsyncExitStack() as stack:
        for broken in random.choices(BROKEN, k=100):
            rude = await stack.enter_async_context(
                raw_tcp_client(addresses[AREA], random, greets=random.random() < 0.5)
            )
            with contextlib.suppress(OSError):
                await rude.say(broken)


async def pour(
    rude: RawTcpClient, frames: Iterator[bytes], megabytes: float, pause: float = 0.008
) -> None:
    """Send records full of frames, two megabytes a second, until the server closes."""
    packed: list[bytes] = []
    size = 0
    with contextlib.suppress(OSError):
        for frame in frames:
            if size + len(frame) > RECORD:
                await rude.say(record(b"".join(packed)))
                await asyncio.sleep(pause)
                packed, size = [], 0
                if rude.sent > megabytes * 1_000_000:
                    return
            packed.append(frame)
            size += len(frame)


TINY = (b"\x00", b"\x10\x00", b"\x13\x00", b"\x0a\x06\x00", ping(7))
"""PADDING, MAX_DATA, MAX_STREAMS, and STREAM without data."""


@attack(AREA)
async def tcp_tiny_frames(addresses: Addresses, random: Random) -> None:
    """Records full of frames that carry nothing, before and after acceptance."""

    async def flood(greets: bool) -> None:
        async with raw_tcp_client(addresses[AREA], random, greets=greets) as rude:
            if not greets:
                await rude.say(record(parameters()))
            await pour(rude, itertools.repeat(random.choice(TINY)), 4)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(flood(number % 2 == 0))


@attack(AREA)
async def tcp_slivers(addresses: Addresses, random: Random) -> None:
    """Records that are cut into records of TLS of a byte each."""
    async with raw_tcp_client(addresses[AREA], random) as rude:
        data = record(stream_frame(6, version() + route_to(0) + message(0, bytes(1_000))))
        with contextlib.suppress(OSError):
            for at in range(len(data)):
                await rude.say(data[at : at + 1])
            for _ in range(20_000):
                await rude.say(b"\x01")
                await rude.say(b"\x00")


@attack(AREA)
async def tcp_streams(addresses: Addresses, random: Random) -> None:
    """Streams of a byte or none that never end, before and after acceptance."""
    data = random.choice((b"", b"\xef"))
    async with contextlib.AsyncExitStack() as stack:
        for number in range(2):
            rude = await stack.enter_async_context(
                raw_tcp_client(addresses[AREA], random, greets=number % 2 == 0)
            )
            if number % 2:
                await rude.say(record(parameters()))
            first = 2 if number % 2 else 6
            await pour(rude, (stream_frame(n, data) for n in itertools.count(first, 4)), 0.2)


@attack(AREA)
async def tcp_resets(addresses: Addresses, random: Random) -> None:
    """RESET_STREAM for a new stream each, by a client that never reads."""
    async with raw_tcp_client(addresses[AREA], random) as rude:
        await pour(rude, (reset_stream(n) for n in itertools.count(6, 4)), 3)


@attack(AREA)
async def tcp_deaf_pings(addresses: Addresses, random: Random) -> None:
    """Pings, one at a time, by clients that never read the answers."""
    async with contextlib.AsyncExitStack() as stack:
        deaf = [
            await stack.enter_async_context(raw_tcp_client(addresses[AREA], random))
            for _ in range(10)
        ]
        for number in range(1_000):
            for rude in deaf:
                await rude.say(record(ping(number)))
            await asyncio.sleep(0.002)


@attack(AREA)
async def tcp_deaf_readers(addresses: Addresses, random: Random) -> None:
    """Channels that the server fills, while the client reads nothing from its sockets."""
    kept: list[object] = []
    connections = []
    try:
        for _ in range(4):
            connection = await aqueduct.connect(
                f"aqueduct+tcp://{addresses[AREA]}",
                Request,
                trust=aqueduct.dev_trust(),
                timeout=10,
            )
            connections.append(connection)
            for _ in range(20):
                sink, source = channel()
                report, outcome = oneshot(str)
                size = random.choice((10, 1_000, 10_000))
                await connection.entrypoint.send(Produce(1_000_000, size, "finish", sink, report))
                kept += [source, outcome]
            await connection.entrypoint.flush()
            connection._driver.transport._stop_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(SILENCE)
    finally:
        for connection in connections:
            connection._driver.transport.abandon("vanished")
            connection._driver.transport.close()


@attack(AREA)
async def tcp_cut(addresses: Addresses, random: Random) -> None:
    """Connections that are reset at any point."""
    hello = client_hello()
    loop = asyncio.get_running_loop()
    for _ in range(150):
        with contextlib.suppress(OSError):
            async with dialled(addresses[AREA], random) as sock:
                if random.random() < 0.5:
                    await loop.sock_sendall(sock, hello)
                    await asyncio.sleep(0.003 * random.random())
                    continue
                rude = RawTcpClient(sock)
                await rude.shake_hands()
                await rude.say(GREETING[: random.randrange(len(GREETING) + 1)] or b"\x01")
