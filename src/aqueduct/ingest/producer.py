"""The producer: sends records to a topic, and keeps them until they are stored."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections import deque
from collections.abc import Mapping

from aqueduct.channel.client import CONNECT_TIMEOUT, ClientConnection, connect
from aqueduct.channel.handles import Receiver, Sender, channel
from aqueduct.errors import (
    ChannelError,
    ConnectError,
    ConnectionLost,
    EndOfChannel,
    Refused,
    TLSError,
    Unauthenticated,
)
from aqueduct.ingest.batch import Batch, Stored
from aqueduct.ingest.faults import IngestError, refusal_error
from aqueduct.ingest.limits import ATTENTIVE
from aqueduct.ingest.messages import (
    FIRST_TIME,
    LAST_TIME,
    MAX_HEADERS,
    Answer,
    Committed,
    Open,
    Opened,
    Records,
    Refusal,
    Request,
)
from aqueduct.ingest.permissions import HEADER
from aqueduct.quic.tls import Trust

BATCH_RECORDS = 2_048
BATCH_BYTES = 256 * 1024
"""A batch of this size is not waited with; smaller ones go when the loop has a moment."""
MAX_BUFFERED = 16 * 1024 * 1024
GIVE_UP_AFTER = 60.0
_OVERHEAD = 100
"""What a record costs in memory besides its bytes."""
_MIN_PAUSE = 0.05
_MAX_PAUSE = 2.0
_FATAL = (TLSError, Refused, Unauthenticated)
"""What trying again does not mend."""


class Producer:
    """Sends records to a topic of an ingest server.

    ::

        async with ingest.Producer("localhost:4434", "telemetry", producer_id="sensor-7") as p:
            await p.send(b"21.5", key=b"kitchen")
            await p.flush()  # now it is stored

    What was sent and is not yet known to be stored is kept, and sent again over a new connection
    when the old one is lost; the server knows by its number what it has. A producer that starts
    anew with the same id goes on behind the last record that is stored: `committed` tells how many
    that are, so that a source that can be read again is read from there.
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
    ) -> None:
        """Nothing is done before it is opened.

        ``partitions`` is for a topic that is new. ``max_buffered`` bytes of records may be under
        way; then `send` waits. A server that cannot be reached for ``give_up_after`` seconds makes
        everything that waits fail.
        """
        self.topic = topic
        self.producer_id = producer_id or f"producer-{uuid.uuid4().hex}"
        self._instance = uuid.uuid4().hex
        """Who this is among those that have, or had, the same id."""
        self._address = address
        self._trust = trust or Trust()
        self._headers = {HEADER: f"Bearer {token}"} if token else None
        self._asked_partitions = partitions
        self._max_buffered = max_buffered
        self._give_up_after = give_up_after
        self.partitions = 0
        """How many partitions the topic has, once it is open."""
        self.committed = 0
        """The number of the last record that is stored; the first record has number 1."""
        self.max_record = 0
        self.reconnects = 0
        self.trouble = ""
        """Why there is no connection now, as far as that is known."""
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
    ) -> None:
        """Send a record; returns when there is room for it, and `flush` tells that it is stored.

        Records with the same key go to the same partition, unless ``partition`` says where.
        ``sequence`` is for a source that is read again after a crash: the number of the record in
        it, from 1. One that is stored already is not sent again.
        """
        if sequence is not None and not self._is_next(sequence):
            return
        size = self._check(value, key, headers, partition, timestamp)
        while self._buffered and self._buffered + size > self._max_buffered:
            await self._wait_for_room()
        if self._error is not None:
            raise self._error
        self._add(value, key, headers, partition, timestamp, size)

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

    def _is_next(self, sequence: int) -> bool:
        if sequence > self._next:
            raise ValueError(f"record {sequence} was given where {self._next} is next")
        return sequence == self._next

    def _check(
        self,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        partition: int | None,
        timestamp: float | None,
    ) -> int:
        if self._opened is None:
            raise IngestError("open the producer first: async with Producer(…) as producer")
        if self._error is not None:
            raise self._error
        if not isinstance(value, bytes):
            raise TypeError(f"a record is bytes, not {type(value).__name__}")
        if key is not None and not isinstance(key, bytes):
            raise TypeError(f"a key is bytes, not {type(key).__name__}")
        if partition is not None and not isinstance(partition, int):
            raise TypeError(f"a partition is a number, not {type(partition).__name__}")
        if timestamp is not None and not isinstance(timestamp, int | float):
            raise TypeError(f"a timestamp is seconds since 1970, not {type(timestamp).__name__}")
        size = len(value) + len(key or b"")
        if headers is not None:
            size += _size_of(headers)
        if size > self.max_record:
            raise IngestError(f"a record of {size:,} bytes; the server takes {self.max_record:,}")
        if partition is not None and not 0 <= partition < self.partitions:
            raise IngestError(f"topic {self.topic} has partitions 0 to {self.partitions - 1}")
        if timestamp is not None and not FIRST_TIME <= timestamp * 1e6 <= LAST_TIME:
            raise IngestError(
                f"{timestamp!r} is outside of the years 1 to 9999; give seconds since 1970"
            )
        return size + _OVERHEAD

    def _add(
        self,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        partition: int | None,
        timestamp: float | None,
        size: int,
    ) -> None:
        batch = self._filling
        if batch is None:
            batch = self._filling = Batch(self._next, partition)
            self._full.set()
        time_given = int((time.time() if timestamp is None else timestamp) * 1e6)
        batch.add(value, time_given, key, headers, partition, self.partitions)
        batch.size += size
        self._buffered += size
        self._next += 1
        if len(batch.values) >= BATCH_RECORDS or batch.size >= BATCH_BYTES:
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

    # The connection

    async def _run(self) -> None:
        """Keep a connection, until something is wrong that another one would not mend."""
        pause = _MIN_PAUSE
        lost_at = time.monotonic()
        while True:
            try:
                await self._converse()
            except _FATAL as error:
                self._fail(error)
                return
            except (ChannelError, ConnectError, EndOfChannel, OSError) as error:
                self.trouble = self._in_words(error)
                if self._was_open:
                    self._was_open = False
                    self.reconnects += 1
                    pause, lost_at = _MIN_PAUSE, time.monotonic()
                if time.monotonic() - lost_at > self._give_up_after:
                    self._fail(
                        IngestError(
                            f"{self._address} could not be reached for "
                            f"{self._give_up_after:g} s: {self.trouble}"
                        )
                    )
                    return
            except Exception as error:  # noqa: BLE001 -- whoever waits has to know, whatever it is
                self._fail(error)
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _MAX_PAUSE)

    _was_open = False

    def _in_words(self, error: Exception) -> str:
        """What is wrong, for those who know of servers and not of connections."""
        if isinstance(error, ConnectionLost):
            return f"the connection to {self._address} was lost: {error.reason or error}"
        return str(error)

    async def _converse(self) -> None:
        """One connection: say hello, send again what is not stored, then whatever comes."""
        patience = min(CONNECT_TIMEOUT, max(self._give_up_after, _MIN_PAUSE))
        async with connect(
            self._address,
            Request,
            trust=self._trust,
            headers=self._headers,
            timeout=patience,
            options=ATTENTIVE,
        ) as connection:
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
    ) -> tuple[Sender[Records], Receiver[Answer]]:
        records, incoming = channel(Records)
        outgoing, answers = channel(Answer)
        request = Open(
            self.topic,
            self.producer_id,
            incoming,
            outgoing,
            self._asked_partitions,
            self._instance,
            self.committed if self._has_opened else None,
        )
        await connection.entrypoint.send(request)
        hello = await answers.receive()
        if isinstance(hello, Refusal):
            raise refusal_error(hello)
        if not isinstance(hello, Opened):
            raise IngestError(f"{self._address} answered with something else than was asked")
        self._greeted(hello)
        return records, answers

    def _greeted(self, hello: Opened) -> None:
        assert self._opened is not None
        self.partitions = hello.partitions
        self.max_record = hello.max_record
        self._was_open = True
        self.trouble = ""
        if not self._has_opened:
            self._has_opened = True
            self.committed = hello.committed
            self._next = hello.committed + 1
            if not self._opened.done():
                self._opened.set_result(None)
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
        while self._batches and self._batches[0].end - 1 <= hello.committed:
            self._settle(self._batches.popleft(), {})

    async def _send_batches(self, records: Sender[Records]) -> None:
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
                self._settle(batch, answer.offsets, answer.skipped)
        raise ConnectError("the server closed the channel")

    def _settle(self, batch: Batch, offsets: dict[int, int], skipped: int = 0) -> None:
        """A batch is stored."""
        self.committed = batch.end - 1
        self._buffered -= batch.size
        if batch.receipts is not None:
            batch.settle(offsets, skipped, self.partitions)
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
        for future in waiting:
            if not future.done():
                future.set_exception(self._error)
                with contextlib.suppress(BaseException):
                    future.exception()  # whoever waits gets it; if nobody does, nobody is warned
        self._room.clear()
        self._flushes.clear()


def _size_of(headers: Mapping[str, bytes]) -> int:
    """Bytes of headers; raises if they cannot be sent."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are names and bytes in a dict, not {type(headers).__name__}")
    if len(headers) > MAX_HEADERS:
        raise IngestError(f"a record with {len(headers)} headers; it may have {MAX_HEADERS}")
    size = 0
    for name, text in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is a str, not {type(name).__name__}")
        if not isinstance(text, bytes):
            raise TypeError(f"header {name!r} is bytes, not {type(text).__name__}")
        size += len(name.encode()) + len(text)
    return size
