"""Readers, as Spark calls them: planned on the driver, read by tasks that know nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aqueduct.ingest.identity import TopicPosition
from aqueduct.spark.backend import Place, places
from aqueduct.spark.errors import TopicIdentityError
from aqueduct.spark.option_values import CONTINUE, ERROR
from aqueduct.spark.source.catalog import (
    Survey,
    clipped,
    end_of,
    need_topics,
    start_of,
    survey,
    survey_up_to,
)
from aqueduct.spark.source.fetch import fetch, lost, skip
from aqueduct.spark.source.offsets import (
    Marks,
    Offsets,
    TopicMark,
    TopicPartition,
    by_topic,
    ordered,
    positions_from_json,
    to_json,
)
from aqueduct.spark.source.options import ReadOptions, read_options
from aqueduct.spark.source.plan import OffsetRange, admit, ranges_between, rows_within, split
from aqueduct.spark.source.rows import check_schema, shaper
from aqueduct.spark.worker import settle

_log = logging.getLogger("aqueduct.spark")


@dataclass
class Piece(InputPartition):
    """What one task reads, with all that it needs to do so."""

    place: Place
    wanted: OffsetRange
    fail_on_data_loss: bool
    position: TopicPosition | None = None
    """The position that the topic must match."""


def _pieces(
    options: ReadOptions, seen: Survey, ranges: Sequence[OffsetRange], marks: Marks
) -> list[Piece]:
    there = clipped(ranges, seen, options.fail_on_data_loss)
    return [
        Piece(seen.places[each.topic], each, options.fail_on_data_loss, _position(each, marks))
        for each in split(there, options.min_partitions)
    ]


def _position(wanted: OffsetRange, marks: Marks) -> TopicPosition | None:
    mark = marks.get(wanted.topic)
    return None if mark is None else TopicPosition(*mark, {wanted.partition: wanted.end})


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a piece; Spark makes up a piece of its own when there is none."""
    settle()
    if not isinstance(partition, Piece):
        return
    shape = shaper(schema)
    loss, position = partition.fail_on_data_loss, partition.position
    for batch in fetch(partition.place, partition.wanted, loss, position):
        yield shape(batch)


