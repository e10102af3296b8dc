"""The readers that Spark calls: they plan on the driver, and read in tasks."""

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
from aqueduct.spark.backend import Backend, source_backends
from aqueduct.spark.errors import TopicIdentityError
from aqueduct.spark.options import CONTINUE, ERROR, SourceOptions, source_options
from aqueduct.spark.source.catalog import (
    Catalog,
    clip_ranges,
    load_catalog,
    load_catalog_up_to,
    require_topics,
    resolve,
    start_offsets,
)
from aqueduct.spark.source.fetch import data_loss, fetch, warn_skipped
from aqueduct.spark.source.offsets import (
    CheckpointOffsets,
    Identities,
    Offsets,
    TopicIdentity,
    TopicPartition,
    by_topic,
    checkpoint_from_json,
    ordered,
    to_json,
)
from aqueduct.spark.source.plan import (
    OffsetRange,
    backlog_of,
    limit_rows,
    ranges_between,
    rows_within,
    split,
)
from aqueduct.spark.source.rows import batch_converter, check_schema
from aqueduct.spark.worker import freeze_heap

_log = logging.getLogger("aqueduct.spark")


@dataclass
class TopicInputPartition(InputPartition):
    """The input of one task: an offset range, and how to read it."""

    backend: Backend
    offset_range: OffsetRange
    fail_on_data_loss: bool
    position: TopicPosition | None = None
    """The position that the topic must match."""


def _input_partitions(
    options: SourceOptions,
    catalog: Catalog,
    ranges: Sequence[OffsetRange],
    identities: Identities,
) -> list[TopicInputPartition]:
    stored = clip_ranges(ranges, catalog, options.fail_on_data_loss)
    return [
        TopicInputPartition(
            catalog.backends[each.topic],
            each,
            options.fail_on_data_loss,
            _position(each, identities),
        )
        for each in split(stored, options.min_partitions)
    ]


