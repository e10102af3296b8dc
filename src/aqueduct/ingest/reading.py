"""What a server does for readers: says what there is, and sends rows as fast as they are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from aqueduct.channel.handles import Sender
from aqueduct.errors import MessageTooLarge
from aqueduct.ingest.faults import IngestError, UnknownTopic, refusal_of
from aqueduct.ingest.messages import (
    Advance,
    Done,
    Fetch,
    Found,
    Listing,
    Offsets,
    Refusal,
    Topics,
)
from aqueduct.ingest.metrics import Metrics
from aqueduct.ingest.partition import Partition
from aqueduct.ingest.permissions import Grant
from aqueduct.ingest.rows import in_pieces
from aqueduct.ingest.store import Store
from aqueduct.ingest.topic import Topic

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread."""


class Slots(asyncio.Semaphore):
    """Places for a few at a time, which know how many wait for one."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.waiting = 0

    async def acquire(self) -> Literal[True]:
        """Have a place."""
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


class Reading:
    """Answers the requests of readers."""

    def __init__(
        self, store: Store, metrics: Metrics, in_thread: InThread, in_writer: InThread
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._in_thread = in_thread
        self._in_writer = in_writer
        self._fetches = Slots(store.limits.max_fetches)

    async def answer(self, request: Topics | Offsets | Advance, grant: Grant) -> None:
        """Answer a request that has one answer."""
        reply: Sender[Any] = request.reply
        async with reply:
            outcome: Listing | Found | Done | Refusal
            try:
                if isinstance(request, Topics):
                    outcome = self._list(request, grant)
                elif isinstance(request, Offsets):
                    outcome = await self._offsets(request, grant)
                else:
                    outcome = await self._advance(request, grant)
            except (IngestError, OSError) as error:
                outcome = refusal_of(error)
            try:
                await reply.send(outcome)
            except MessageTooLarge:
                too_much = IngestError("there is more than fits in one answer; ask for one topic")
                await reply.send(refusal_of(too_much))

    def _list(self, request: Topics, grant: Grant) -> Listing:
        if request.topic is not None:
            return Listing([self._topic(request.topic, grant).info()])
        return Listing([info for info in self._store.info() if grant.may_read(info.topic)])

    def _topic(self, name: str, grant: Grant) -> Topic:
        grant.check_read(name)
        return self._store.topic_to_read(name, grant.may_read)

    async def _offsets(self, request: Offsets, grant: Grant) -> Found:
        topic = self._topic(request.topic, grant)
        offsets = {
            part.number: await self._in_thread(part.offset_at, request.timestamp)
            for part in topic.partitions
        }
        return Found(offsets)

    async def _advance(self, request: Advance, grant: Grant) -> Done:
        topic = self._topic(request.topic, grant)
        await self._in_writer(
            topic.advance, request.reader, request.offsets, self._store.limits.max_readers
        )
        return Done()

    async def fetch(self, request: Fetch, grant: Grant, turn: Slots) -> None:
        """Send the rows of a range; ``turn`` is what its connection has for that."""
        outcome: Done | Refusal = Done()
        async with request.reply as reply:
            async with request.rows as rows:
                try:
                    part = self._part(request, grant)
                    async with turn, self._fetches:
                        await self._send_rows(part, request, rows, turn)
                except (IngestError, OSError) as error:
                    outcome = refusal_of(error)
                    rows.cancel()
            await reply.send(outcome)

    def _part(self, request: Fetch, grant: Grant) -> Partition:
        topic = self._topic(request.topic, grant)
        if not 0 <= request.partition < len(topic.partitions):
            raise UnknownTopic(
                f"{topic.name} has partitions 0 to {len(topic.partitions) - 1}, "
                f"not {request.partition}"
            )
        part = topic.partitions[request.partition]
        part.check_range(topic.name, request.start, request.end)
        return part

    async def _send_rows(
        self, part: Partition, request: Fetch, rows: Sender[bytes], turn: Slots
    ) -> None:
        """Rows as Arrow IPC messages, read in a thread one at a time."""
        reading = in_pieces(part.read(request.start, request.end))

        def more() -> tuple[int, bytes] | None:
            batch = next(reading, None)
            return None if batch is None else (batch.num_rows, batch.serialize().to_pybytes())

        while (found := await self._in_thread(more)) is not None:
            count, data = found
            await self._send_patiently(rows, data, turn)
            self._metrics.rows_read += count

    async def _send_patiently(self, rows: Sender[bytes], data: bytes, turn: Slots) -> None:
        """Send to a reader who may take its time, unless others wait for its slot."""
        patience = self._store.limits.reader_patience
        while True:
            try:
                async with asyncio.timeout(patience):
                    await rows.send(data)
            except TimeoutError:  # and nothing was sent
                if turn.waiting or self._fetches.waiting:
                    raise IngestError(
                        f"no rows were taken for {patience:g} s, and others wait "
                        "(reader_patience); ask again for those that are missing"
                    ) from None
            else:
                return
