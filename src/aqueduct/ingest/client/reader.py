"""Readers of rows by topic, partition and offset: from a server, or from its directory."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from aqueduct.api.channels import channel, oneshot
from aqueduct.api.client import ClientConnection
from aqueduct.errors import ChannelError
from aqueduct.ingest.client.connection import accepted, connect_to
from aqueduct.ingest.errors import CorruptFile, IngestError, UnknownTopic
from aqueduct.ingest.identity import History, TopicPosition
from aqueduct.ingest.protocol import (
    Advance,
    Done,
    Epochs,
    Fetch,
    Found,
    Listing,
    Offsets,
    Refusal,
    Request,
    TopicInfo,
    Topics,
)
from aqueduct.ingest.records import STORED, as_rows, in_pieces
from aqueduct.ingest.storage.base import check_name
from aqueduct.security import Trust

if TYPE_CHECKING:
    from aqueduct.ingest.server.topic import Topic

T = TypeVar("T")


class Reader:
    """Reads from an ingest server.

    ::

        async with ingest.Reader("localhost:4434") as reader:
            for topic in await reader.topics():
                for part in topic.partitions:
                    where = topic.topic, part.partition, part.first_offset, part.next_offset
                    async for rows in reader.read(*where):
                        print(rows.to_pylist())
    """

    def __init__(
        self, address: str, *, trust: Trust | None = None, token: str | None = None
    ) -> None:
        self._connecting = connect_to(address, trust, token)
        self._connection: ClientConnection[Request]

    async def __aenter__(self) -> Reader:
        self._connection = await self._connecting.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._connecting.__aexit__(*error)

    async def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """Return one topic, or all topics that the token may read."""
        call = self._connection.entrypoint.call
        listing: Listing = accepted(await call(Topics, topic=topic))
        return listing.topics

    async def history(self, topic: str) -> History:
        """Return the identity of a topic: its id, and its epochs."""
        history: History = accepted(await self._connection.entrypoint.call(Epochs, topic=topic))
        return history

    async def position(self, topic: str, offsets: Mapping[int, int]) -> TopicPosition:
        """Return offsets together with the identity of their topic."""
        return (await self.history(topic)).position(offsets)

    async def offsets_at(self, topic: str, timestamp: float) -> dict[int, int]:
        """Return, by partition, the first offset stored at or after a time (seconds since 1970)."""
        call = self._connection.entrypoint.call
        found: Found = accepted(await call(Offsets, topic=topic, timestamp=int(timestamp * 1e6)))
        return found.offsets

    async def advance(
        self,
        reader: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        position: TopicPosition | None = None,
    ) -> None:
        """Commit the offsets of a named reader: retention keeps the rows that it has not read.

        ``position`` is the position that was read up to (see `position`). Raises `TopicReplaced`,
        and commits nothing, if the topic no longer has the rows before it, or before the offsets
        that the reader committed last.
        """
        call = self._connection.entrypoint.call
        accepted(
            await call(
                Advance, topic=topic, reader=reader, offsets=dict(offsets), position=position
            )
        )

    async def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        position: TopicPosition | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows with offsets from ``start`` up to ``end``, in batches (`records.ROWS`).

        The server sends no faster than the caller takes rows. Raises `IngestError` if rows are
        missing, and `TopicReplaced` if the topic lacks the rows before ``position``.
        """
        sender, rows = channel(bytes)
        reply, answer = oneshot(Done | Refusal)
        request = Fetch(topic, partition, start, end, sender, reply, position)
        async with rows, answer:
            await self._connection.entrypoint.send(request)
            try:
                async for data in rows:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(data), STORED)
                    start = _follows(batch, start, topic, partition)
                    yield as_rows(batch, topic, partition)
            except ChannelError:
                accepted(await answer.receive())  # raises the reason, unless the connection is lost
                raise
            accepted(await answer.receive())
        if start != end:
            raise IngestError(f"{topic} partition {partition}: rows from {start} on are missing")


class DirectoryReader:
    """Reads the directory of an ingest server, running or not, without changing it.

    The last rows of a running server may not be visible yet.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise IngestError(f"there is no directory {self.directory}")
        # Not at the top: readers of a server start faster without the modules of storage.
        from aqueduct.ingest.storage.local.storage import LocalStorage

        self._storage = LocalStorage(self.directory, read_only=True)

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """Return one topic, or all topics."""
        if topic is not None:
            return [self._topic(topic).info()]
        return [self._info(name) for name in self._storage.names()]

    def _info(self, name: str) -> TopicInfo:
        """Return a topic, also if it is damaged, so that the others are listed."""
        try:
            return self._topic(name).info()
        except CorruptFile as fault:
            return TopicInfo(name, [], fault=str(fault))

    def offsets_at(self, topic: str, timestamp: float) -> dict[int, int]:
        """Return, by partition, the first offset stored at or after a time (seconds since 1970)."""
        parts = self._topic(topic).partitions
        return {part.number: part.offset_at(int(timestamp * 1e6)) for part in parts}

    def history(self, topic: str) -> History:
        """Return the identity of a topic: its id, and its epochs."""
        self._check_exists(topic)
        return self._storage.history(topic)

    def position(self, topic: str, offsets: Mapping[int, int]) -> TopicPosition:
        """Return offsets together with the identity of their topic."""
        return self.history(topic).position(offsets)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        position: TopicPosition | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets from ``start`` up to ``end``, in batches."""
        found = self._topic(topic)
        found.check_history(position)
        parts = found.partitions
        if not 0 <= partition < len(parts):
            raise UnknownTopic(f"{topic} has no partition {partition}")
        part = parts[partition]
        part.check_range(topic, start, end)
        for batch in in_pieces(part.read(start, end)):
            start = _follows(batch, start, topic, partition)
            yield as_rows(batch, topic, partition)

    def _check_exists(self, name: str) -> None:
        check_name(name)
        if not (self.directory / name).is_dir():
            there = ", ".join(self._storage.names()) or "there are none"
            raise UnknownTopic(f"there is no topic {name!r} in {self.directory}; topics: {there}")

    def _topic(self, name: str) -> Topic:
        from aqueduct.ingest.server.topic import Topic

        self._check_exists(name)
        return Topic(self._storage.open(name), scratch=self.directory)


def _follows(batch: pa.RecordBatch, start: int, topic: str, partition: int) -> int:
    """Return the offset after a batch; raise `IngestError` unless it begins at ``start``."""
    first = batch.column("offset")[0].as_py() if batch.num_rows else start
    if first != start:
        raise IngestError(f"{topic} partition {partition}: got row {first} instead of {start}")
    return start + int(batch.num_rows)
