"""Producers and readers for threads: what `aqueduct.ingest` has, with plain calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakSet

import pyarrow as pa

from aqueduct.errors import AqueductError
from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client import producer as producers
from aqueduct.ingest.client import reader as readers
from aqueduct.ingest.client.batch import Stored
from aqueduct.ingest.dedup.scope import Fingerprint, WriteScope
from aqueduct.ingest.identity import History, TopicPosition
from aqueduct.ingest.protocol import TopicInfo
from aqueduct.runtime.background import background, before_stop
from aqueduct.security import Trust

__all__ = ["Client", "Producer", "Reader", "end_step"]

T = TypeVar("T")

_HOP = 16_384
"""Records `send_many` takes over to the loop at a time, of those that come one by one."""

_open: WeakSet[producers.Producer] = WeakSet()
_clients: WeakSet[clients.Client] = WeakSet()
_leaving: set[asyncio.Task[None]] = set()


class Client:
    """A connection to an ingest server that producers share; any thread may use it.

    See `aqueduct.ingest.Client`, which has the same arguments.
    """

    def __init__(
        self,
        address: str,
        *,
        trust: Trust | None = None,
        token: str | None = None,
        give_up_after: float = clients.GIVE_UP_AFTER,
    ) -> None:
        self._background = background()
        self._client = self._background.do(
            lambda: clients.Client(address, trust=trust, token=token, give_up_after=give_up_after)
        )
        _clients.add(self._client)

    @property
    def address(self) -> str:
        """Of the server."""
        return self._client.address

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the server; producers that still use this fail."""
        self._background.run(self._client.close())

    def end_step(
        self,
        topic: str,
        job: str,
        step: int,
        run: str,
        *,
        positions: Sequence[TopicPosition] = (),
        rows: Fingerprint | None = None,
        allow_extra: bool = False,
    ) -> None:
        """A step of a job is over: whoever opens a producer for it is told that it is done."""
        self._background.run(
            self._client.end_step(
                topic, job, step, run, positions=positions, rows=rows, allow_extra=allow_extra
            )
        )


def end_step(
    address: str,
    topic: str,
    job: str,
    step: int,
    run: str,
    *,
    rows: Fingerprint | None = None,
    allow_extra: bool = False,
    trust: Trust | None = None,
    token: str | None = None,
) -> None:
    """A step of a job is over, see `Client.end_step`; over a connection of its own."""
    with Client(address, trust=trust, token=token) as client:
        client.end_step(topic, job, step, run, rows=rows, allow_extra=allow_extra)


class Producer:
    """Sends records to a topic of an ingest server; any thread may use it.

    ::

        with ingest.blocking.Producer("localhost:4434", "telemetry") as producer:
            producer.send(b"21.5", key=b"kitchen")
            producer.flush()  # now it is stored

    See `aqueduct.ingest.Producer`, which has the same arguments.
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
        max_buffered: int = producers.MAX_BUFFERED,
        give_up_after: float = clients.GIVE_UP_AFTER,
        scope: WriteScope | None = None,
        client: Client | None = None,
        position: TopicPosition | None = None,
        after: int | None = None,
    ) -> None:
        self._background = background()
        self._producer = self._background.do(
            lambda: producers.Producer(
                address,
                topic,
                producer_id=producer_id,
                trust=trust,
                token=token,
                partitions=partitions,
                max_buffered=max_buffered,
                give_up_after=give_up_after,
                scope=scope,
                client=None if client is None else client._client,
                position=position,
                after=after,
            )
        )

    def open(self) -> None:
        """Connect, and learn what is stored; ``with`` does it."""
        _open.add(self._producer)
        self._background.run(self._producer.open())

    def close(self) -> None:
        """Wait until everything is stored, then leave; raises if something cannot be."""
        self._background.run(self._producer.close())

    def abandon(self) -> None:
        """Leave at once; what is not stored by now may or may not be."""
        self._background.run(self._producer.abandon())

    def __enter__(self) -> Producer:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    @property
    def topic(self) -> str:
        """The topic that is written to."""
        return self._producer.topic

    @property
    def producer_id(self) -> str:
        """Who this is to the server."""
        return self._producer.producer_id

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return self._producer.partitions

    @property
    def committed(self) -> int:
        """The number of the last record that is stored; the first record has number 1."""
        return self._producer.committed

    @property
    def position(self) -> TopicPosition | None:
        """The acknowledged position, for the next producer; None before this one is open."""
        return self._producer.position

    @property
    def max_record(self) -> int:
        """The largest record that the server takes."""
        return self._producer.max_record

    @property
    def reconnects(self) -> int:
        """How often the connection was lost."""
        return self._producer.reconnects

    @property
    def is_connected(self) -> bool:
        """Whether there is a server that takes records now."""
        return self._producer.is_connected

    @property
    def trouble(self) -> str:
        """Why there is no connection now, as far as that is known."""
        return self._producer.trouble

    @property
    def scope(self) -> WriteScope | None:
        """Whose rows it sends, if they are told apart by ids."""
        return self._producer.scope

    @property
    def is_done(self) -> bool:
        """With ``scope``: whether nothing is to be sent: the part is complete, or the step over."""
        return self._producer.is_done

    @property
    def fingerprint(self) -> Fingerprint:
        """With ``scope``: the fingerprint of all rows passed to it, for `Client.end_step`."""
        return self._producer.fingerprint

    def send(
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
        """Send a record; returns when there is room for it, and `flush` tells that it is stored."""
        self._background.run(
            self._producer.send(
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
                sequence=sequence,
                id=id,
            )
        )

    def send_many(
        self,
        values: Iterable[bytes],
        *,
        ids: Sequence[bytes] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[float] | None = None,
        times: Sequence[int] | None = None,
        partition: int | None = None,
    ) -> None:
        """Send many records, given as columns, in one hop between threads.

        Values alone may also come from an iterator, and go as they come.
        """
        others = (ids, keys, headers, timestamps, times)
        if isinstance(values, Sequence) or any(column is not None for column in others):
            given = values if isinstance(values, Sequence) else list(values)
            work = self._producer.send_many(
                given,
                ids=ids,
                keys=keys,
                headers=headers,
                timestamps=timestamps,
                times=times,
                partition=partition,
            )
            self._background.run(work)
            return
        rest = iter(values)
        while batch := list(islice(rest, _HOP)):
            self._background.run(self._producer.send_many(batch, partition=partition))

    def complete(self, timeout: float | None = None) -> None:
        """Wait until all that was sent is stored, and the part known to be complete."""
        self._background.run(self._producer.complete(), timeout)

    def send_and_wait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Stored:
        """Send a record, wait until it is stored, and tell where."""
        work = self._producer.send_and_wait(
            value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )
        return self._background.run(work)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that was sent is stored; raises if one cannot be."""
        self._background.run(self._producer.flush(), timeout)


