"""The stream of one producer: its records are stored and acknowledged in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from aqueduct.api.handles import Receiver, Sender
from aqueduct.api.waiting import wait_readable
from aqueduct.errors import ChannelError, EndOfChannel, MessageError, WouldBlock
from aqueduct.ingest.dedup.scope import ID_SIZE, Attempt, WriteScope
from aqueduct.ingest.errors import IngestError, RefusedRecords
from aqueduct.ingest.protocol import (
    FIRST_TIME,
    LAST_TIME,
    MAX_SEQUENCE,
    Answer,
    Committed,
    Refusal,
)
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.committer import Committer
from aqueduct.ingest.server.decoding import Undecoded
from aqueduct.ingest.server.topic import Submission, Topic, superseded

_AHEAD = 64
"""Messages of one producer that may wait to be stored or acknowledged."""

_Entry: TypeAlias = "tuple[int, int, Submission, asyncio.Future[None]] | Refusal | None"
"""First sequence number, count, submission and future of records; or the last answer."""


class Stream:
    """Receives the records of a producer, and acknowledges them once they are stored."""

    def __init__(
        self,
        topic: Topic,
        producer_id: str,
        records: Receiver[bytes],
        answers: Sender[Answer],
        committer: Committer,
        max_record: int,
        scope: WriteScope | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """``turn``: the lock that a stream of the connection holds while it decodes a message."""
        self._turn = turn or asyncio.Lock()
        self._scope = scope
        self.attempt = None if scope is None else Attempt(scope)
        """The attempt of a part, with ``scope``; open while the stream is."""
        self._topic = topic
        self._producer_id = producer_id
        self._records = records
        self._answers = answers
        self._committer = committer
        self._max_record = max_record
        self._queue: asyncio.Queue[_Entry] = asyncio.Queue()
        """Pending answers, in order; None ends the stream."""
        self._ahead = asyncio.Semaphore(_AHEAD)
        self._taking: asyncio.Task[None] | None = None
        self._last: asyncio.Future[None] | None = None
        """Done when all received records are stored or rejected, whether or not acknowledged."""
        self._is_superseded = False

    async def run(self) -> None:
        """Serve the producer until it finishes or is rejected; raise if its connection is lost."""
        if not self._is_superseded:
            self._taking = asyncio.create_task(self._take())
            self._taking.add_done_callback(lambda _: self._queue.put_nowait(None))
        try:
            await self._answer()
        finally:
            if self._taking is not None:
                self._taking.cancel()
                await asyncio.wait((self._taking,))
        if self._taking is not None and not self._taking.cancelled():
            self._taking.result()

    def supersede(self) -> None:
        """Stop receiving, because another producer took over the id."""
        if self._is_superseded:
            return
        self._is_superseded = True
        if self._taking is not None:
            self._taking.cancel()
        self._queue.put_nowait(Refusal(RefusedRecords.code, superseded(self._producer_id)))

    @property
    def is_settled(self) -> bool:
        """Whether all received records are stored or rejected."""
        return self._last is None or self._last.done()

    async def settled(self) -> None:
        """Wait until all received records are stored or rejected."""
        while self._last is not None and not self._last.done():
            await asyncio.wait((self._last,))

    def when_settled(self, call: Callable[[], object]) -> None:
        """Call a function when all received records are stored or rejected."""
        assert self._last is not None
        self._last.add_done_callback(lambda _: call())

    async def _take(self) -> None:
        try:
            while True:
                await self._ahead.acquire()
                await self._take_next()
        except EndOfChannel:
            pass
        except IngestError as fault:
            self._queue.put_nowait(Refusal(fault.code, str(fault)))
        except MessageError as error:  # unlikely for a channel of bytes
            self._queue.put_nowait(Refusal(RefusedRecords.code, f"invalid records: {error}"))
        except ChannelError:
            pass  # the producer has disconnected; its received records are stored

    async def _take_next(self) -> None:
        while True:
            async with self._turn:
                # Free the message before the next one is received, to hold only one in memory.
                await self._committer.wait_for_room()
                try:
                    payload = self._records.receive_nowait()
                except WouldBlock:
                    pass
                else:
                    await self._submit(Undecoded(payload))
                    return
            await wait_readable(self._records)

    async def _submit(self, undecoded: Undecoded) -> None:
        """Wait for room for the decoded message, then decode and submit it."""
        room = await self._committer.reserve(undecoded.size)
        try:
            message = undecoded.records()
            self._committer.resize(room, undecoded.size)
            check_records(message, len(self._topic.partitions), self._max_record)
            check_ids(message, self._scope)
        except BaseException:
            self._committer.free(room)
            raise
        submission = Submission(self._producer_id, message, scope=self._scope, attempt=self.attempt)
        self._last = self._committer.submit(self._topic, submission, room)
        self._queue.put_nowait((message.sequence, len(message.values), submission, self._last))

    async def _answer(self) -> None:
        while (entry := await self._queue.get()) is not None:
            if isinstance(entry, Refusal):
                await self._answers.send(entry)
                return
            sequence, count, submission, done = entry
            await asyncio.wait((done,))  # unlike `await done`, does not cancel the commit
            if submission.fault is not None:
                fault = submission.fault
                await self._answers.send(Refusal(fault.code, str(fault)))
                return
            answer = Committed(sequence, count, submission.offsets, submission.skipped)
            await self._answers.send(answer)
            self._ahead.release()


def check_ids(records: RecordColumns, scope: WriteScope | None) -> None:
    """Raise `RefusedRecords` for missing ids with ``scope``, and for ids without it."""
    if scope is None:
        if records.ids is not None or records.is_last:
            raise RefusedRecords("row ids are only valid for a producer with a scope")
        return
    count, size = len(records.values), len(records.ids or b"")
    if size != count * ID_SIZE:
        raise RefusedRecords(
            f"{count} rows of a job have {size} bytes of ids, not {ID_SIZE} for each"
        )


def check_records(records: RecordColumns, partitions: int, max_record: int) -> None:
    """Raise `RefusedRecords` for records that cannot be stored."""
    count = len(records.values)
    if records.sequence < 1:
        raise RefusedRecords(f"sequence numbers begin at 1, not at {records.sequence}")
    if records.sequence > MAX_SEQUENCE:
        raise RefusedRecords(f"sequence number {records.sequence} exceeds {MAX_SEQUENCE}")
    columns = (records.timestamps, records.keys, records.headers, records.partitions)
    if any(column is not None and len(column) != count for column in columns):
        raise RefusedRecords("the columns of records are not all of the same length")
    if records.partition is not None and records.partitions is not None:
        raise RefusedRecords("records go to one partition, or each to its own, not both")
    chosen = records.partitions or ([] if records.partition is None else [records.partition])
    for number in (min(chosen), max(chosen)) if chosen else ():
        if not 0 <= number < partitions:
            raise RefusedRecords(f"there is no partition {number}; there are {partitions}")
    if (
        records.keys is None
        and records.headers is None
        and count
        and max(map(len, records.values)) <= max_record
        and min(records.timestamps) >= FIRST_TIME
        and max(records.timestamps) <= LAST_TIME
    ):
        return  # fast path; otherwise find the invalid record
    for at, value in enumerate(records.values):
        if not FIRST_TIME <= records.timestamps[at] <= LAST_TIME:
            raise RefusedRecords(
                f"record {records.sequence + at} has a timestamp outside of the years 1 to 9999; "
                "give microseconds since 1970"
            )
        size = len(value)
        if records.keys is not None:
            size += len(records.keys[at] or b"")
        if records.headers is not None:
            size += sum(len(name) + len(text) for name, text in records.headers[at])
        if size > max_record:
            raise RefusedRecords(
                f"record {records.sequence + at} has {size:,} bytes, more than {max_record:,} "
                "(max_record); store larger objects elsewhere, and send references to them"
            )
