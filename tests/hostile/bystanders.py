"""Well-behaved clients beside an attack: each repeats a request and measures its latency."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aqueduct
from aqueduct import ipc
from tests.hostile.attackers import Addresses, host_and_port
from tests.hostile.target import HONEST_TOKEN, PRODUCER, TOPIC, Request
from tests.processes.lab import Ask

SLOWEST = 30.0
"""Request timeout, in seconds."""
PAUSE = 0.02
LARGE = 200_000
WARM_UP = 5
"""Requests before the measurement: the first ones include connection setup and imports."""

Question = Callable[[], Awaitable[None]]


class Bystander:
    """A client of one kind. Latencies are recorded for the phase in which a request began."""

    name = ""
    area = ""
    pause = PAUSE

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self.phase = "idle"
        self.waits: dict[str, list[float]] = {}
        self.errors: list[str] = []
        self.first = asyncio.Event()
        """Set when the server has answered, since it was last cleared."""
        self.warm = asyncio.Event()
        """Set after `WARM_UP` answers."""
        self._answers = 0

    async def run(self) -> None:
        """Repeat the request until cancelled; after an error, record it and reconnect."""
        while True:
            try:
                async with self.asking() as question:
                    while True:
                        await self._ask(question)
                        await asyncio.sleep(self.pause)
            except Exception as error:  # noqa: BLE001 - any exception is a finding
                self.errors.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(0.2)

    async def _ask(self, question: Question) -> None:
        phase, before = self.phase, time.perf_counter()
        try:
            async with asyncio.timeout(SLOWEST):
                await question()
        finally:
            self.waits.setdefault(phase, []).append(time.perf_counter() - before)
        self._answers += 1
        if self._answers >= WARM_UP:
            self.warm.set()
        self.first.set()

    def asking(self) -> AbstractAsyncContextManager[Question]:
        """Connect, and yield the function that makes one request."""
        raise NotImplementedError

    async def check(self) -> None:
        """Raise `AssertionError` if the server's state is wrong after the attack."""

    def p99(self, phase: str) -> float:
        """Return the 99th percentile of the latencies of a phase, in seconds."""
        waits = sorted(self.waits.get(phase, ()))
        return waits[min(len(waits) - 1, int(len(waits) * 0.99))] if waits else SLOWEST


class Caller(Bystander):
    """Calls over one connection."""

    name, area, scheme = "caller", "channels", ""

    def connect(self) -> Any:
        return aqueduct.connect(
            self.scheme + self.addresses[self.area],
            Request,
            trust=aqueduct.dev_trust(),
            timeout=SLOWEST,
        )

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        async with self.connect() as connection:

            async def question() -> None:
                answer = await connection.entrypoint.call(Ask, text="ok?", timeout=SLOWEST)
                assert answer == "OK?", answer

            yield question


class Newcomer(Caller):
    """Connects, makes one call and closes."""

    name, area, pause = "newcomer", "channels", 0.1

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        async def question() -> None:
            async with self.connect() as connection:
                await connection.entrypoint.call(Ask, text="new", timeout=SLOWEST)

        yield question


class TcpCaller(Caller):
    """Calls over one connection of TCP."""

    name, area, scheme = "tcp caller", "tcp", "aqueduct+tcp://"


class TcpNewcomer(Newcomer):
    """Connects over TCP, makes one call and closes."""

    name, area, scheme = "tcp newcomer", "tcp", "aqueduct+tcp://"


class Neighbour(Caller):
    """Calls over QUIC the server that is attacked over TCP."""

    name, area, scheme = "neighbour", "tcp", "aqueduct+quic://"


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
        """Every acknowledged record is stored once, and no other record has this producer's id."""
        from aqueduct import ingest

        honest: list[bytes] = []
        async with ingest.Reader(
            self.addresses["ingest"], trust=aqueduct.dev_trust(), token=HONEST_TOKEN
        ) as reader:
            (info,) = await reader.topics(TOPIC)
            for part in info.partitions:
                where = TOPIC, part.partition, part.first_offset, part.next_offset
                async for batch in reader.read(*where):
                    rows = batch.select(["producer_id", "value"]).to_pylist()
                    honest += [row["value"] for row in rows if row["producer_id"] == PRODUCER]
        forged = [value for value in honest if not value.startswith(b"honest ")]
        assert not forged, f"{len(forged)} records were forged under the producer's id"
        missing = set(self.stored) - set(honest)
        assert not missing, f"{len(missing)} acknowledged records are not stored"
        assert len(honest) == len(set(honest)), "records are stored twice"


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
    """Requests the metrics."""

    name, area, pause = "scraper", "ingest", 0.1

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Question]:
        async def question() -> None:
            host, port = host_and_port(self.addresses["metrics"])
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                page = await reader.read()
                assert page.startswith(b"HTTP/1.1 200"), f"no metrics but {page[:40]!r}"
            finally:
                writer.close()

        yield question


class Sender(Bystander):
    """Sends messages of ScalableIPC, some of them large."""

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
    TcpCaller,
    TcpNewcomer,
    Neighbour,
    Producer,
    Reader,
    Scraper,
    UdpSender,
    TlsSender,
    TlsNewcomer,
)


def bystanders(addresses: Addresses, areas: set[str]) -> list[Bystander]:
    """Return the clients of some areas."""
    return [kind(addresses) for kind in KINDS if kind.area in areas]
