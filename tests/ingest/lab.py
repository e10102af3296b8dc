"""A server, producers and readers in one process, over real QUIC on this host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aqueduct.api.channels import channel
from aqueduct.api.client import Connecting, connect
from aqueduct.api.handles import Receiver, Sender
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.client.reader import Reader
from aqueduct.ingest.protocol import Answer, Open, Opened, Refusal, Request
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.settings import IngestSettings
from aqueduct.security import ServerTLS, Trust

SECONDS = 60.0


class Lab:
    """Makes servers on one directory, and their clients."""

    def __init__(self, directory: Path, tls: ServerTLS, trusted: Trust) -> None:
        self.directory = directory
        self._tls = tls
        self.trust = trusted

    def serve(self, address: str = "127.0.0.1:0", **options: Any) -> IngestServer:
        """Return a server; options other than `permissions` and `directory_mode` are settings."""
        names = ("permissions", "directory_mode")
        own = {name: options.pop(name) for name in names if name in options}
        limits = IngestSettings(**{"low_water": 0, **options})
        return IngestServer(address, self.directory, tls=self._tls, limits=limits, **own)

    def producer(self, server: IngestServer, topic: str = "topic", **options: Any) -> Producer:
        return Producer(server.address, topic, trust=self.trust, **options)

    def reader(self, server: IngestServer, **options: Any) -> Reader:
        return Reader(server.address, trust=self.trust, **options)

    def connect(self, server: IngestServer) -> Connecting[Request]:
        """Connect a client that may send anything."""
        return connect(server.address, Request, trust=self.trust)

    async def rows(self, server: IngestServer, topic: str = "topic") -> list[dict[str, Any]]:
        """Return all rows of a topic, partition by partition."""
        found: list[dict[str, Any]] = []
        async with self.reader(server) as reader:
            (info,) = await reader.topics(topic)
            for part in info.partitions:
                where = topic, part.partition, part.first_offset, part.next_offset
                async for batch in reader.read(*where):
                    found += batch.to_pylist()
        return found


def records_channel(kind: Any = RecordColumns) -> tuple[Sender[Any], Receiver[bytes]]:
    """Return a channel for the records of a producer; `Open` carries its receiver."""
    records, incoming = channel(kind)
    return records, incoming


class RawProducer:
    """The two channels of a producer, without the checks of `Producer`."""

    def __init__(self, records: Sender[Any], answers: Receiver[Answer]) -> None:
        self.records = records
        self.answers = answers

    @classmethod
    async def open(
        cls,
        entrypoint: Sender[Request],
        topic: str = "topic",
        producer_id: str = "raw",
        **more: Any,
    ) -> RawProducer:
        records, incoming = records_channel()
        outgoing, answers = channel(Answer)
        await entrypoint.send(Open(topic, producer_id, incoming, outgoing, **more))
        return cls(records, answers)

    async def opened(self) -> Opened:
        answer = await self.answers.receive()
        assert isinstance(answer, Opened), answer
        return answer

    async def refused(self) -> Refusal:
        """Return the next answer, which must be a refusal."""
        answer = await self.answers.receive()
        assert isinstance(answer, Refusal), answer
        return answer

    def leave(self) -> None:
        self.records.cancel()
        self.answers.close()


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    for _ in range(int(SECONDS * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")
