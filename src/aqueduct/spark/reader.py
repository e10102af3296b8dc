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

from aqueduct.spark.fetch import fetch, lost, skip
from aqueduct.spark.offsets import Offsets, TopicPartition, from_json, ordered, to_json
from aqueduct.spark.options import ReadOptions, read_options
from aqueduct.spark.origin import Place, places
from aqueduct.spark.plan import OffsetRange, admit, ranges_between, rows_within, split
from aqueduct.spark.rows import check_schema, shaper
from aqueduct.spark.survey import (
    Survey,
    clipped,
    end_of,
    need_topics,
    start_of,
    survey,
    survey_up_to,
)
from aqueduct.spark.worker import settle

_log = logging.getLogger("aqueduct.spark")


@dataclass
class Piece(InputPartition):
    """What one task reads, with all that it needs to do so."""

    place: Place
    wanted: OffsetRange
    fail_on_data_loss: bool


def _pieces(options: ReadOptions, seen: Survey, ranges: Sequence[OffsetRange]) -> list[Piece]:
    there = clipped(ranges, seen, options.fail_on_data_loss)
    return [
        Piece(seen.places[each.topic], each, options.fail_on_data_loss)
        for each in split(there, options.min_partitions)
    ]


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a piece; Spark makes up a piece of its own when there is none."""
    settle()
    if not isinstance(partition, Piece):
        return
    shape = shaper(schema)
    for batch in fetch(partition.place, partition.wanted, partition.fail_on_data_loss):
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
        return _pieces(self._options, seen, ranges_between(start, end))

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
        return to_json(start_of(self._options, seen))

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
        begun = from_json(start)
        there = {where: at for where, at in begun.items() if where not in self._gone}
        seen = self._seen = survey_up_to(self._options, self._places, there)
        available = seen.next
        if self._target is not None:
            available = {
                where: min(available[where], offset)
                for where, offset in self._target.items()
                if where in available
            }
        begun = self._still_there(begun, seen)
        end = admit(begun, available, self._rows(begun, available, seen, limit))
        # What is gone stays as it is: nothing more comes of it.
        return to_json({**{where: at for where, at in begun.items() if where not in end}, **end})

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
        return None if self._seen is None else to_json(self._seen.next)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What each task reads of a batch."""
        ranges = ranges_between(from_json(start), from_json(end))
        if not ranges:
            return []
        seen = self._seen
        needed = {each.where: each.end for each in ranges}
        if seen is None or not seen.reaches(needed):
            seen = self._seen = survey_up_to(self._options, self._places, needed)
        return _pieces(self._options, seen, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return _read(partition, self._schema)

    def _look(self) -> Survey:
        self._seen = survey(self._options, self._places)
        return self._seen
