"""Serves readers: lists topics, looks up offsets, and sends rows at the pace of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from aqueduct.api.handles import Sender
from aqueduct.api.waiting import try_send, wait_writable
from aqueduct.errors import MessageTooLarge
from aqueduct.ingest.errors import IngestError, UnknownTopic, refusal_of
from aqueduct.ingest.identity import History
from aqueduct.ingest.protocol import (
    FIRST_TIME,
    LAST_TIME,
    Advance,
    Done,
    Epochs,
    Fetch,
    Found,
    Listing,
    Offsets,
    Refusal,
    Topics,
)
from aqueduct.ingest.records import in_pieces
from aqueduct.ingest.server.memory import MIN_READ, release_free_memory
from aqueduct.ingest.server.metrics import Metrics
from aqueduct.ingest.server.named_readers import Move
from aqueduct.ingest.server.permissions import Grant
from aqueduct.ingest.server.read_slots import Slots
from aqueduct.ingest.server.reader_offsets import Progress
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Topic
from aqueduct.ingest.storage.base import PartitionStorage

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread."""
_TURN = 16 * 1024 * 1024
"""Bytes that a range may send before it yields its slot to waiting ranges: the size of one read
from a segment, so that little is read twice."""


class _Range:
    """The unsent rows of a request."""

    def __init__(self, part: PartitionStorage, start: int, end: int, connection: Hashable) -> None:
        self._part = part
        self._reading: Iterator[pa.RecordBatch] | None = None
        self._piece: tuple[int, bytes] | None = None
        self._source = 0
        self._fresh = 0
        self.next = start
        self.end = end
        self.connection = connection
        self.has_slot = False
        self.was_evicted = False
        self.turn = 0
        """Bytes sent since the range got its slot."""

    @property
    def has_piece(self) -> bool:
        """Whether there are rows that were read and not sent."""
        return self._piece is not None

    @property
    def size(self) -> int:
        """Bytes in memory: of the rows that come next, and of what they are cut from."""
        return self._source + (len(self._piece[1]) if self._piece is not None else 0)

    def read(self) -> int:
        """Read the next rows, and return the bytes that this took; called in a thread."""
        self._fresh = 0
        if self._reading is None:
            self._reading = in_pieces(self._batches())
        batch = next(self._reading)
        data = batch.serialize().to_pybytes()
        self._piece = batch.num_rows, data
        return self._fresh + len(data)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._part.read(self.next, self.end):
            self._source = batch.get_total_buffer_size()
            self._fresh += self._source
            yield batch

    def send(self, rows: Sender[bytes]) -> int:
        """Send the rows that were read, and return their number; 0 without credit."""
        assert self._piece is not None
        count, data = self._piece
        if not try_send(rows, data):
            return 0
        self._piece = None
        self.next += count
        self.turn += len(data)
        if self.turn >= _TURN:
            self.was_evicted = False  # the client keeps up
        return count

    def evict(self) -> None:
        """Free all memory; unsent rows are read again later."""
        self._piece = self._reading = None
        self.turn = self._source = 0


