"""Attacks by accepted clients: channels that are not read, closed or finished."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import aqueduct
from aqueduct import channel, oneshot
from tests.hostile.attackers import Addresses, attack
from tests.hostile.attacks import Attacker
from tests.hostile.target import Pour, Poured, Request
from tests.interop.frames import message, route_to, varint, version
from tests.processes.lab import Ask, CloseAfter, Produce, Report, Stall
from tests.transport.quic.inside import transport_of

TIMEOUT = 10.0


@contextlib.asynccontextmanager
async def client(addresses: Addresses) -> AsyncIterator[aqueduct.Connection[Any]]:
    """Connect; on exit close the socket without closing the connection."""
    connection = await aqueduct.connect(
        addresses["channels"], Request, trust=aqueduct.dev_trust(), timeout=TIMEOUT
    )
    try:
        yield connection
    finally:
        with contextlib.suppress(Exception):
            Attacker(connection).vanish()


@attack("channels")
async def unread_channels(addresses: Addresses, random: Random) -> None:
    """Channels that the server does not read, filled up to the connection window."""
    async with client(addresses) as connection, asyncio.TaskGroup() as group:
        kept: list[Any] = []
        for _ in range(30):
            sender, receiver = channel()
            go, stop = channel()
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Stall(receiver, stop, report))
            kept += [sender, go, answer]
            group.create_task(_fill(sender, random.choice((100, 10_000))))
        await asyncio.sleep(3)


async def _fill(sender: aqueduct.Sender[bytes], size: int) -> None:
    with contextlib.suppress(TimeoutError, aqueduct.AqueductError):
        async with asyncio.timeout(3):
            while True:
                await sender.send(bytes(size))


@attack("channels")
async def slow_readers(addresses: Addresses, random: Random) -> None:
    """Channels that the server fills and the client does not read."""
    async with client(addresses) as connection:
        kept: list[Any] = []
        for _ in range(40):
            sink, source = channel()
            report, outcome = oneshot(str)
            size = random.choice((10, 1_000, 10_000))
            await connection.entrypoint.send(Produce(1_000_000, size, "finish", sink, report))
            kept += [source, outcome]
        await asyncio.sleep(3)


@attack("channels")
async def unread_endings(addresses: Addresses, random: Random) -> None:
    """Channels that the server finishes after a few bytes, and the client never reads."""
    async with client(addresses) as connection:
        kept: list[Any] = []
        for number in range(4_000):
            sink, source = channel()
            report, outcome = oneshot(str)
            await connection.entrypoint.send(Produce(1, 10, "finish", sink, report))
            kept += [source, outcome]
            if number % 20 == 0:
                await asyncio.sleep(0.01 + 0.02 * random.random())


@attack("channels")
async def unordered_closes(addresses: Addresses, random: Random) -> None:
    """Unordered channels closed while thousands of their messages are unacknowledged."""
    async with client(addresses) as connection:
        for _ in range(4):
            reply, answer = oneshot(Poured)
            await connection.entrypoint.send(Pour(1_000_000, 8, reply))
            async with answer, asyncio.timeout(TIMEOUT):
                poured = await answer.receive()
            # A client that does not read its socket sends no acks.
            reader = transport_of(connection).endpoint
            loop = asyncio.get_running_loop()
            with contextlib.suppress(Exception):
                loop.remove_reader(reader.udp.socket.fileno())
            await asyncio.sleep(0.3 + 0.5 * random.random())
            poured.content.close()
            transport_of(connection).schedule_flush()
            with contextlib.suppress(Exception):
                loop.add_reader(reader.udp.socket.fileno(), reader._readable)
            await asyncio.sleep(0.2)


@attack("channels")
async def early_closes(addresses: Addresses, random: Random) -> None:
    """Channels whose receivers the server closes, and whose senders the client never finishes."""
    async with client(addresses) as connection:
        kept = []
        for number in range(2_000):
            sender, receiver = channel()
            await connection.entrypoint.send(CloseAfter(0, "close", receiver))
            kept.append(sender)
            if number % 20 == 0:
                await asyncio.sleep(0.02 + 0.02 * random.random())


@attack("channels")
async def timed_out_calls(addresses: Addresses, random: Random) -> None:
    """Calls that time out before the answer."""
    async with client(addresses) as connection:
        for _ in range(100):
            calls = [_call(connection, 0.001 * random.random()) for _ in range(20)]
            await asyncio.gather(*calls)
            await asyncio.sleep(0.02)


async def _call(connection: Any, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await connection.entrypoint.call(Ask, text="late", timeout=seconds)


@attack("channels")
async def header_floods(addresses: Addresses, random: Random) -> None:
    """Messages with the maximum of empty headers, on several channels."""
    async with client(addresses) as connection:
        rude = Attacker(connection)
        empty = [(b"", b"")] * 30_000
        for number in range(40):
            stream = rude.stream(version() + route_to(8 + 8 * number))
            for sequence in range(20):
                rude.write(stream, message(sequence, b"x", empty))
                await asyncio.sleep(0.005 + 0.01 * random.random())


@attack("channels")
async def announced_lengths(addresses: Addresses, random: Random) -> None:
    """Streams that announce a large message each, and send only its first bytes."""
    async with client(addresses) as connection:
        rude = Attacker(connection)
        head = b"\x04\x00\x00\x00" + varint(16_000_000) + b"just the beginning"
        for number in range(2_000):
            rude.stream(version() + route_to(8 + 8 * number) + head)
            if number % 20 == 0:
                await asyncio.sleep(0.01 + 0.02 * random.random())


@attack("channels")
async def empty_messages(addresses: Addresses, random: Random) -> None:
    """Empty messages, which cost no credit."""
    async with client(addresses) as connection:
        rude = Attacker(connection)
        stream = rude.stream(version() + route_to(8))
        for start in range(0, 300_000, 2_000):
            rude.write(stream, b"".join(message(start + n) for n in range(2_000)))
            await asyncio.sleep(0.01 + 0.02 * random.random())


@attack("channels")
async def datagram_floods(addresses: Addresses, random: Random) -> None:
    """Datagrams for unknown channels."""
    async with client(addresses) as connection:
        rude = Attacker(connection)
        for number in range(20_000):
            rude.datagram(version() + route_to(8) + message(number, b"x" * 100))
            if number % 50 == 0:
                await asyncio.sleep(0.01 + 0.01 * random.random())


@attack("channels")
async def passing_clients(addresses: Addresses, random: Random) -> None:
    """Clients that disappear right after acceptance."""
    for _ in range(20):
        async with client(addresses) as connection:
            Attacker(connection).stream(b"\xef")
        await asyncio.sleep(0.02 * random.random())
