"""Writing the rows of one attempt of a task: each stored once, however often the task is run."""

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
from aqueduct.spark.backend import Place, ask_topics, unreachable
from aqueduct.spark.errors import SinkError, TopicIdentityError
from aqueduct.spark.pool import Pool
from aqueduct.spark.sink.columns import Columns, Rows, rows_by_topic, take_rows
from aqueduct.spark.sink.row_ids import Occurrences, content_hashes, own_ids


@dataclass(frozen=True)
class Step:
    """What all tasks of a write have in common; see `aqueduct.ingest.WriteScope` for the terms."""

    job: str
    number: int
    run: str


@dataclass(frozen=True)
class Sink:
    """What to write where: all that a task needs to know besides its rows."""

    places: tuple[Place, ...]
    columns: Columns
    topic: str | None = None
    """Where all rows go; None to have a column say so."""
    partitions: int | None = None
    """Of topics that are new."""
    is_dense: bool = False
    """Whether every step ends in the one topic, so that the topic must know the previous step."""
    may_be_new: bool = False
    """Whether to write to a topic that does not know the job (onTopicReplaced=continue)."""
    allow_extra: bool = False
    """Whether a batch may end with rows that an earlier run of it stored and this one lacks."""

    def home_of(self, topic: str) -> Place:
        """The server that a topic is on; one that is on none is made on the first."""
        if len(self.places) == 1:
            return self.places[0]
        holders = [place for place in self.places if _has(place, topic)]
        if len(holders) > 1:
            raise SinkError(
                f"topic {topic!r} is on {holders[0]} and on {holders[1]}; name the server that is "
                "meant in option servers"
            )
        return holders[0] if holders else self.places[0]

    def producer(self, topic: str, place: Place, step: Step, part: int) -> Producer:
        """A producer for the rows of one part, opened."""
        scope = WriteScope(
            step.job, step.number, step.run, part, unique=self.columns.id is not None
        )
        after = -1 if self.may_be_new else step.number - 1
        try:
            producer = Producer(
                place.server,
                topic,
                partitions=self.partitions,
                scope=scope,
                client=clients.get(place),
                after=after if self.is_dense else None,
            )
            producer.open()
        except AqueductError as error:
            drop_if_broken(place, error)
            raise failed(topic, place, error) from error
        return producer


def _has(place: Place, topic: str) -> bool:
    try:
        ask_topics(place, topic, SinkError)
    except UnknownTopic:
        return False
    except NotAllowed as error:
        raise SinkError(
            f"{place} does not tell whether it has topic {topic!r}: {error}. Name the one server "
            "that is meant in option servers, or have the token allowed to read the topic"
        ) from error
    return True


def failed(topic: str, place: Place, error: AqueductError) -> SinkError:
    """That a topic cannot be written, and what to do."""
    if isinstance(error, NotAllowed):
        return SinkError(
            f"topic {topic!r} on {place} cannot be written: {error}; give one that may in option "
            "token"
        )
    if isinstance(error, ConnectError):
        return unreachable(place, error)
    if isinstance(error, TopicReplaced):
        return TopicIdentityError(
            f"nothing was written to topic {topic!r} on {place}: {error}. Rows of this query may "
            "be missing there: restore the topic, or write them again with a new checkpoint. To "
            "continue without them, start the query once with option onTopicReplaced=continue"
        )
    return SinkError(f"topic {topic!r} on {place} cannot be written: {error}")


def _connect(place: Place) -> Client:
    return Client(place.server, trust=place.trust, token=place.token)


clients = Pool(_connect, Client.close)


def drop_if_broken(place: Place, error: AqueductError) -> None:
    """Have the next part use a new connection, unless the server just refused something."""
    if not isinstance(error, IngestError):
        clients.drop(place)


MAX_OPEN = 16
"""Topics that a task has open at once: a server takes so many producers, of all tasks."""


@dataclass
class _Lane:
    """What goes to one topic."""

    topic: str
    place: Place
    producer: Producer | None = None
    """None while others have its place."""
    occurrences: Occurrences = field(default_factory=Occurrences)
    rows: Fingerprint = field(default_factory=Fingerprint)
    """The fingerprint of the rows passed to earlier producers."""
    positions: list[TopicPosition] = field(default_factory=list)
    """The acknowledged positions, which the topic must match from now on."""

    def send(self, rows: Rows) -> None:
        """Send rows; if the step has ended, only add them to the fingerprint."""
        assert self.producer is not None
        if rows.own_ids is not None:
            ids = own_ids(rows.own_ids)
        else:
            hashes = content_hashes(rows.values, rows.keys, rows.headers, rows.times)
            ids = self.occurrences.ids(hashes)
        try:
            self.producer.send_many(
                rows.values,
                ids=ids,
                keys=rows.keys,
                headers=None if rows.headers is None else [dict(row) for row in rows.headers],
                times=None if rows.times is None else _filled(rows.times),
            )
        except AqueductError as error:
            raise failed(self.topic, self.place, error) from error

    def close(self) -> None:
        if self.producer is None:
            return
        try:
            self.producer.close()
        except AqueductError as error:
            drop_if_broken(self.place, error)
            raise failed(self.topic, self.place, error) from error
        self.rows += self.producer.fingerprint
        if self.producer.position is not None:
            self.positions.append(self.producer.position)
        self.producer = None

    def abandon(self) -> None:
        if self.producer is not None:
            with suppress(AqueductError):  # what went wrong before is what is to be told
                self.producer.abandon()


def _filled(times: Sequence[int | None]) -> list[int]:
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
    lanes: dict[str, _Lane] = {}
    number = 1
    try:
        for batch in batches:
            numbers = range(number, number + batch.num_rows)
            number += batch.num_rows
            if batch.num_rows:
                _write(sink, step, part, lanes, batch, numbers)
        # Nobody says here that the part is complete: rows also end, as if there were no more, when
        # what makes them has failed. Only the driver knows which tasks were done.
        for lane in lanes.values():
            lane.close()
    except BaseException:
        for lane in lanes.values():
            lane.abandon()
        raise
    if positions is not None:
        for lane in lanes.values():
            positions[lane.place.server, lane.topic] = lane.positions
    return {(lane.place.server, lane.topic): lane.rows for lane in lanes.values()}


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
    lanes: dict[str, _Lane],
    batch: pa.RecordBatch,
    numbers: range,
) -> None:
    for topic, rows, their_numbers in rows_by_topic(batch, sink.columns, sink.topic, numbers):
        lane = lanes.pop(topic, None) or _Lane(topic, sink.home_of(topic))
        lanes[topic] = lane  # behind those that were used before
        if lane.producer is None:
            busy = [each for each in lanes.values() if each.producer is not None]
            if len(busy) >= MAX_OPEN:
                busy[0].close()
            lane.producer = sink.producer(topic, lane.place, step, part)
        lane.send(take_rows(rows, sink.columns, lane.producer.max_record, their_numbers))