def _position(wanted: OffsetRange, identities: Identities) -> TopicPosition | None:
    identity = identities.get(wanted.topic)
    return None if identity is None else TopicPosition(*identity, {wanted.partition: wanted.end})


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; Spark passes a partition of its own when there are none."""
    freeze_heap()
    if not isinstance(partition, TopicInputPartition):
        return
    convert = batch_converter(schema)
    loss, position = partition.fail_on_data_loss, partition.position
    for batch in fetch(partition.backend, partition.offset_range, loss, position):
        yield convert(batch)


class BatchReader(DataSourceReader):
    """Reads the rows between two offsets."""

    def __init__(self, option_values: Mapping[str, str], schema: StructType) -> None:
        self._options = source_options(option_values, streaming=False)
        check_schema(schema)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the inputs of all tasks."""
        options = self._options
        backends = source_backends(options)
        catalog = load_catalog(options, backends)
        require_topics(options, backends, catalog)
        start = start_offsets(options, catalog)
        end = resolve("endingOffsets", options.end, catalog)
        stored = {partition: min(at, catalog.next[partition]) for partition, at in end.items()}
        ranges = ranges_between(start, end)
        return _input_partitions(options, catalog, ranges, catalog.identities(stored))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition, self._schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new rows, batch by batch.

    The attributes are a cache for one run of a query on the driver; a batch depends only on its
    two offsets. Options are validated when they are first used, because Spark hides an error of the
    constructor behind one of its own.
    """

    def __init__(self, option_values: Mapping[str, str], schema: StructType) -> None:
        self._option_values = dict(option_values)
        self._schema = schema
        self._catalog: Catalog | None = None
        self._target: Offsets | None = None
        """The offsets at which the AvailableNow trigger ends the query."""
        self._gone: set[TopicPartition] = set()
        """Partitions that have disappeared; already reported, and not waited for."""
        self._unidentified: set[str] = set()
        """Topics with a logged warning that the checkpoint lacks their identity."""

    @cached_property
    def _options(self) -> SourceOptions:
        check_schema(self._schema)
        return source_options(self._option_values, streaming=True)

    @cached_property
    def _backends(self) -> list[Backend]:
        return source_backends(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Return the offsets at which a new query starts."""
        catalog = self._load_catalog()
        if not catalog.partitions:
            _log.warning("no topic matches %r yet", self._options.pattern)
        start = start_offsets(self._options, catalog)
        return to_json(start, catalog.identities(start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """Return the limit of a batch that the options set."""
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Read only up to the rows that exist now."""
        self._target = self._load_catalog().next

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which the next batch ends."""
        begin, identities = before = checkpoint_from_json(start)
        expected = {each: at for each, at in begin.items() if each not in self._gone}
        catalog = self._catalog = load_catalog_up_to(self._options, self._backends, expected)
        available = catalog.next
        if self._target is not None:
            available = {
                each: min(available[each], offset)
                for each, offset in self._target.items()
                if each in available
            }
        known = by_topic(begin)
        begin = self._check_loss(self._check_identities(before, catalog), catalog)
        end = limit_rows(begin, available, self._max_rows(begin, available, catalog, limit))
        # Partitions that have disappeared keep their offsets.
        end = {**{each: at for each, at in begin.items() if each not in end}, **end}
        found = catalog.identities(
            {each: at for each, at in end.items() if each in catalog.partitions}
        )
        # Equal offsets must be equal documents, even if a history was truncated meanwhile.
        same = {
            topic for topic, partitions in by_topic(end).items() if partitions == known.get(topic)
        }
        for topic, identity in identities.items():
            if topic not in found or (
                topic in same and not catalog.mismatch(topic, identity, known[topic])
            ):
                found[topic] = identity
        return to_json(end, found)

    def _check_identities(
        self, begin: CheckpointOffsets, catalog: Catalog
    ) -> dict[TopicPartition, int]:
        """Return the offsets to continue from, after a check of each topic's identity."""
        checked = dict(begin.offsets)
        for topic, partitions in by_topic(begin.offsets).items():
            identity = begin.identities.get(topic)
            if identity is None:
                self._warn_unidentified(topic, catalog)
                continue
            if not (reason := catalog.mismatch(topic, identity, partitions)):
                continue
            fresh = self._replaced(topic, identity, partitions, reason, catalog)
            checked = {each: at for each, at in checked.items() if each.topic != topic}
            checked.update({TopicPartition(topic, each): at for each, at in fresh.items()})
        return checked

    def _warn_unidentified(self, topic: str, catalog: Catalog) -> None:
        identified = catalog.identities({TopicPartition(topic, 0): 0})
        if topic in identified and topic not in self._unidentified:
            self._unidentified.add(topic)
            _log.warning(
                "the checkpoint lacks the identity of topic %s, because an older version wrote it: "
                "the query continues with the topic that exists (id %s), and the next batch "
                "records its identity",
                topic,
                catalog.histories[topic].topic_id,
            )

    def _replaced(
        self,
        topic: str,
        identity: TopicIdentity,
        partitions: Mapping[int, int],
        reason: str,
        catalog: Catalog,
    ) -> Mapping[int, int]:
        """Return the offsets to continue from in a replaced topic; raise without the option."""
        if self._options.on_topic_replaced == ERROR:
            raise TopicIdentityError(
                f"topic {topic!r} on {catalog.backends[topic]} is not the one that this query has "
                f"read: {reason}. Restore the topic, give the query a new checkpoint, or start it "
                "with option onTopicReplaced: 'restart' reads all rows that may be new, 'continue' "
                "keeps the offsets"
            )
        fresh = partitions
        if self._options.on_topic_replaced != CONTINUE:
            fresh = catalog.new_to(topic, identity, partitions)
        shown = ", ".join(f"{number}: {offset}" for number, offset in sorted(fresh.items()))
        _log.warning(
            "topic %s is not the one that this query has read: %s; it continues at offsets %s "
            "(onTopicReplaced)", topic, reason, shown,
        )  # fmt: skip
        return fresh

    def _check_loss(self, begin: Offsets, catalog: Catalog) -> dict[TopicPartition, int]:
        """Return the offsets to continue from, none of them after the end of its partition."""
        checked = {}
        self._gone -= catalog.partitions.keys()
        for partition, offset in begin.items():
            end = catalog.next.get(partition, 0)
            checked[partition] = offset
            if offset > end and partition not in self._gone:
                missing = OffsetRange(*partition, end, offset)
                if self._options.fail_on_data_loss:
                    raise data_loss(missing, end, "rows that were read before no longer exist")
                warn_skipped(missing)
                if partition in catalog.partitions:
                    checked[partition] = end
                else:  # keep the offset: if the partition returns, its rows are not read again
                    self._gone.add(partition)
        return ordered(checked)

    def _max_rows(
        self, begin: Offsets, available: Offsets, catalog: Catalog, limit: ReadLimit
    ) -> int:
        """Return the most rows of the next batch."""
        backlog = backlog_of(begin, available)
        rows = sum(backlog.values())
        max_bytes = None
        if isinstance(limit, ReadMaxRows):
            # Spark passes only one limit; the reader enforces the other.
            rows, max_bytes = min(rows, limit.max_rows), self._options.max_bytes
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        if max_bytes is None:
            return rows
        return min(rows, rows_within(max_bytes, backlog, catalog.held))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 -- Spark's name
        """Return the latest offsets, for the metrics of the query."""
        if self._catalog is None:
            return None
        return to_json(self._catalog.next, self._catalog.identities(self._catalog.next))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the inputs of all tasks of a batch."""
        begin, stop = checkpoint_from_json(start), checkpoint_from_json(end)
        same_topics = begin.identities == stop.identities
        if same_topics and not ranges_between(begin.offsets, stop.offsets):
            return []
        catalog = self._catalog
        if catalog is None or not catalog.reaches(stop.offsets):
            catalog = load_catalog_up_to(self._options, self._backends, stop.offsets)
            self._catalog = catalog
        ranges, identities = self._check_planned(begin, stop, catalog)
        return _input_partitions(self._options, catalog, ranges, identities)

    def _check_planned(
        self, start: CheckpointOffsets, stop: CheckpointOffsets, catalog: Catalog
    ) -> tuple[list[OffsetRange], Identities]:
        """Return what to read of a planned batch; topics may have been replaced since."""
        begin, end, identities = dict(start.offsets), dict(stop.offsets), dict(stop.identities)
        starts = by_topic(begin)
        for topic, partitions in by_topic(end).items():
            before, identity = start.identities.get(topic), identities.get(topic)
            if reason := catalog.mismatch(topic, identity, partitions):
                assert identity is not None
                self._replaced(topic, identity, partitions, reason, catalog)
                del identities[topic]
                if self._options.on_topic_replaced != CONTINUE:
                    # The rows of this batch no longer exist; the next batch reads the new topic.
                    end = {each: at for each, at in end.items() if each.topic != topic}
            elif before is not None and catalog.mismatch(topic, before, starts[topic]):
                # Only with the option may a batch start in one topic and end in another.
                if self._options.on_topic_replaced != CONTINUE:
                    fresh = catalog.new_to(topic, before, starts[topic])
                    begin.update({TopicPartition(topic, each): at for each, at in fresh.items()})
        return ranges_between(begin, end), identities

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition, self._schema)

    def _load_catalog(self) -> Catalog:
        self._catalog = load_catalog(self._options, self._backends)
        return self._catalog
