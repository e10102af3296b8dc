"""Records that a producer sends in one message, and the receipts of those who want them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from aqueduct.ingest.partitioning import partition_of
from aqueduct.ingest.records import RecordColumns


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a record is."""

    partition: int
    offset: int | None
    """None if it had been stored before the producer was opened, or before it reconnected."""


class Batch:
    """Records that go in one message, and who wants to know where they end up."""

    __slots__ = (
        "completion",
        "header_count",
        "headers",
        "ids",
        "keys",
        "partition",
        "partitions",
        "receipts",
        "sequence",
        "size",
        "timestamps",
        "values",
    )

    def __init__(self, sequence: int, partition: int | None) -> None:
        self.sequence = sequence
        self.partition = partition
        """Where all of them are to go; None for where their keys say."""
        self.partitions: list[int] | None = None
        """Where each of them goes, once they are not all to go the same way."""
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[list[tuple[str, bytes]]] | None = None
        self.ids: list[bytes] | None = None
        self.receipts: dict[int, asyncio.Future[Stored]] | None = None
        self.completion: asyncio.Future[None] | None = None
        """Who waits for the part to be complete with this batch."""
        self.size = 0
        self.header_count = 0

    @property
    def end(self) -> int:
        """The sequence number behind its last record."""
        return self.sequence + len(self.values)

    def message(self) -> RecordColumns:
        """What is sent."""
        return RecordColumns(
            self.sequence,
            self.values,
            self.timestamps,
            self.keys,
            self.headers,
            self.partition,
            self.partitions,
            None if self.ids is None else b"".join(self.ids),
            self.completion is not None,
        )

    def add(
        self,
        value: bytes,
        timestamp: int,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        partition: int | None,
        count: int,
    ) -> None:
        """One more record, for a topic with so many partitions."""
        place = len(self.values)
        if partition != self.partition and self.partitions is None:
            self.partitions = [self._where(at, count) for at in range(place)]
            self.partition = None
        self.values.append(value)
        self.timestamps.append(timestamp)
        if key is not None and self.keys is None:
            self.keys = [None] * place
        if self.keys is not None:
            self.keys.append(key)
        if headers is not None and self.headers is None:
            self.headers = [[] for _ in range(place)]
        if self.headers is not None:
            self.headers.append(list((headers or {}).items()))
            self.header_count += len(self.headers[-1])
        if self.partitions is not None:
            chosen = partition_of(key, self.sequence + place, count)
            self.partitions.append(chosen if partition is None else partition)

    def _where(self, at: int, count: int) -> int:
        """The partition of a record."""
        if self.partitions is not None:
            return self.partitions[at]
        if self.partition is not None:
            return self.partition
        key = None if self.keys is None else self.keys[at]
        return partition_of(key, self.sequence + at, count)

    def settle(self, offsets: dict[int, int], skipped: int, partitions: int) -> None:
        """Tell those who asked where their records are, as far as that is known."""
        ends = dict(offsets)
        for at in range(len(self.values)):
            where = self._where(at, partitions)
            offset = ends.get(where) if at >= skipped else None
            if offset is not None:
                ends[where] = offset + 1
            receipt = self.receipts.get(at) if self.receipts is not None else None
            if receipt is not None and not receipt.done():
                receipt.set_result(Stored(where, offset))
