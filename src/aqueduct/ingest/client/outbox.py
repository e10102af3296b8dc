"""The records of a producer that are not known to be stored, and the callers that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from aqueduct.ingest.partitioning import partition_of
from aqueduct.ingest.protocol import MAX_HEADERS, MAX_MESSAGE_HEADERS
from aqueduct.ingest.records import RecordColumns

BATCH_RECORDS = 2_048
BATCH_BYTES = 256 * 1024
"""A batch of this size is sealed at once; a smaller one when the event loop sends it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a record is stored."""

    partition: int
    offset: int | None
    """None if the record was stored before the producer was opened, or before it reconnected."""


class Batch:
    """The records of one message, and the futures of the callers that wait for them."""

    __slots__ = ("columns", "completion", "header_count", "ids", "receipts", "size")

    def __init__(self, columns: RecordColumns, size: int = 0) -> None:
        self.columns = columns
        self.size = size
        """Bytes of memory."""
        self.header_count = 0
        self.ids: list[bytes] = []
        """Row ids of added records, until the batch is sealed."""
        self.receipts: dict[int, asyncio.Future[Stored]] | None = None
        """Futures by index of the record."""
        self.completion: asyncio.Future[None] | None = None
        """Done when the part of the job is complete."""

    @property
    def end(self) -> int:
        """The sequence number after the last record."""
        return self.columns.sequence + len(self.columns.values)

    def add(
        self,
        value: bytes,
        timestamp: int,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        partition: int | None,
        count: int,
    ) -> None:
        """Add a record for a topic with ``count`` partitions."""
        columns = self.columns
        values = columns.values
        if partition != columns.partition and columns.partitions is None:
            columns.partitions = columns.partitions_at(range(len(values)), count)
            columns.partition = None
        if columns.partitions is not None:
            chosen = partition_of(key, columns.sequence + len(values), count)
            columns.partitions.append(chosen if partition is None else partition)
        if key is not None and columns.keys is None:
            columns.keys = [None] * len(values)
        if columns.keys is not None:
            columns.keys.append(key)
        if headers is not None and columns.headers is None:
            columns.headers = [[] for _ in values]
        if columns.headers is not None:
            columns.headers.append(list((headers or {}).items()))
            self.header_count += len(columns.headers[-1])
        values.append(value)
        columns.timestamps.append(timestamp)

    def settle(self, offsets: Mapping[int, int], skipped: int, partitions: int) -> None:
        """Resolve the receipts: the first ``skipped`` records had been stored before."""
        assert self.receipts is not None
        ends = dict(offsets)
        indices = range(len(self.columns.values))
        for at, partition in enumerate(self.columns.partitions_at(indices, partitions)):
            offset = ends.get(partition) if at >= skipped else None
            if offset is not None:
                ends[partition] = offset + 1
            receipt = self.receipts.get(at)
            if receipt is not None and not receipt.done():
                receipt.set_result(Stored(partition, offset))


class Outbox:
    """Collects records into batches, and keeps each batch until the server acknowledges it."""

    def __init__(self, max_buffered: int) -> None:
        self.partitions = 0
        """The number of partitions of the topic, once it is open."""
        self.committed = 0
        """The sequence number of the last stored record, counted from 1."""
        self.next_sequence = 1
        self.buffered = 0
        """Bytes of memory of all records."""
        self.max_buffered = max_buffered
        self.error: BaseException | None = None
        """The error that stopped the producer, if any."""
        self._filling: Batch | None = None
        self._changed = asyncio.Event()
        """Set when there may be something to send."""
        self._batches: deque[Batch] = deque()
        self._sent = 0
        """The number of batches sent over the current connection."""
        self._room: deque[asyncio.Future[None]] = deque()
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()

    # Records

    def add(
        self,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        partition: int | None,
        timestamp: float | None,
        size: int,
        row_id: bytes | None,
    ) -> None:
        """Add a record to the batch that is being filled."""
        batch = self._filling
        if batch is None:
            columns = RecordColumns(self.next_sequence, [], [], partition=partition)
            batch = self._filling = Batch(columns)
            self._changed.set()
        micros = round((time.time() if timestamp is None else timestamp) * 1e6)
        batch.add(value, micros, key, headers, partition, self.partitions)
        if row_id is not None:
            batch.ids.append(row_id)
        batch.size += size
        self.buffered += size
        self.next_sequence += 1
        if (
            batch.size >= BATCH_BYTES
            or len(batch.columns.values) >= BATCH_RECORDS
            or batch.header_count > MAX_MESSAGE_HEADERS - MAX_HEADERS
        ):
            self.seal()

    def append(self, batch: Batch) -> None:
        """Append a whole batch after all records."""
        self.seal()
        batch.columns.sequence = self.next_sequence
        self.next_sequence += len(batch.columns.values)
        self.buffered += batch.size
        self._batches.append(batch)
        self._changed.set()

    def seal(self) -> None:
        """Make the batch that is being filled ready to send."""
        batch, self._filling = self._filling, None
        if batch is not None:
            if batch.ids:
                batch.columns.ids = b"".join(batch.ids)
                batch.ids.clear()
            self._batches.append(batch)
            self._changed.set()

    # Waiting

    async def wait_for_room(self, size: int) -> None:
        """Wait until ``size`` bytes fit, or nothing is buffered; raise the error if it failed."""
        while self.buffered and self.buffered + size > self.max_buffered:
            self.check()
            self.seal()
            turn = asyncio.get_running_loop().create_future()
            self._room.append(turn)
            await turn
        self.check()

    def check(self) -> None:
        """Raise the error, if it failed."""
        if self.error is not None:
            raise self.error

    async def flush(self) -> None:
        """Wait until all records are stored."""
        self.check()
        last = self.next_sequence - 1
        if self.committed < last:
            done = asyncio.get_running_loop().create_future()
            self._flushes.append((last, done))
            self.seal()
            await done

    async def receipt(self) -> Stored:
        """Wait until the record that was added last is stored; return where."""
        batch = self._filling or self._batches[-1]
        receipt: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        if batch.receipts is None:
            batch.receipts = {}
        batch.receipts[len(batch.columns.values) - 1] = receipt
        return await receipt

    # The connection

    def begin(self, committed: int) -> None:
        """Continue after the last record that is stored under the producer's id."""
        self.committed = committed
        self.next_sequence = committed + 1

    def resend(self, committed: int, *, is_done: bool) -> None:
        """Retransmit the records that are not stored; none of them if ``is_done``."""
        self._sent = 0
        while self._batches:
            batch = self._batches[0]
            # A batch that completes a part is never known to be stored.
            if not is_done and (batch.columns.is_last or batch.end - 1 > committed):
                break
            self._settle(self._batches.popleft(), {}, 0)

    async def next_batch(self) -> RecordColumns:
        """Wait for the next batch to send over this connection."""
        while self._sent == len(self._batches):
            self._changed.clear()
            if self._filling is None:
                await self._changed.wait()
            if self._filling is not None and self._sent == len(self._batches):
                await asyncio.sleep(0)  # records sent in this iteration of the loop join the batch
                self.seal()
        batch = self._batches[self._sent]
        self._sent += 1
        return batch.columns

    def acknowledge(self, sequence: int, offsets: Mapping[int, int], skipped: int) -> bool:
        """Settle the oldest batch; return False if it does not begin with ``sequence``."""
        if not self._sent or sequence != self._batches[0].columns.sequence:
            return False
        self._sent -= 1
        self._settle(self._batches.popleft(), offsets, skipped)
        return True

    def _settle(self, batch: Batch, offsets: Mapping[int, int], skipped: int) -> None:
        self.committed = batch.end - 1
        self.buffered -= batch.size
        if batch.receipts is not None:
            batch.settle(offsets, skipped, self.partitions)
        if batch.completion is not None:
            _resolve(batch.completion)
        while self._flushes and self._flushes[0][0] <= self.committed:
            _resolve(self._flushes.popleft()[1])
        while self._room:
            _resolve(self._room.popleft())

    def fail(self, error: BaseException) -> None:
        """Fail every call that waits, now and from now on, with the first error."""
        if self.error is None:
            self.error = error
        waiting: list[asyncio.Future[None] | asyncio.Future[Stored]] = [*self._room]
        waiting += [done for _, done in self._flushes]
        for batch in (*self._batches, *([self._filling] if self._filling else [])):
            waiting += (batch.receipts or {}).values()
            if batch.completion is not None:
                waiting.append(batch.completion)
        for future in waiting:
            fail(future, self.error)
        self._room.clear()
        self._flushes.clear()


def fail(future: asyncio.Future[None] | asyncio.Future[Stored], error: BaseException) -> None:
    """Set the error of a future without a warning if no caller waits for it any more."""
    if not future.done():
        future.set_exception(error)
        with contextlib.suppress(BaseException):
            future.exception()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
