"""The producer: sends records to a topic, and keeps them until they are stored."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from aqueduct.api.channels import channel
from aqueduct.api.client import ClientConnection
from aqueduct.api.handles import Receiver, Sender
from aqueduct.errors import ChannelError, ConnectError
from aqueduct.ingest.client.connection import (
    GIVE_UP_AFTER,
    LOST,
    Client,
    Retry,
    accepted,
    connect_to,
    explain,
)
from aqueduct.ingest.client.outbox import Batch, Outbox, Stored, fail
from aqueduct.ingest.client.sending import (
    OVERHEAD,
    batches,
    check_id,
    check_size,
    checked,
    size_of_record,
)
from aqueduct.ingest.dedup.scope import Fingerprint, ScopeFault, WriteScope, fingerprint_of
from aqueduct.ingest.errors import IngestError, RefusedRecords
from aqueduct.ingest.identity import TopicPosition
from aqueduct.ingest.protocol import Answer, Committed, Open, Opened, Request
from aqueduct.ingest.records import RecordColumns
from aqueduct.security import Trust

MAX_BUFFERED = 16 * 1024 * 1024
"""Bytes of unacknowledged records, by default."""


class Producer:
    """Sends records to a topic of an ingest server.

    ::

        async with ingest.Producer("localhost:4434", "telemetry", producer_id="sensor-7") as p:
            await p.send(b"21.5", key=b"kitchen")
            await p.flush()  # now it is stored

    The producer keeps every record until the server acknowledges it. After a lost connection it
    reconnects and retransmits; the server deduplicates by sequence number. A new producer with the
    same id continues after the last stored record: `committed` is the number of records to skip in
    a source that is read again from its start.

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
        """Create the producer; `open` connects it.

        - ``producer_id``: the id by which the server deduplicates; random by default.
        - ``partitions``: partitions of the topic if it is new; by default the server's setting.
        - ``max_buffered``: bytes of unacknowledged records above which `send` waits; 16 MiB.
        - ``give_up_after``: seconds without a connection after which all calls fail; 60.
        - ``scope``: the part of a job that it writes. The server deduplicates by row id instead of
          sequence number, for a source whose parts are read again from their start, in any order.
        - ``client``: the shared connection to use; its trust and token apply.
        - ``position``: the `position` of an earlier producer. `open` raises `TopicReplaced` if the
          topic lacks the records before it.
        - ``after``: with ``scope``, a step that the job must have ended in the topic; otherwise
          `open` raises `TopicReplaced`.
        """
        if scope is not None:
            if producer_id is not None:
                raise ValueError("a producer with scope=… derives its producer_id from the scope")
            try:
                scope.check()
            except ScopeFault as fault:
                raise RefusedRecords(str(fault)) from None
            producer_id = scope.producer_id
        if client is not None and client.address != address:
            raise ValueError(f"the client is connected to {client.address}, not to {address}")
        self.topic = topic
        self.scope = scope
        self.producer_id = producer_id or f"producer-{uuid.uuid4().hex}"
        self.max_record = 0
        """The size of the largest record that the server accepts, in bytes."""
        self.is_done = False
        """With ``scope``: whether nothing is to be sent, because the part is complete or the step
        has ended; records that are sent nevertheless are discarded."""
        self.fingerprint = Fingerprint()
        """With ``scope``: the fingerprint of all rows passed to it, including rows that need not be
        sent. Pass the sum over all parts to `Client.end_step`."""
        self.reconnects = 0
        """The number of reconnects."""
        self.disconnect_reason = ""
        """Why the producer is disconnected; empty if it is connected or the reason is unknown."""
        self._outbox = Outbox(max_buffered)
        self._instance = uuid.uuid4().hex
        """Distinguishes this producer from others with the same id."""
        self._address = address
        self._trust = trust
        self._token = token
        self._client = client
        self._new_partitions = partitions
        self._give_up_after = give_up_after
        self._expected = position
        self._after = after
        self._topic_id = ""
        self._epoch = ""
        self._stored_last: tuple[str, dict[int, int]] | None = None
        """The last acknowledged records: their epoch, and by partition their first offset."""
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._has_opened = False
        self._is_connected = False
        self._is_closed = False

    @property
    def partitions(self) -> int:
        """The number of partitions of the topic, once the producer is open."""
        return self._outbox.partitions

    @property
    def committed(self) -> int:
        """The sequence number of the last stored record, counted from 1."""
        return self._outbox.committed

    @property
    def is_connected(self) -> bool:
        """Whether a server accepts records now."""
        return self._is_connected

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

    # Opening and closing

    async def open(self) -> None:
        """Connect, and learn what is stored. Called by ``async with``."""
        if self._task is not None:
            raise IngestError("this producer was opened already; make another one")
        self._opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        try:
            await self._opened
        except BaseException:
            await self.abandon()  # else it retries, and takes the id from the next producer
            raise

    async def close(self) -> None:
        """Wait until all records are stored, then disconnect; raise if one cannot be stored."""
        if self._is_closed and self.committed >= self._outbox.next_sequence - 1:
            return
        try:
            await self.flush()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Disconnect at once; unacknowledged records may or may not be stored."""
        if self._task is not None:
            self._is_closed = True
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._is_connected = False
            self._fail(IngestError("this producer was closed"))

    async def __aenter__(self) -> Producer:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abandon()

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
        """Buffer a record for sending; wait if ``max_buffered`` is reached.

        `flush` waits until it is stored. Records with the same key go to the same partition, unless
        ``partition`` selects one. ``sequence`` is the number of the record, from 1, in a source
        that is read again after a crash: a record that is stored already is skipped. ``id``, for a
        producer with ``scope``, is 20 bytes that identify the record within its part.
        """
        outbox = self._outbox
        if sequence is not None and sequence != outbox.next_sequence:
            if sequence > outbox.next_sequence:
                raise ValueError(
                    f"record {sequence} was sent, but the next one is {outbox.next_sequence}"
                )
            return
        if self._opened is None or outbox.error is not None:
            self._check_usable()
        size = size_of_record(value, key, headers, partition, timestamp)
        if size > self.max_record:
            check_size(size, self.max_record)
        if partition is not None:
            self._check_partition(partition)
        if id is not None or self.scope is not None:
            check_id(id, self.scope is not None)
            if id is not None and self.is_done:
                self.fingerprint += fingerprint_of(id)
                return
        size += OVERHEAD
        if outbox.buffered + size > outbox.max_buffered:
            await outbox.wait_for_room(size)
        outbox.add(value, key, headers, partition, timestamp, size, id)
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
        """Send a record, wait until it is stored, and return where."""
        if self.scope is not None:
            raise IngestError("a producer with scope=… does not learn where records are: use send")
        await self.send(value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        return await self._outbox.receipt()

    async def flush(self) -> None:
        """Wait until every record that was sent is stored; raise if one cannot be stored."""
        await self._outbox.flush()

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

        ``timestamps`` are seconds, ``times`` whole microseconds since 1970. If it raises, some
        records may have been sent.
        """
        self._check_usable()
        columns = (ids, keys, headers, timestamps, times)
        wants_ids = self.scope is not None
        for piece, sizes in checked(
            values, *columns, max_record=self.max_record, wants_ids=wants_ids
        ):
            if partition is not None:
                self._check_partition(partition)
            if piece.ids is not None:
                self.fingerprint += fingerprint_of(piece.ids)
            if self.is_done:
                continue
            for batch in batches(piece, sizes, partition):
                await self._outbox.wait_for_room(batch.size)
                self._outbox.append(batch)
                await asyncio.sleep(0)  # let it be sent while the next one is made

    async def complete(self) -> None:
        """Wait until every record that was sent is stored and the part is known to be complete.

        Every attempt of the part that is opened later finds `is_done`.
        """
        if self.scope is None:
            raise IngestError("only a producer with scope=… has a part to complete")
        self._check_usable()
        await self.flush()  # a part is complete only after all its records are stored
        if self.is_done:
            return
        batch = Batch(RecordColumns(0, [], [], is_last=True))
        batch.completion = asyncio.get_running_loop().create_future()
        self._outbox.append(batch)
        await batch.completion
        self.is_done = True

    def _check_usable(self) -> None:
        if self._opened is None:
            raise IngestError("open the producer first: async with Producer(…) as producer")
        self._outbox.check()

    def _check_partition(self, partition: int) -> None:
        if not 0 <= partition < self.partitions:
            raise IngestError(f"topic {self.topic} has partitions 0 to {self.partitions - 1}")

    def _fail(self, error: BaseException) -> None:
        self._outbox.fail(error)
        assert self._opened is not None
        fail(self._opened, error)

    # The connection

    async def _run(self) -> None:
        """Keep a connection until an error that another connection does not resolve."""
        retry = Retry(self._address, self._give_up_after)
        try:
            while True:
                try:
                    await self._converse(retry.connect_timeout)
                except LOST as error:
                    self.disconnect_reason = explain(self._address, error)
                    if self._is_connected:
                        self._is_connected = False
                        self.reconnects += 1
                        retry.reset()
                    await retry.wait(error)
        except Exception as error:  # noqa: BLE001 -- every waiting call needs an outcome
            self._fail(error)

    @asynccontextmanager
    async def _connection(self, connect_timeout: float) -> AsyncIterator[ClientConnection[Request]]:
        """Use the client's connection, or one of its own that is closed at the end."""
        if self._client is not None:
            yield await self._client._connected(connect_timeout)
            return
        async with connect_to(
            self._address, self._trust, self._token, connect_timeout
        ) as connection:
            yield connection

    async def _converse(self, connect_timeout: float) -> None:
        """Use one connection: open the topic, retransmit, then send what comes."""
        async with self._connection(connect_timeout) as connection:
            records, answers = await self._begin(connection)
            async with records, answers:
                sending = asyncio.create_task(self._send_batches(records))
                receiving = asyncio.create_task(self._receive(answers))
                try:
                    await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    sending.cancel()
                    receiving.cancel()
                    await asyncio.wait((sending, receiving))
                for task in (receiving, sending):
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
            self._new_partitions,
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
            answer = accepted(await answers.receive())
            if not isinstance(answer, Opened):
                raise IngestError(f"{self._address} sent an unexpected answer to Open")
            self._handle_opened(answer)
        except BaseException:  # a shared connection stays open
            records.cancel()
            answers.close()
            raise
        return records, answers

    def _handle_opened(self, answer: Opened) -> None:
        assert self._opened is not None
        outbox = self._outbox
        self._topic_id, self._epoch = answer.topic_id, answer.epoch
        self.max_record = answer.max_record
        self._is_connected = True
        self.disconnect_reason = ""
        self.is_done = self.is_done or answer.is_done
        outbox.partitions = answer.partitions
        if not self._has_opened:
            self._has_opened = True
            outbox.begin(answer.committed)
            if not self._opened.done():
                self._opened.set_result(None)
        elif self.scope is None:  # else the server deduplicates by id
            self._check_committed(answer.committed)
        outbox.resend(answer.committed, is_done=answer.is_done)

    def _check_committed(self, committed: int) -> None:
        """Raise if the server has other records than this producer sent."""
        has = f"{self._address} has stored {committed} records of {self.producer_id!r}"
        if committed < self.committed:
            raise IngestError(
                f"{has}, but had acknowledged {self.committed}: it has lost some, or is another "
                "server"
            )
        if committed >= self._outbox.next_sequence:
            raise IngestError(
                f"{has}, but only {self._outbox.next_sequence - 1} were sent: another producer "
                "uses the same id"
            )

    async def _send_batches(self, records: Sender[RecordColumns]) -> None:
        while True:
            batch = await self._outbox.next_batch()
            try:
                await records.send(batch)
            except ChannelError:
                await asyncio.Event().wait()  # the answers contain the reason, or end as well

    async def _receive(self, answers: Receiver[Answer]) -> None:
        async for message in answers:
            answer = accepted(message)
            if isinstance(answer, Committed):
                if not self._outbox.acknowledge(answer.sequence, answer.offsets, answer.skipped):
                    raise IngestError(f"{self._address} acknowledged records that were not sent")
                if answer.offsets:
                    self._stored_last = self._epoch, answer.offsets
        raise ConnectError("the server closed the channel")
