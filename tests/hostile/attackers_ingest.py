"""Attacks on an ingest server, by clients with a token of their own or without one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from random import Random
from typing import Any, cast

import aqueduct
from aqueduct import Receiver, channel, oneshot
from aqueduct.ingest.dedup.scope import ID_SIZE, Fingerprint, WriteScope
from aqueduct.ingest.protocol import (
    Advance,
    Answer,
    Done,
    EndStep,
    Fetch,
    Open,
    Opened,
    Refusal,
    Request,
)
from aqueduct.ingest.records import RecordColumns
from tests.hostile.attackers import HOSTS, Addresses, attack, host_and_port
from tests.hostile.target import HOSTILE_TOKEN, PRODUCER, PUBLIC, TOPIC

TIMEOUT = 10.0


@contextlib.asynccontextmanager
async def client(
    addresses: Addresses, token: str = HOSTILE_TOKEN
) -> AsyncIterator[aqueduct.Connection[Any]]:
    connection = await aqueduct.connect(
        addresses["ingest"],
        Request,
        trust=aqueduct.dev_trust(),
        headers={"authorization": f"Bearer {token}"},
        timeout=TIMEOUT,
    )
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def producing(
    connection: Any, topic: str, producer: str, scope: WriteScope | None = None
) -> AsyncIterator[tuple[Any, Any, int]]:
    """Open a producer; yields its two channels and the last stored sequence number."""
    records, incoming = channel(RecordColumns)
    outgoing, answers = channel(Answer)
    undecoded = cast("Receiver[bytes]", incoming)
    await connection.entrypoint.send(Open(topic, producer, undecoded, outgoing, scope=scope))
    try:
        async with asyncio.timeout(TIMEOUT):
            answer = await answers.receive()
        yield records, answers, answer.committed if isinstance(answer, Opened) else 0
    finally:
        records.cancel()
        answers.close()


def name(random: Random) -> str:
    return f"hostile-{random.randrange(1 << 30)}"


@attack("ingest")
async def poison_sequences(addresses: Addresses, random: Random) -> None:
    """Records with the largest sequence numbers and timestamps, also in parts of jobs."""
    async with client(addresses) as connection:

        async def poison() -> None:
            scope = None
            if random.random() < 0.7:  # the server does not check sequence numbers of jobs
                run = random.randbytes(16).hex()
                scope = WriteScope(name(random), 0, run, random.randrange(10))
            worst = random.choice((2**63 - 1, 2**63 - 2, 2**62))
            time = random.choice((0, 0, worst))
            async with producing(connection, TOPIC, name(random), scope) as (records, answers, _):
                with contextlib.suppress(aqueduct.AqueductError, TimeoutError):
                    ids = random.randbytes(2 * ID_SIZE) if scope else None
                    rows = RecordColumns(worst, [b"x", b"y"], [0, time], None, None, 0, None, ids)
                    await records.send(rows)
                    async with asyncio.timeout(1):
                        await answers.receive()

        for _ in range(20):
            await asyncio.gather(*(poison() for _ in range(5)))
            await asyncio.sleep(0.02)


@attack("ingest")
async def empty_headers(addresses: Addresses, random: Random) -> None:
    """Messages of 4 MB that decode to a million empty headers."""
    rows: list[list[tuple[str, bytes]]] = [[("", b"")] * 64] * 16_384
    async with client(addresses) as connection:
        for _ in range(5):
            async with producing(connection, PUBLIC, name(random)) as (records, _, known):
                await records.send(
                    RecordColumns(known + 1, [b""] * 16_384, [0] * 16_384, None, rows)
                )
                await asyncio.sleep(0.2 + 0.3 * random.random())


@attack("ingest")
async def advance_floods(addresses: Addresses, random: Random) -> None:
    """Named readers that advance several hundred times a second."""
    async with client(addresses) as connection:

        async def advance(reader: str) -> None:
            for _ in range(50):
                await connection.entrypoint.call(
                    Advance, topic=TOPIC, reader=reader, offsets={0: 0}, timeout=TIMEOUT
                )
                await asyncio.sleep(0.03)

        readers = [f"hostile-{number}" for number in range(random.randrange(5, 15))]
        await asyncio.gather(*(advance(reader) for reader in readers))


@attack("ingest")
async def slow_fetches(addresses: Addresses, random: Random) -> None:
    """Readers that request all rows on several connections, and take few or none."""
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(client(addresses))
        async with producing(first, PUBLIC, name(random)) as (records, _, known):
            for number in range(4):
                at = known + 1 + 8 * number
                rows = RecordColumns(at, [bytes(250_000)] * 8, [0] * 8, None, None, 0)
                await records.send(rows)
            await asyncio.sleep(0.5)
        kept: list[Any] = []
        for _ in range(5):
            connection = await stack.enter_async_context(client(addresses))
            for _ in range(16):
                sender, rows_in = channel(bytes)
                reply, answer = oneshot(Done | Refusal)
                await connection.entrypoint.send(Fetch(PUBLIC, 0, 0, 32, sender, reply))
                kept += [rows_in, answer]
        drips = random.random() < 0.5  # a range that gets no rows at all gives way sooner
        for _ in range(25):
            await asyncio.sleep(0.2)
            if drips:
                for receiver in kept[:: 2 * random.randrange(1, 9)]:
                    with contextlib.suppress(aqueduct.AqueductError):
                        receiver.receive_nowait()
        for each in kept:
            each.close()


@attack("ingest")
async def forged_producers(addresses: Addresses, random: Random) -> None:
    """Records under the producer id of another token."""
    async with client(addresses) as connection:
        for _ in range(10):
            async with producing(connection, TOPIC, PRODUCER) as (records, answers, known):
                with contextlib.suppress(aqueduct.AqueductError, TimeoutError):
                    await records.send(RecordColumns(known + 1, [b"forged"] * 50, [0] * 50))
                    async with asyncio.timeout(1):
                        await answers.receive()
            await asyncio.sleep(0.1 + 0.2 * random.random())


@attack("ingest")
async def unfinished_jobs(addresses: Addresses, random: Random) -> None:
    """Jobs that never end a step, are taken over by further runs, or end with wrong row counts."""
    async with client(addresses) as connection:

        async def begin() -> None:
            job, run = f"hostile-{random.randrange(200)}", random.randbytes(16).hex()
            step = random.choice((0, 1, random.randrange(1 << 40)))
            scope = WriteScope(job, step, run, random.randrange(1_000))
            async with producing(connection, TOPIC, "", scope) as (records, answers, _):
                with contextlib.suppress(aqueduct.AqueductError, TimeoutError):
                    count = random.randrange(1, 200)
                    ids = random.randbytes(count * ID_SIZE)
                    is_last = random.random() < 0.5
                    values, times = [b"x"] * count, [0] * count
                    await records.send(
                        RecordColumns(1, values, times, partition=0, ids=ids, is_last=is_last)
                    )
                    async with asyncio.timeout(1):
                        await answers.receive()
            if random.random() < 0.5:
                rows = Fingerprint(random.randrange(1 << 40), random.randbytes(16))
                with contextlib.suppress(TimeoutError):
                    await connection.entrypoint.call(
                        EndStep, topic=TOPIC, job=job, step=step, run=run, rows=rows, timeout=1
                    )

        for _ in range(20):
            await asyncio.gather(*(begin() for _ in range(10)))
            await asyncio.sleep(0.02)


@attack("ingest")
async def wrong_tokens(addresses: Addresses, random: Random) -> None:
    """Clients with wrong tokens."""
    for _ in range(20):
        with contextlib.suppress(aqueduct.AqueductError):
            async with client(addresses, f"guess-{random.randrange(1 << 60)}"):
                pass
        await asyncio.sleep(0.02)


@attack("ingest")
async def silent_scrapers(addresses: Addresses, random: Random) -> None:
    """TCP connections to the metrics that send nothing, or half of a request."""
    loop = asyncio.get_running_loop()
    socks = []
    try:
        for _ in range(random.randrange(17, 60)):
            sock = socket.socket()
            socks.append(sock)
            sock.bind((random.choice(HOSTS), 0))
            sock.setblocking(False)
            await loop.sock_connect(sock, host_and_port(addresses["metrics"]))
            if random.random() < 0.5:
                await loop.sock_sendall(sock, b"GET /metrics HTT")
        await asyncio.sleep(4)
    finally:
        for sock in socks:
            sock.close()
