"""Write the rows of one attempt of a task; each row is stored once over all attempts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from aqueduct.errors import AqueductError, ConnectError
from aqueduct.ingest.blocking import Client, Producer
from aqueduct.ingest.dedup.scope import Fingerprint, WriteScope
from aqueduct.ingest.errors import IngestError, NotAllowed, TopicReplaced, UnknownTopic
from aqueduct.ingest.identity import TopicPosition
from aqueduct.spark.backend import Backend, list_topics, unreachable_error
from aqueduct.spark.errors import SinkError, TopicIdentityError
from aqueduct.spark.sink.columns import ColumnNames, Rows, rows_by_topic, take_rows
from aqueduct.spark.sink.row_ids import Occurrences, content_hashes, user_ids
from aqueduct.spark.worker import ConnectionCache


@dataclass(frozen=True)
class Step:
    """The scope that all tasks of a write share; see `aqueduct.ingest.WriteScope` for the terms."""

    job: str
    number: int
    run: str


@dataclass(frozen=True)
class Sink:
    """Where and how to write; everything that a task needs besides its rows."""

    backends: tuple[Backend, ...]
    columns: ColumnNames
    topic: str | None = None
    """The topic of all rows; None if a column names it."""
    partitions: int | None = None
    """The number of partitions of a new topic."""
    is_dense: bool = False
    """Whether every step ends in the one topic, so that the topic must know the previous step."""
    may_be_new: bool = False
    """Whether to write to a topic that does not know the job (onTopicReplaced=continue)."""
    allow_extra: bool = False
    """Whether a batch may end with rows that an earlier run of it stored and this one lacks."""

    def backend_of(self, topic: str) -> Backend:
        """Return the server that has a topic; the first server, if none has it."""
        if len(self.backends) == 1:
            return self.backends[0]
        holders = [backend for backend in self.backends if _has(backend, topic)]
        if len(holders) > 1:
            raise SinkError(
                f"topic {topic!r} is on {holders[0]} and on {holders[1]}; name only the server to "
                "write to in option servers"
            )
        return holders[0] if holders else self.backends[0]

    def producer(self, topic: str, backend: Backend, step: Step, part: int) -> Producer:
        """Open a producer for the rows of one part."""
        scope = WriteScope(
            step.job, step.number, step.run, part, unique=self.columns.id is not None
        )
        after = -1 if self.may_be_new else step.number - 1
        try:
            producer = Producer(
                backend.server,
                topic,
                partitions=self.partitions,
                scope=scope,
                client=clients.get(backend),
                after=after if self.is_dense else None,
            )
            producer.open()
        except AqueductError as error:
            drop_if_broken(backend, error)
            raise write_error(topic, backend, error) from error
        return producer


def _has(backend: Backend, topic: str) -> bool:
    try:
        list_topics(backend, topic, SinkError)
    except UnknownTopic:
        return False
    except NotAllowed as error:
        raise SinkError(
            f"cannot find out whether {backend} has topic {topic!r}: {error}. Name only one "
            "server in option servers, or give the token permission to read the topic"
        ) from error
    return True


def write_error(topic: str, backend: Backend, error: AqueductError) -> SinkError:
    """Return the error for a failed write, with a remedy."""
    if isinstance(error, NotAllowed):
        return SinkError(
            f"topic {topic!r} on {backend} cannot be written: {error}; set option token to one "
            "that may"
        )
    if isinstance(error, ConnectError):
        return unreachable_error(backend, error)
    if isinstance(error, TopicReplaced):
        return TopicIdentityError(
            f"nothing was written to topic {topic!r} on {backend}: {error}. Rows of this query may "
            "be missing there: restore the topic, or write them again with a new checkpoint. To "
            "continue without them, start the query once with option onTopicReplaced=continue"
        )
    return SinkError(f"topic {topic!r} on {backend} cannot be written: {error}")


def _connect(backend: Backend) -> Client:
    return Client(backend.server, trust=backend.trust, token=backend.token)


clients = ConnectionCache(_connect, Client.close)


def drop_if_broken(backend: Backend, error: AqueductError) -> None:
    """Drop the cached connection, unless the server only rejected a request."""
    if not isinstance(error, IngestError):
        clients.drop(backend)


MAX_OPEN = 16
"""The most producers that a task has open at once; a server limits those of all tasks."""


@dataclass
class _TopicWriter:
    """Writes the rows of a task to one topic."""

    topic: str
    backend: Backend
    producer: Producer | None = None
    """None while closed, because `MAX_OPEN` other topics were used more recently."""
    occurrences: Occurrences = field(default_factory=Occurrences)
    rows: Fingerprint = field(default_factory=Fingerprint)
    """The fingerprint of the rows passed to earlier producers."""
    positions: list[TopicPosition] = field(default_factory=list)
    """The acknowledged positions, which the topic must match from now on."""

    def send(self, rows: Rows) -> None:
        """Send rows; if the step has ended, only add them to the fingerprint."""
        assert self.producer is not None
        if rows.user_ids is not None:
            ids = user_ids(rows.user_ids)
        else:
            hashes = content_hashes(rows.values, rows.keys, rows.headers, rows.times)
            ids = self.occurrences.ids(hashes)
        try:
            self.producer.send_many(
                rows.values,
                ids=ids,
                keys=rows.keys,
                headers=None if rows.headers is None else [dict(row) for row in rows.headers],
                times=None if rows.times is None else _default_to_now(rows.times),
            )
        except AqueductError as error:
            raise write_error(self.topic, self.backend, error) from error

    def close(self) -> None:
        if self.producer is None:
            return
        try:
            self.producer.close()
        except AqueductError as error:
            drop_if_broken(self.backend, error)
            raise write_error(self.topic, self.backend, error) from error
        self.rows += self.producer.fingerprint
        if self.producer.position is not None:
            self.positions.append(self.producer.position)
        self.producer = None

    def abandon(self) -> None:
        if self.producer is not None:
            with suppress(AqueductError):  # the earlier error is the one to report
                self.producer.abandon()


def _default_to_now(times: Sequence[int | None]) -> list[int]:
    now = int(time.time() * 1e6)
    return [now if each is None else each for each in times]


def write_part(
    sink: Sink,
    step: Step,
    part: int,
    batches: Iterable[pa.RecordBatch],
    positions: dict[tuple[str, str], list[TopicPosition]] | None = None,
) -> dict[tuple[str, str], Fingerprint]:
    """Write the rows of one task; return their fingerprint, by server and topic.

    When it returns, all rows are stored, unless the step had ended before: then it stores nothing,
    and the driver compares the fingerprints. ``positions`` has the acknowledged positions by server
    and topic. When it raises, some rows may be stored; the next attempt of the same part stores the
    others.
    """
    writers: dict[str, _TopicWriter] = {}
    number = 1
    try:
        for batch in batches:
            numbers = range(number, number + batch.num_rows)
            number += batch.num_rows
            if batch.num_rows:
                _write(sink, step, part, writers, batch, numbers)
        # Do not mark the part as complete: the iterator also ends when the computation of its rows
        # has failed. Only the driver knows which tasks have succeeded.
        for writer in writers.values():
            writer.close()
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    if positions is not None:
        for writer in writers.values():
            positions[writer.backend.server, writer.topic] = writer.positions
    return {(writer.backend.server, writer.topic): writer.rows for writer in writers.values()}


def merged(positions: Iterable[TopicPosition]) -> list[TopicPosition]:
    """Merge positions into one for each epoch."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for each in positions:
        known = found.setdefault((each.topic_id, each.epoch), {})
        for number, offset in each.offsets.items():
            known[number] = max(offset, known.get(number, 0))
    return [TopicPosition(*identity, offsets) for identity, offsets in found.items()]


def _write(
    sink: Sink,
    step: Step,
    part: int,
    writers: dict[str, _TopicWriter],
    batch: pa.RecordBatch,
    numbers: range,
) -> None:
    for topic, rows, their_numbers in rows_by_topic(batch, sink.columns, sink.topic, numbers):
        writer = writers.pop(topic, None) or _TopicWriter(topic, sink.backend_of(topic))
        writers[topic] = writer  # ordered by last use
        if writer.producer is None:
            opened = [each for each in writers.values() if each.producer is not None]
            if len(opened) >= MAX_OPEN:
                opened[0].close()
            writer.producer = sink.producer(topic, writer.backend, step, part)
        writer.send(take_rows(rows, sink.columns, writer.producer.max_record, their_numbers))
