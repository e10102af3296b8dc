"""What a producer has been given and is not yet known to be stored, and who waits for that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping

from aqueduct.ingest.client.batch import Batch, Stored
from aqueduct.ingest.client.sending import BATCH_BYTES, BATCH_RECORDS
from aqueduct.ingest.protocol import MAX_HEADERS, MAX_MESSAGE_HEADERS


class Outbox:
    """The records of a producer, in batches, from when they are given until they are stored."""

    def __init__(self) -> None:
        self.partitions = 0
        """How many partitions the topic has, once it is open."""
        self.committed = 0
        """The number of the last record that is stored; the first record has number 1."""
        self._next = 1
        self._buffered = 0
        self._filling: Batch | None = None
        self._full = asyncio.Event()
        self._batches: deque[Batch] = deque()
        self._sent = 0
        """How many of these were sent over the connection of now."""
        self._room: deque[asyncio.Future[None]] = deque()
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: BaseException | None = None
        self._opened: asyncio.Future[None] | None = None

    def _add(
        self,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        partition: int | None,
        timestamp: float | None,
        size: int,
        row_id: bytes | None,
    ) -> None:
        batch = self._filling
        if batch is None:
            batch = self._filling = Batch(self._next, partition)
            self._full.set()
        time_given = round((time.time() if timestamp is None else timestamp) * 1e6)
        batch.add(value, time_given, key, headers, partition, self.partitions)
        if row_id is not None:
            if batch.ids is None:
                batch.ids = []
            batch.ids.append(row_id)
        batch.size += size
        self._buffered += size
        self._next += 1
        if (
            len(batch.values) >= BATCH_RECORDS
            or batch.size >= BATCH_BYTES
            or batch.header_count > MAX_MESSAGE_HEADERS - MAX_HEADERS
        ):
            self._seal()

    def _seal(self) -> None:
        """What was collected goes as it is."""
        if self._filling is not None:
            self._batches.append(self._filling)
            self._filling = None
            self._full.set()

    async def _wait_for_room(self) -> None:
        if self._error is not None:
            raise self._error
        self._seal()
        turn = asyncio.get_running_loop().create_future()
        self._room.append(turn)
        await turn

    def _append(self, batch: Batch) -> None:
        """A batch that is behind all others."""
        batch.sequence = self._next
        self._next += len(batch.values)
        self._buffered += batch.size
        self._batches.append(batch)
        self._full.set()

    def _settle(self, batch: Batch, offsets: dict[int, int], skipped: int = 0) -> None:
        """A batch is stored."""
        self.committed = batch.end - 1
        self._buffered -= batch.size
        if batch.receipts is not None:
            batch.settle(offsets, skipped, self.partitions)
        if batch.completion is not None and not batch.completion.done():
            batch.completion.set_result(None)
        while self._flushes and self._flushes[0][0] <= self.committed:
            done = self._flushes.popleft()[1]
            if not done.done():
                done.set_result(None)
        while self._room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Nothing more will be stored."""
        if self._error is None:
            self._error = error
        waiting: list[asyncio.Future[None] | asyncio.Future[Stored]] = [*self._room]
        waiting += [done for _, done in self._flushes]
        if self._opened is not None:
            waiting.append(self._opened)
        for batch in (*self._batches, *([self._filling] if self._filling else [])):
            waiting += (batch.receipts or {}).values()
            if batch.completion is not None:
                waiting.append(batch.completion)
        for future in waiting:
            if not future.done():
                future.set_exception(self._error)
                with contextlib.suppress(BaseException):
                    future.exception()  # whoever waits gets it; if nobody does, nobody is warned
        self._room.clear()
        self._flushes.clear()