class Reader:
    """Reads from an ingest server; any thread may use it. See `aqueduct.ingest.Reader`."""

    def __init__(
        self, address: str, *, trust: Trust | None = None, token: str | None = None
    ) -> None:
        self._background = background()
        self._reader = self._background.do(
            lambda: readers.Reader(address, trust=trust, token=token)
        )

    def __enter__(self) -> Reader:
        self._run(self._reader.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._run(self._reader.__aexit__(*error))

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """What there is: all topics that may be read, or one."""
        return self._run(self._reader.topics(topic))

    def offsets_at(self, topic: str, timestamp: float) -> dict[int, int]:
        """By partition, the first offset stored at or after a time (seconds since 1970)."""
        return self._run(self._reader.offsets_at(topic, timestamp))

    def history(self, topic: str) -> History:
        """Return the identity of a topic: its id, and its epochs."""
        return self._run(self._reader.history(topic))

    def position(self, topic: str, offsets: Mapping[int, int]) -> TopicPosition:
        """Return offsets together with the identity of their topic."""
        return self._run(self._reader.position(topic, offsets))

    def advance(
        self,
        reader: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        position: TopicPosition | None = None,
    ) -> None:
        """Say how far a named reader has come."""
        self._run(self._reader.advance(reader, topic, offsets, position=position))

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        position: TopicPosition | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows with offsets from ``start`` up to ``end``, in batches."""
        batches = self._reader.read(topic, partition, start, end, position=position)
        turn = asyncio.Lock()
        try:
            while (batch := self._run(_next(batches, turn))) is not None:
                yield batch
        finally:
            # Whoever lets go of the iterator may do so anywhere, also where nobody can wait: when
            # it is collected as garbage, on the loop's own thread or in a child process.
            self._background.soon(lambda: _leave(batches, turn))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._background.run(work)


async def _next(
    batches: AsyncGenerator[pa.RecordBatch, None], turn: asyncio.Lock
) -> pa.RecordBatch | None:
    async with turn:
        return await anext(batches, None)


def _leave(batches: AsyncGenerator[pa.RecordBatch, None], turn: asyncio.Lock) -> None:
    """End a reading, behind a wait for its next batch that may just be given up."""

    async def leave() -> None:
        async with turn:
            with contextlib.suppress(AqueductError):
                await batches.aclose()

    task = asyncio.get_running_loop().create_task(leave())
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)


async def _close_all() -> None:
    """Leave what was left open: the program ends."""
    await asyncio.gather(*(each.abandon() for each in list(_open)))
    await asyncio.gather(*(each.close() for each in list(_clients)))


before_stop(_close_all)