class Reading:
    """Answers the requests of readers."""

    def __init__(
        self, store: Store, metrics: Metrics, in_thread: InThread, progress: Progress
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._in_thread = in_thread
        self._progress = progress
        self._turns: WeakKeyDictionary[Hashable, asyncio.Lock] = WeakKeyDictionary()
        """By connection, the lock of its current read."""
        self._read = 0
        """Bytes read into memory since `trim` last returned some."""
        limits = store.limits
        self._slots = Slots(
            limits.max_fetches, limits.max_connection_fetches, limits.max_idle_bytes
        )

    async def trim(self) -> bool:
        """Return free memory to the operating system if much was read since the last time.

        Returns whether it did.
        """
        if self._read < MIN_READ:
            return False
        self._read = 0
        await self._in_thread(release_free_memory)
        return True

    async def answer(
        self,
        request: Topics | Epochs | Offsets | Advance,
        grant: Grant,
        owner: str = "",
        free: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer a request that has one answer; ``owner`` is that of the client's token.

        ``free`` is called once the contents of the request are not in memory any more.
        """
        reply: Sender[Any] = request.reply
        async with reply:
            outcome: Listing | History | Found | Done | Refusal
            try:
                if isinstance(request, Topics):
                    outcome = self._list(request, grant)
                elif isinstance(request, Epochs):
                    outcome = self._topic(request.topic, grant).history
                elif isinstance(request, Offsets):
                    outcome = await self._offsets(request, grant)
                else:
                    outcome = await self._advance(request, grant, owner)
            except (IngestError, OSError) as error:
                outcome = refusal_of(error)
            if isinstance(request, Advance):  # the client may take its time to receive the answer
                request.offsets, request.position = {}, None
                free()
            try:
                await reply.send(outcome)
            except MessageTooLarge:
                too_much = IngestError("the answer exceeds the largest message; request one topic")
                await reply.send(refusal_of(too_much))

    def _list(self, request: Topics, grant: Grant) -> Listing:
        if request.topic is not None:
            return Listing([self._store.info_of(self._topic(request.topic, grant))])
        return Listing([info for info in self._store.info() if grant.may_read(info.topic)])

    def _topic(self, name: str, grant: Grant) -> Topic:
        grant.check_read(name)
        return self._store.topic_to_read(name, grant.may_read)

    async def _offsets(self, request: Offsets, grant: Grant) -> Found:
        topic = self._topic(request.topic, grant)
        timestamp = min(max(request.timestamp, FIRST_TIME), LAST_TIME)  # no row has a time outside
        offsets = {
            part.number: await self._in_thread(part.offset_at, timestamp)
            for part in topic.partitions
        }
        return Found(offsets)

    async def _advance(self, request: Advance, grant: Grant, owner: str) -> Done:
        topic = self._topic(request.topic, grant)
        move = Move(request.reader, request.offsets, owner, request.position)
        await self._progress.advance(topic, move)
        return Done()

    async def fetch(
        self,
        request: Fetch,
        grant: Grant,
        connection: Hashable,
        free: Callable[[], None] = lambda: None,
    ) -> None:
        """Send the rows of a range; all ranges of a connection share its slots.

        ``free`` is called once the contents of the request are not in memory any more.
        """
        outcome: Done | Refusal = Done()
        async with request.reply as reply:
            async with request.rows as rows:
                try:
                    part = self._part(request, grant)
                    request.position = None  # checked; the client may take rows for days
                    free()
                    await self._send_rows(
                        _Range(part, request.start, request.end, connection), rows
                    )
                except (IngestError, OSError) as error:
                    outcome = refusal_of(error)
                    rows.cancel()
            await reply.send(outcome)

    def _part(self, request: Fetch, grant: Grant) -> PartitionStorage:
        topic = self._topic(request.topic, grant)
        if not 0 <= request.partition < len(topic.partitions):
            raise UnknownTopic(
                f"{topic.name} has partitions 0 to {len(topic.partitions) - 1}, "
                f"not {request.partition}"
            )
        part = topic.partitions[request.partition]
        topic.check_position(request.position)
        part.check_range(topic.name, request.start, request.end)
        return part

    async def _send_rows(self, wanted: _Range, rows: Sender[bytes]) -> None:
        """Send rows as Arrow IPC messages: read in a thread, one piece at a time."""
        slots = self._slots
        try:
            while wanted.next < wanted.end:
                if not wanted.has_slot:
                    await slots.acquire(wanted)
                if not wanted.has_piece:
                    # One read per connection: others do not queue behind all of its ranges.
                    async with self._turns.setdefault(wanted.connection, asyncio.Lock()):
                        self._read += await self._in_thread(wanted.read)
                sent = wanted.send(rows)
                self._metrics.rows_read += sent
                if not sent:
                    if not slots.free and await self.trim():
                        continue  # the client may have granted credit meanwhile
                    await self._wait_for_client(wanted, rows)
                elif wanted.turn >= _TURN and slots.is_wanted(wanted):
                    wanted.evict()
                    slots.release(wanted)
        finally:
            slots.release(wanted)
            wanted.evict()  # an error's traceback may keep the range alive

    async def _wait_for_client(self, wanted: _Range, rows: Sender[bytes]) -> None:
        """Wait for credit from the client; the slot and its memory may be evicted meanwhile."""
        self._slots.idle(wanted)
        try:
            await wait_writable(rows)
        finally:
            self._slots.busy(wanted)
