"""The producer: sends records to a topic, and keeps them until they are stored."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import cast

from aqueduct.api.client import ClientConnection, connect
from aqueduct.api.handles import Receiver, Sender, channel
from aqueduct.errors import ChannelError, ConnectError
from aqueduct.ingest.client.batch import Batch, Stored
from aqueduct.ingest.client.connection import (
    FATAL,
    GIVE_UP_AFTER,
    LOST,
    MAX_PAUSE,
    MIN_PAUSE,
    Client,
    gave_up,
    in_words,
    patience_of,
)
from aqueduct.ingest.client.outbox import Outbox
from aqueduct.ingest.client.sending import OVERHEAD, Columns, check_id, size_of_record
from aqueduct.ingest.dedup.scope import Fingerprint, ScopeFault, WriteScope, fingerprint_of
from aqueduct.ingest.errors import IngestError, RefusedRecords, refusal_error
from aqueduct.ingest.identity import TopicPosition
from aqueduct.ingest.protocol import Answer, Committed, Open, Opened, Refusal, Request
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.permissions import HEADER
from aqueduct.ingest.settings import ATTENTIVE
from aqueduct.security import Trust

MAX_BUFFERED = 16 * 1024 * 1024


class Producer(Outbox):
    """Sends records to a topic of an ingest server.

    ::

        async with ingest.Producer("localhost:4434", "telemetry", producer_id="sensor-7") as p:
            await p.send(b"21.5", key=b"kitchen")
            await p.flush()  # now it is stored

    What was sent and is not yet known to be stored is kept, and sent again over a new connection
    when the old one is lost; the server knows by its number what it has. A producer that starts
    anew with the same id goes on behind the last record that is stored: `committed` tells how many
    that are, so that a source that can be read again is read from there.

    If the topic was recreated, or restored from a copy that lacks acknowledged records, a producer
    that reconnects fails with `TopicReplaced`, and so does a new producer that gets the `position`
    of an earlier one as ``position``.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        *,
        producer_id: str | None = None,
        trust: Trust | None = None,
        token: str | None = None,
        partitions: int | None = None,
        max_buffered: int = MAX_BUFFERED,
        give_up_after: float = GIVE_UP_AFTER,
        scope: WriteScope | None = None,
        client: Client | None = None,
        position: TopicPosition | None = None,
        after: int | None = None,
    ) -> None:
        """Nothing is done before it is opened.

        ``partitions`` is for a topic that is new. ``max_buffered`` bytes of records may be under
        way; then `send` waits. A server that cannot be reached for ``give_up_after`` seconds makes
        everything that waits fail.

        With ``scope`` records are told apart by their ids, not by their numbers: for a source whose
        parts are read again from their beginning, in any order. With ``client`` it has no
        connection of its own; trust and token are the client's.

        ``position`` is the `position` of an earlier producer: if the topic lacks the records before
        it, opening raises `TopicReplaced`. ``after``, with ``scope``, is a step that the job must
        have ended in the topic; otherwise opening raises `TopicReplaced`, too.
        """
        if scope is not None:
            if producer_id is not None:
                raise ValueError("the producer_id of a producer with scope=… follows from that")
            try:
                scope.check()
            except ScopeFault as fault:
                raise RefusedRecords(str(fault)) from None
            producer_id = scope.producer_id
        if client is not None and client.address != address:
            raise ValueError(f"a client of {client.address} is no client of {address}")
        super().__init__()
        self.topic = topic
        self.scope = scope
        self._client = client
        self.producer_id = producer_id or f"producer-{uuid.uuid4().hex}"
        self._instance = uuid.uuid4().hex
        """Who this is among those that have, or had, the same id."""
        self._address = address
        self._trust = trust or Trust()
        self._headers = {HEADER: f"Bearer {token}"} if token else None
        self._asked_partitions = partitions
        self._max_buffered = max_buffered
        self._give_up_after = give_up_after
        self.max_record = 0
        self.is_done = False
        """With ``scope``: whether nothing is to be sent, since the part is complete, or the step is
        over; what is sent all the same goes nowhere."""
        self._expected = position
        self._after = after
        self._topic_id = ""
        self._epoch = ""
        self._stored_last: tuple[str, dict[int, int]] | None = None
        """The last acknowledged records: their epoch, and by partition their first offset."""
        self.fingerprint = Fingerprint()
        """With ``scope``: the fingerprint of all rows passed to it, including rows that need not be
        sent. Pass the sum over all parts to `Client.end_step`."""
        self.reconnects = 0
        self.trouble = ""
        """Why there is no connection now, as far as that is known."""
        self._task: asyncio.Task[None] | None = None
        self._has_opened = False
        self._is_closed = False

    # Opening and closing

    async def open(self) -> None:
        """Connect, and learn what is stored; ``async with`` does it."""
        if self._task is not None:
            raise IngestError("this producer was opened already; make another one")
        self._opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        try:
            await self._opened
        except BaseException:
            await self.abandon()  # else it would go on trying, and take the id from the next
            raise

    async def close(self) -> None:
        """Wait until everything is stored, then leave; raises if something cannot be."""
        if self._is_closed and self.committed >= self._next - 1:
            return
        try:
            await self.flush()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Leave at once; what is not stored by now may or may not be."""
        if self._task is not None:
            self._is_closed = True
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._was_open = False
            self._fail(IngestError("this producer was closed"))

    async def __aenter__(self) -> Producer:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abandon()

    @property
    def is_connected(self) -> bool:
        """Whether there is a server that takes records now."""
        return self._was_open

    @property
    def position(self) -> TopicPosition | None:
        """The acknowledged position, for the next producer; None before this one is open."""
        if not self._topic_id:
            return self._expected
        if self._stored_last is None:
            known = self._expected
            return known if known is not None else TopicPosition(self._topic_id, "", {})
        # A commit group is stored atomically: its first record implies the rest, and all before it.
        epoch, firsts = self._stored_last
        return TopicPosition(self._topic_id, epoch, {part: at + 1 for part, at in firsts.items()})

    # Sending

    async def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
        sequence: int | None = None,
        id: bytes | None = None,
    ) -> None:
        """Send a record; returns when there is room for it, and `flush` tells that it is stored.

        Records with the same key go to the same partition, unless ``partition`` says where.
        ``sequence`` is for a source that is read again after a crash: the number of the record in
        it, from 1. One that is stored already is not sent again. ``id`` is for a producer with
        ``scope``: 20 bytes that tell the record from all others of its part.
        """
        if sequence is not None and not self._is_next(sequence):
            return
        if self._opened is None or self._error is not None:
            self._check_usable()
        size = size_of_record(value, key, headers, partition, timestamp)
        if size > self.max_record or partition is not None:
            self._check_fits(size, partition)
        if id is not None or self.scope is not None:
            check_id(id, self.scope is not None)
            if id is not None and self.is_done:
                self.fingerprint += fingerprint_of(id)
                return
        size += OVERHEAD
        while self._buffered and self._buffered + size > self._max_buffered:
            await self._wait_for_room()
        if self._error is not None:
            raise self._error
        self._add(value, key, headers, partition, timestamp, size, id)
        if id is not None:
            self.fingerprint += fingerprint_of(id)

    async def send_and_wait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Stored:
        """Send a record, wait until it is stored, and tell where."""
        if self.scope is not None:
            raise IngestError("a producer with scope=… does not learn where records are: use send")
        await self.send(value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        batch = self._filling or self._batches[-1]
        receipt: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        if batch.receipts is None:
            batch.receipts = {}
        batch.receipts[len(batch.values) - 1] = receipt
        return await receipt

    async def flush(self) -> None:
        """Wait until every record that was sent is stored; raises if one cannot be."""
        if self._error is not None:
            raise self._error
        last = self._next - 1
        if self.committed >= last:
            return
        done = asyncio.get_running_loop().create_future()
        self._flushes.append((last, done))
        self._seal()
        await done

    async def send_many(
        self,
        values: Sequence[bytes],
        *,
        ids: Sequence[bytes] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[float] | None = None,
        times: Sequence[int] | None = None,
        partition: int | None = None,
    ) -> None:
        """Send many records, given as columns: the same as `send` for each, and much faster.

        ``times`` are whole microseconds since 1970, where ``timestamps`` are too coarse.
        If it raises, some of them may have been sent.
        """
        self._check_usable()
        for piece in Columns(values, ids, keys, headers, timestamps, times).pieces():
            piece.check(self.max_record, self.scope is not None)
            self._check_fits(0, partition)
            if piece.ids is not None:
                self.fingerprint += fingerprint_of(b"".join(piece.ids))
            if self.is_done:
                continue
            for batch in piece.batches(partition):
                while self._buffered and self._buffered + batch.size > self._max_buffered:
                    await self._wait_for_room()
                if self._error is not None:
                    raise self._error
                self._seal()
                self._append(batch)
                await asyncio.sleep(0)  # so that it goes while the next one is made

    async def complete(self) -> None:
        """Wait until every record that was sent is stored, and the part known to be complete.

        From then on any other attempt of the part is told that it `is_done`.
        """
        if self.scope is None:
            raise IngestError("only a producer with scope=… has a part to complete")
        self._check_usable()
        # Not before all is stored: whoever says that a part is complete has to know it.
        await self.flush()
        if self.is_done:
            return
        batch = Batch(self._next, None)
        batch.completion = asyncio.get_running_loop().create_future()
        self._append(batch)
        await batch.completion
        self.is_done = True

    def _is_next(self, sequence: int) -> bool:
        if sequence > self._next:
            raise ValueError(f"record {sequence} was given where {self._next} is next")
        return sequence == self._next

    def _check_usable(self) -> None:
        if self._opened is None:
            raise IngestError("open the producer first: async with Producer(…) as producer")
        if self._error is not None:
            raise self._error

    def _check_fits(self, size: int, partition: int | None) -> None:
        if size > self.max_record:
            raise IngestError(f"a record of {size:,} bytes; the server takes {self.max_record:,}")
        if partition is not None and not 0 <= partition < self.partitions:
            raise IngestError(f"topic {self.topic} has partitions 0 to {self.partitions - 1}")

    # The connection

    async def _run(self) -> None:
        """Keep a connection, until something is wrong that another one would not mend."""
        pause = MIN_PAUSE
        lost_at = time.monotonic()
        while True:
            try:
                await self._converse()
            except FATAL as error:
                self._fail(error)
                return
            except LOST as error:
                self.trouble = in_words(self._address, error)
                if self._was_open:
                    self._was_open = False
                    self.reconnects += 1
                    pause, lost_at = MIN_PAUSE, time.monotonic()
                if time.monotonic() - lost_at > self._give_up_after:
                    self._fail(gave_up(self._address, self._give_up_after, error))
                    return
            except Exception as error:  # noqa: BLE001 -- whoever waits has to know, whatever it is
                self._fail(error)
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, MAX_PAUSE)

    _was_open = False

    def _connection(self) -> AbstractAsyncContextManager[ClientConnection[Request]]:
        """The client's connection, or one that ends when this is left."""
        patience = patience_of(self._give_up_after)
        if self._client is not None:
            return self._client.connection(patience)
        return connect(
            self._address,
            Request,
            trust=self._trust,
            headers=self._headers,
            timeout=patience,
            options=ATTENTIVE,
        )

    async def _converse(self) -> None:
        """One connection: say hello, send again what is not stored, then whatever comes."""
        async with self._connection() as connection:
            records, answers = await self._begin(connection)
            async with records, answers:
                sending = asyncio.create_task(self._send_batches(records))
                hearing = asyncio.create_task(self._hear(answers))
                try:
                    await asyncio.wait((sending, hearing), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    sending.cancel()
                    hearing.cancel()
                    await asyncio.wait((sending, hearing))
                for task in (hearing, sending):
                    if not task.cancelled():
                        task.result()

    async def _begin(
        self, connection: ClientConnection[Request]
    ) -> tuple[Sender[RecordColumns], Receiver[Answer]]:
        records, incoming = channel(RecordColumns)
        outgoing, answers = channel(Answer)
        request = Open(
            self.topic,
            self.producer_id,
            cast("Receiver[bytes]", incoming),  # the receiver decodes the messages itself
            outgoing,
            self._asked_partitions,
            self._instance,
            self.committed if self._has_opened else None,
            self.scope,
            self.position,
            self._after,
        )
        try:
            try:
                await connection.entrypoint.send(request)
            except BaseException:
                incoming.close()
                outgoing.cancel()
                raise
            hello = await answers.receive()
            if isinstance(hello, Refusal):
                raise refusal_error(hello)
            if not isinstance(hello, Opened):
                raise IngestError(f"{self._address} answered with something else than was asked")
            self._greeted(hello)
        except BaseException:  # the connection may go on for others
            records.cancel()
            answers.close()
            raise
        return records, answers

    def _greeted(self, hello: Opened) -> None:
        assert self._opened is not None
        self._topic_id, self._epoch = hello.topic_id, hello.epoch
        self.partitions = hello.partitions
        self.max_record = hello.max_record
        self._was_open = True
        self.trouble = ""
        self.is_done = self.is_done or hello.is_done
        if not self._has_opened:
            self._has_opened = True
            self.committed = hello.committed
            self._next = hello.committed + 1
            if not self._opened.done():
                self._opened.set_result(None)
        elif self.scope is not None:
            pass  # ids tell what is stored
        elif hello.committed < self.committed:
            raise IngestError(
                f"{self._address} has stored {hello.committed} records of {self.producer_id!r}, "
                f"and had stored {self.committed}: it has lost some, or is another server"
            )
        elif hello.committed >= self._next:
            raise IngestError(
                f"{self._address} has stored {hello.committed} records of {self.producer_id!r}, "
                f"and only {self._next - 1} were sent: another producer uses the same id"
            )
        self._sent = 0
        while self._batches and (hello.is_done or self._batches[0].end - 1 <= hello.committed):
            self._settle(self._batches.popleft(), {})

    async def _send_batches(self, records: Sender[RecordColumns]) -> None:
        while True:
            while self._sent < len(self._batches):
                batch = self._batches[self._sent]
                self._sent += 1
                try:
                    await records.send(batch.message())
                except ChannelError:
                    await asyncio.Event().wait()  # the answers say why, or end as well
            self._full.clear()
            if self._filling is None:
                await self._full.wait()
            if self._filling is not None and self._sent == len(self._batches):
                await asyncio.sleep(0)  # whoever sends in this turn is in
                self._seal()

    async def _hear(self, answers: Receiver[Answer]) -> None:
        async for answer in answers:
            if isinstance(answer, Refusal):
                raise refusal_error(answer)
            if isinstance(answer, Committed):
                if not self._sent or answer.sequence != self._batches[0].sequence:
                    raise IngestError(f"{self._address} answered for records that were not sent")
                batch = self._batches.popleft()
                self._sent -= 1
                if answer.offsets:
                    self._stored_last = self._epoch, answer.offsets
                self._settle(batch, answer.offsets, answer.skipped)
        raise ConnectError("the server closed the channel")
