"""Ingest for threads: the API of `aqueduct.ingest` with plain calls instead of awaits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Self, TypedDict, Unpack
from weakref import WeakSet

import pyarrow as pa

from aqueduct.errors import AqueductError
from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client import producer as producers
from aqueduct.ingest.client import reader as readers
from aqueduct.ingest.dedup.scope import Fingerprint, WriteScope
from aqueduct.ingest.identity import TopicPosition
from aqueduct.runtime.background import (
    Attribute,
    BlockingTwin,
    background,
    before_stop,
    blocking,
    blocking_function,
    with_parameters_of,
)
from aqueduct.security import Trust

__all__ = ["Client", "Producer", "Reader", "end_step"]

_SEND_BATCH = 16_384
"""Records of an iterator that `send_many` submits to the loop at a time."""

_open: WeakSet[producers.Producer] = WeakSet()
_clients: WeakSet[clients.Client] = WeakSet()
_leaving: set[asyncio.Task[None]] = set()


class SendColumns(TypedDict, total=False):
    """The columns of `Producer.send_many` besides the values."""

    ids: Sequence[bytes] | None
    keys: Sequence[bytes | None] | None
    headers: Sequence[Mapping[str, bytes] | None] | None
    timestamps: Sequence[float] | None
    times: Sequence[int] | None


class Client(BlockingTwin[clients.Client]):
    """A connection to an ingest server that producers share; any thread may use it.

    See `aqueduct.ingest.Client`, which has the same arguments.
    """

    address = Attribute[str]("The ``host:port`` of the server.")

    close = blocking(clients.Client.close)
    end_step = blocking(clients.Client.end_step)

    def __init__(
        self,
        address: str,
        *,
        trust: Trust | None = None,
        token: str | None = None,
        give_up_after: float = clients.GIVE_UP_AFTER,
    ) -> None:
        where = background()
        make = partial(
            clients.Client, address, trust=trust, token=token, give_up_after=give_up_after
        )
        super().__init__(where.call(make), where)
        _clients.add(self._inner)

    def _leave(self, *, failed: bool) -> None:
        self.close()


end_step = blocking_function(clients.end_step)


class Producer(BlockingTwin[producers.Producer]):
    """Sends records to a topic of an ingest server; any thread may use it.

    ::

        with ingest.blocking.Producer("localhost:4434", "telemetry") as producer:
            producer.send(b"21.5", key=b"kitchen")
            producer.flush()  # now it is stored

    See `aqueduct.ingest.Producer`, which has the same arguments.
    """

    topic = Attribute[str]("The topic that the producer writes to.")
    producer_id = Attribute[str]("The id by which the server deduplicates its records.")
    partitions = Attribute[int]("The number of partitions of the topic.")
    committed = Attribute[int]("The sequence number of the last stored record, counted from 1.")
    position = Attribute[TopicPosition | None](
        "The acknowledged position, for the next producer; None before this one is open."
    )
    max_record = Attribute[int]("The size of the largest record that the server accepts, in bytes.")
    reconnects = Attribute[int]("The number of reconnects.")
    is_connected = Attribute[bool]("Whether the producer is connected to a server.")
    disconnect_reason = Attribute[str](
        "Why the producer is disconnected; empty if it is connected or the reason is unknown."
    )
    scope = Attribute[WriteScope | None]("The part of a job whose rows it sends, if rows have ids.")
    is_done = Attribute[bool](
        "With ``scope``: whether nothing is to be sent, because the part is complete or the step "
        "has ended."
    )
    fingerprint = Attribute[Fingerprint](
        "With ``scope``: the fingerprint of all rows passed to it, for `Client.end_step`."
    )

    close = blocking(producers.Producer.close)
    abandon = blocking(producers.Producer.abandon)
    send = blocking(producers.Producer.send)
    send_and_wait = blocking(producers.Producer.send_and_wait)

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
        where = background()
        make = partial(
            producers.Producer,
            address,
            topic,
            producer_id=producer_id,
            trust=trust,
            token=token,
            partitions=partitions,
            max_buffered=max_buffered,
            give_up_after=give_up_after,
            scope=scope,
            client=None if client is None else client._inner,
            position=position,
            after=after,
        )
        super().__init__(where.call(make), where)

    def open(self) -> None:
        """Connect, and learn what is stored. Called by ``with``."""
        _open.add(self._inner)
        self._background.run(self._inner.open())

    def __enter__(self) -> Self:
        self.open()
        return self

    def _leave(self, *, failed: bool) -> None:
        if failed:
            self.abandon()
        else:
            self.close()

    @with_parameters_of(producers.Producer.send_many)
    def send_many(
        self,
        values: Iterable[bytes],
        *,
        partition: int | None = None,
        **columns: Unpack[SendColumns],
    ) -> None:
        """Send many records, given as columns, with one call to the loop.

        Values without other columns may come from an iterator; they are sent in batches of 16,384.
        """
        if isinstance(values, Sequence) or any(column is not None for column in columns.values()):
            rows = values if isinstance(values, Sequence) else list(values)
            self._background.run(self._inner.send_many(rows, partition=partition, **columns))
            return
        rest = iter(values)
        while batch := list(islice(rest, _SEND_BATCH)):
            self._background.run(self._inner.send_many(batch, partition=partition))

    def complete(self, timeout: float | None = None) -> None:
        """Wait until every record is stored and the part is known to be complete."""
        self._background.run(self._inner.complete(), timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that was sent is stored; raise if one cannot be stored."""
        self._background.run(self._inner.flush(), timeout)


class Reader(BlockingTwin[readers.Reader]):
    """Reads from an ingest server; any thread may use it. See `aqueduct.ingest.Reader`."""

    topics = blocking(readers.Reader.topics)
    offsets_at = blocking(readers.Reader.offsets_at)
    history = blocking(readers.Reader.history)
    position = blocking(readers.Reader.position)
    advance = blocking(readers.Reader.advance)

    def __init__(
        self, address: str, *, trust: Trust | None = None, token: str | None = None
    ) -> None:
        where = background()
        make = partial(readers.Reader, address, trust=trust, token=token)
        super().__init__(where.call(make), where)

    def __enter__(self) -> Self:
        self._background.run(self._inner.__aenter__())
        return self

    def _leave(self, *, failed: bool) -> None:
        self._background.run(self._inner.__aexit__(None, None, None))

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        position: TopicPosition | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets from ``start`` up to ``end``, in batches."""
        batches = self._inner.read(topic, partition, start, end, position=position)
        turn = asyncio.Lock()
        try:
            while (batch := self._background.run(_next(batches, turn))) is not None:
                yield batch
        finally:
            # The iterator may be dropped where waiting is impossible: by the garbage collector, on
            # the loop's own thread, or in a child process.
            self._background.call_soon(lambda: _leave(batches, turn))


async def _next(
    batches: AsyncGenerator[pa.RecordBatch, None], turn: asyncio.Lock
) -> pa.RecordBatch | None:
    async with turn:
        return await anext(batches, None)


def _leave(batches: AsyncGenerator[pa.RecordBatch, None], turn: asyncio.Lock) -> None:
    """Close a read in a task, once a pending `_next`, which may be cancelled, has ended."""

    async def leave() -> None:
        async with turn:
            with contextlib.suppress(AqueductError):
                await batches.aclose()

    task = asyncio.get_running_loop().create_task(leave())
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)


async def _close_all() -> None:
    """Close producers and clients that are open when the program ends."""
    await asyncio.gather(*(each.abandon() for each in list(_open)))
    await asyncio.gather(*(each.close() for each in list(_clients)))


before_stop(_close_all)