class BatchReader(DataSourceReader):
    """Reads once from one place to another."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = read_options(given, streaming=False)
        check_schema(schema)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads."""
        where = places(self._options)
        seen = survey(self._options, where)
        need_topics(self._options, where, seen)
        start, end = start_of(self._options, seen), end_of(self._options, seen)
        marks = seen.marks({where: min(at, seen.next[where]) for where, at in end.items()})
        return _pieces(self._options, seen, ranges_between(start, end), marks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return _read(partition, self._schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new, batch by batch.

    What is kept here is for speed, and for one run of a query on the driver: a batch depends on its
    two offsets alone. Options are looked at when they are first needed, because Spark hides an
    error of the constructor behind one of its own.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        self._seen: Survey | None = None
        self._target: Offsets | None = None
        self._gone: set[TopicPartition] = set()
        """Partitions that were there, and are not; that was said, and is not waited for."""
        self._told: set[str] = set()
        """Topics with a logged warning that the checkpoint lacks their identity."""

    @cached_property
    def _options(self) -> ReadOptions:
        check_schema(self._schema)
        return read_options(self._given, streaming=True)

    @cached_property
    def _places(self) -> list[Place]:
        return places(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Where a new query begins."""
        seen = self._look()
        if not seen.parts:
            _log.warning("no topic fits %r yet", self._options.pattern)
        start = start_of(self._options, seen)
        return to_json(start, seen.marks(start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """What the options say about the size of a batch."""
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Read up to what is there now, and no further."""
        self._target = self._look().next

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        begun, marks = positions_from_json(start)
        there = {where: at for where, at in begun.items() if where not in self._gone}
        seen = self._seen = survey_up_to(self._options, self._places, there)
        available = seen.next
        if self._target is not None:
            available = {
                where: min(available[where], offset)
                for where, offset in self._target.items()
                if where in available
            }
        kept = by_topic(begun)
        begun = self._still_there(self._begun(begun, marks, seen), seen)
        end = admit(begun, available, self._rows(begun, available, seen, limit))
        # What is gone stays as it is: nothing more comes of it.
        end = {**{where: at for where, at in begun.items() if where not in end}, **end}
        found = seen.marks({where: at for where, at in end.items() if where in seen.parts})
        # Equal offsets must have equal texts, even if a history was shortened meanwhile.
        same = {topic for topic, parts in by_topic(end).items() if parts == kept.get(topic)}
        for topic, mark in marks.items():
            if topic not in found or (
                topic in same and not seen.mismatch(topic, mark, kept[topic])
            ):
                found[topic] = mark
        return to_json(end, found)

    def _begun(self, begun: Offsets, marks: Marks, seen: Survey) -> dict[TopicPartition, int]:
        """Return the offsets to continue from, after a check of each topic's identity."""
        checked = dict(begun)
        for topic, parts in by_topic(begun).items():
            mark = marks.get(topic)
            if mark is None:
                self._tell_unmarked(topic, seen)
                continue
            if not (reason := seen.mismatch(topic, mark, parts)):
                continue
            fresh = self._replaced(topic, mark, parts, reason, seen)
            checked = {where: at for where, at in checked.items() if where.topic != topic}
            checked.update({TopicPartition(topic, each): at for each, at in fresh.items()})
        return checked

    def _tell_unmarked(self, topic: str, seen: Survey) -> None:
        if topic in seen.marks({TopicPartition(topic, 0): 0}) and topic not in self._told:
            self._told.add(topic)
            _log.warning(
                "the checkpoint lacks the identity of topic %s, because an older version wrote it: "
                "the query continues with the topic that exists (id %s), and the next batch "
                "records its identity",
                topic,
                seen.histories[topic].topic_id,
            )

    def _replaced(
        self, topic: str, mark: TopicMark, parts: Mapping[int, int], reason: str, seen: Survey
    ) -> Mapping[int, int]:
        """Return the offsets to continue from in a replaced topic; raise without the option."""
        if self._options.on_topic_replaced == ERROR:
            raise TopicIdentityError(
                f"topic {topic!r} on {seen.places[topic]} is not the one that this query has read: "
                f"{reason}. Restore the topic, give the query a new checkpoint, or start it with "
                "option onTopicReplaced: 'restart' reads all rows that may be new, 'continue' "
                "keeps the offsets"
            )
        fresh = parts
        if self._options.on_topic_replaced != CONTINUE:
            fresh = seen.new_to(topic, mark, parts)
        where = ", ".join(f"{number}: {offset}" for number, offset in sorted(fresh.items()))
        _log.warning(
            "topic %s is not the one that this query has read: %s; it continues at offsets %s "
            "(onTopicReplaced)", topic, reason, where,
        )  # fmt: skip
        return fresh

    def _still_there(self, begun: Offsets, seen: Survey) -> dict[TopicPartition, int]:
        """How far the query has come, and no further than there is something."""
        checked = {}
        self._gone -= seen.parts.keys()
        for where, offset in begun.items():
            end = seen.next.get(where, 0)
            checked[where] = offset
            if offset > end and where not in self._gone:
                gone = OffsetRange(where.topic, where.partition, end, offset)
                if self._options.fail_on_data_loss:
                    raise lost(gone, end, "rows that were read before are gone")
                skip(gone, end, offset)
                if where in seen.parts:
                    checked[where] = end
                else:  # if it comes back, what was read of it is not read again
                    self._gone.add(where)
        return ordered(checked)

    def _rows(self, begun: Offsets, available: Offsets, seen: Survey, limit: ReadLimit) -> int:
        """How many rows the next batch may have."""
        backlog = {each.where: each.rows for each in ranges_between(begun, available)}
        rows = sum(backlog.values())
        max_bytes = None
        if isinstance(limit, ReadMaxRows):
            # Spark passes one limit on; of two, this one is ours to keep.
            rows, max_bytes = min(rows, limit.max_rows), self._options.max_bytes
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        return rows if max_bytes is None else min(rows, rows_within(max_bytes, backlog, seen.held))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 -- Spark's name
        """How far the query could be, for whoever watches it."""
        if self._seen is None:
            return None
        return to_json(self._seen.next, self._seen.marks(self._seen.next))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What each task reads of a batch."""
        begun, begun_marks = positions_from_json(start)
        ended, marks = positions_from_json(end)
        if not ranges_between(begun, ended) and begun_marks == marks:
            return []
        seen = self._seen
        if seen is None or not seen.reaches(ended):
            seen = self._seen = survey_up_to(self._options, self._places, ended)
        first, last, expected = self._planned(begun, begun_marks, ended, marks, seen)
        return _pieces(self._options, seen, ranges_between(first, last), expected)

    def _planned(
        self, begun: Offsets, begun_marks: Marks, ended: Offsets, marks: Marks, seen: Survey
    ) -> tuple[Offsets, Offsets, Marks]:
        """Return what to read of a planned batch; topics may have been replaced since."""
        begun, ended, marks = dict(begun), dict(ended), dict(marks)
        starts = by_topic(begun)
        for topic, parts in by_topic(ended).items():
            start, mark = begun_marks.get(topic), marks.get(topic)
            if reason := seen.mismatch(topic, mark, parts):
                assert mark is not None
                self._replaced(topic, mark, parts, reason, seen)
                del marks[topic]
                if self._options.on_topic_replaced != CONTINUE:
                    # The rows of this batch are gone; the next batch reads the new topic.
                    ended = {where: at for where, at in ended.items() if where.topic != topic}
            elif start is not None and seen.mismatch(topic, start, starts[topic]):
                # Only with the option may a batch start in one topic and end in another.
                if self._options.on_topic_replaced != CONTINUE:
                    fresh = seen.new_to(topic, start, starts[topic])
                    begun.update({TopicPartition(topic, each): at for each, at in fresh.items()})
        return begun, ended, marks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return _read(partition, self._schema)

    def _look(self) -> Survey:
        self._seen = survey(self._options, self._places)
        return self._seen
