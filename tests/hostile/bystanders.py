"""Well-behaved clients beside an attack: each asks again and again, and notes how long it took."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aqueduct
from aqueduct import ipc
from tests.hostile.attackers import Addresses, place
from tests.hostile.target import HONEST_TOKEN, PRODUCER, TOPIC, Request
from tests.processes.lab import Ask

SLOWEST = 30.0
"""Seconds after which a client has no hope."""
PAUSE = 0.02
LARGE = 200_000

Question = Callable[[], Awaitable[None]]


class Bystander:
    """A client of one kind. What it waits is noted by the phase that it began in."""

    name = ""
    area = ""
    pause = PAUSE

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self.phase = "idle"
        self.waits: dict[str, list[float]] = {}
        self.errors: list[str] = []
        self.first = asyncio.Event()

    async def run(self) -> None:
        """Ask until cancelled; a client that fails notes it, and comes again."""
        while True:
            try:
                async with self.asking() as question:
                    while True:
                        await self._ask(question)
                        await asyncio.sleep(self.pause)
            except (aqueduct.AqueductError, OSError, TimeoutError, AssertionError) as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(0.2)

    async def _ask(self, question: Question) -> None:
        phase, before = self.phase, time.perf_counter()
        try:
            async with asyncio.timeout(SLOWEST):
                await question()
        finally:
            self.waits.setdefault(phase, []).append(time.perf_counter() - before)
        self.first.set()

    def asking(self) -> AbstractAsyncContextManager[Question]:
        """What it needs to ask, and how."""
        raise NotImplementedError

    async def check(self) -> None:
        """What must be so when all is over; raises `AssertionError` if it is not."""

    def p99(self, phase: str) -> float:
        """What 99 of 100 questions of a phase took at most, in seconds."""
        waits = sorted(self.waits.get(phase, ()))
        return waits[min(len(waits) - 1, int(len(waits) * 0.99))] if waits else SLOWEST


def connect(addresses: Addresses) -> Any:
    return aqueduct.connect(
        addresses["channels"], Request, trust=aqueduct.dev_trust(), timeout=SLOWEST
    )


class Caller(Bystander):
    """Calls over one connection."""

    name, area = "caller", "channels"

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        async with connect(self.addresses) as connection:

            async def question() -> None:
                answer = await connection.entrypoint.call(Ask, text="ok?", timeout=SLOWEST)
                assert answer == "OK?", answer

            yield question


class Newcomer(Bystander):
    """Connects, calls and leaves."""

    name, area, pause = "newcomer", "channels", 0.1

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        async def question() -> None:
            async with connect(self.addresses) as connection:
                await connection.entrypoint.call(Ask, text="new", timeout=SLOWEST)

        yield question


class Producer(Bystander):
    """Stores one record at a time."""

    name, area = "producer", "ingest"

    def __init__(self, addresses: Addresses) -> None:
        super().__init__(addresses)
        self._sent = 0
        self.stored: list[bytes] = []

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        from aqueduct import ingest

        producer = ingest.Producer(
            self.addresses["ingest"],
            TOPIC,
            producer_id=PRODUCER,
            trust=aqueduct.dev_trust(),
            token=HONEST_TOKEN,
            partitions=1,
        )
        await producer.open()
        try:

            async def question() -> None:
                self._sent += 1
                value = b"honest %d" % self._sent
                await producer.send_and_wait(value)
                self.stored.append(value)

            yield question
        finally:
            await producer.abandon()

    async def check(self) -> None:
        """Every record that was said to be stored is there, once."""
        from aqueduct import ingest

        found: list[bytes] = []
        async with ingest.Reader(
            self.addresses["ingest"], trust=aqueduct.dev_trust(), token=HONEST_TOKEN
        ) as reader:
            (info,) = await reader.topics(TOPIC)
            for part in info.partitions:
                where = TOPIC, part.partition, part.first_offset, part.next_offset
                async for batch in reader.read(*where):
                    found += batch.column("value").to_pylist()
        honest = [value for value in found if value.startswith(b"honest ")]
        missing = set(self.stored) - set(honest)
        assert not missing, f"{len(missing)} records were said to be stored and are not there"
        assert len(honest) == len(set(honest)), "records are there twice"


class Reader(Bystander):
    """Reads the last row."""

    name, area = "reader", "ingest"

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        from aqueduct import ingest

        async with ingest.Reader(
            self.addresses["ingest"], trust=aqueduct.dev_trust(), token=HONEST_TOKEN
        ) as reader:

            async def question() -> None:
                topics = [info for info in await reader.topics() if info.topic == TOPIC]
                for part in topics[0].partitions[:1] if topics else []:
                    if part.next_offset:
                        last = part.next_offset - 1
                        rows = reader.read(TOPIC, part.partition, last, part.next_offset)
                        assert sum([len(batch) async for batch in rows]) == 1

            yield question


class Scraper(Bystander):
    """Asks for the metrics."""

    name, area, pause = "scraper", "ingest", 0.1

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        async def question() -> None:
            reader, writer = await asyncio.open_connection(*place(self.addresses["metrics"]))
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                page = await reader.read()
                assert page.startswith(b"HTTP/1.1 200"), f"no metrics but {page[:40]!r}"
            finally:
                writer.close()

        yield question


class Sender(Bystander):
    """Sends messages without connections, some of them large."""

    scheme = ""
    area = "ipc"

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        address = "udp://127.0.0.1:0" if self.scheme == "udp" else "tls://"
        trust = None if self.scheme == "udp" else aqueduct.dev_trust()
        endpoint: ipc.Endpoint[bytes] = ipc.Endpoint(address, trust=trust)
        async with endpoint:
            count = 0

            async def question() -> None:
                nonlocal count
                count += 1
                payload = bytes(LARGE) if count % 5 == 0 else b"hello"
                await endpoint.send(self.addresses[f"ipc_{self.scheme}"], payload)

            yield question


class UdpSender(Sender):
    name, scheme = "udp sender", "udp"


class TlsSender(Sender):
    name, scheme = "tls sender", "tls"


class TlsNewcomer(Bystander):
    """Opens an endpoint, sends one message and closes."""

    name, area, pause = "tls newcomer", "ipc", 0.1

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        async def question() -> None:
            endpoint: ipc.Endpoint[bytes] = ipc.Endpoint("tls://", trust=aqueduct.dev_trust())
            async with endpoint:
                await endpoint.send(self.addresses["ipc_tls"], b"hello")

        yield question


KINDS: tuple[type[Bystander], ...] = (
    Caller,
    Newcomer,
    Producer,
    Reader,
    Scraper,
    UdpSender,
    TlsSender,
    TlsNewcomer,
)


def bystanders(addresses: Addresses, areas: set[str]) -> list[Bystander]:
    """The clients that are about some areas."""
    return [kind(addresses) for kind in KINDS if kind.area in areas]
