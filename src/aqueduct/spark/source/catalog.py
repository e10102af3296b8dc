"""The topics of a query as its backends list them, and the checks before a job starts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aqueduct.errors import AqueductError, ConnectError
from aqueduct.ingest.identity import History, TopicPosition
from aqueduct.ingest.protocol import PartitionInfo
from aqueduct.spark.backend import Backend, LocatedTopic, find_topics, unreachable_error
from aqueduct.spark.errors import SourceError, Unreachable, WrongOption
from aqueduct.spark.options import Position, SourceOptions
from aqueduct.spark.source.fetch import data_loss, retry_delays, skip_missing
from aqueduct.spark.source.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    TopicIdentity,
    TopicPartition,
    by_topic,
)
from aqueduct.spark.source.plan import OffsetRange


@dataclass(frozen=True)
class Catalog:
    """The partitions of all topics of a query at one moment."""

    backends: dict[str, Backend]
    """By topic."""
    partitions: dict[TopicPartition, PartitionInfo]
    histories: dict[str, History] = field(default_factory=dict)
    """By topic, for its identity."""

    def identities(self, offsets: Offsets) -> dict[str, TopicIdentity]:
        """Return the identity at some offsets of each topic that has one."""
        found = {}
        for topic, partitions in by_topic(offsets).items():
            history = self.histories.get(topic)
            if history is not None and history.topic_id:
                position = history.position(partitions)
                found[topic] = TopicIdentity(position.topic_id, position.epoch)
        return found

    def mismatch(
        self, topic: str, identity: TopicIdentity | None, partitions: Mapping[int, int]
    ) -> str:
        """Return why the topic lacks the rows before some offsets; empty if it has them.

        A topic that is only too short is not a mismatch: its last rows may not be visible yet.
        """
        history = self.histories.get(topic)
        if history is None or identity is None:
            return ""
        return history.mismatch(TopicPosition(*identity, dict(partitions)))

    def new_to(
        self, topic: str, identity: TopicIdentity, partitions: Mapping[int, int]
    ) -> dict[int, int]:
        """Return, by partition, the offset from which rows are new to a query at some offsets."""
        position = TopicPosition(*identity, dict(partitions))
        firsts = {
            each.partition: first for each, first in self.first.items() if each.topic == topic
        }
        return self.histories[topic].common(position, firsts)

    @property
    def first(self) -> dict[TopicPartition, int]:
        """The first stored offset, by partition."""
        return {each: info.first_offset for each, info in self.partitions.items()}

    @property
    def next(self) -> dict[TopicPartition, int]:
        """The offset after the last row, by partition."""
        return {each: info.next_offset for each, info in self.partitions.items()}

    @property
    def held(self) -> dict[TopicPartition, tuple[int, int]]:
        """The number of stored rows and their bytes, by partition."""
        return {
            each: (info.next_offset - info.first_offset, info.size)
            for each, info in self.partitions.items()
        }

    def reaches(self, offsets: Offsets) -> bool:
        """Return whether all rows before these offsets are, or have been, stored."""
        ends = self.next
        return all(offset <= ends.get(each, 0) for each, offset in offsets.items())


def load_catalog(options: SourceOptions, backends: Sequence[Backend]) -> Catalog:
    """List the topics of a query; raise `SourceError` for one that is missing or damaged."""
    found = find_topics(options, list(backends))
    partitions = {}
    for topic, located in found.items():
        if located.info.fault:
            raise _damaged(f"topic {topic} on {located.backend}", located.info.fault)
        for info in located.info.partitions:
            partition = TopicPartition(topic, info.partition)
            if info.fault:
                raise _damaged(f"{partition} on {located.backend}", info.fault)
            partitions[partition] = info
    return Catalog(
        {topic: located.backend for topic, located in found.items()},
        partitions,
        {topic: _history(located) for topic, located in found.items()},
    )


def _history(located: LocatedTopic) -> History:
    try:
        return located.backend.history(located.info)
    except ConnectError as error:
        raise unreachable_error(located.backend, error) from None
    except AqueductError as error:
        raise SourceError(
            f"the history of topic {located.info.topic!r} on {located.backend} is unavailable: "
            f"{error}"
        ) from error


def load_catalog_up_to(
    options: SourceOptions, backends: Sequence[Backend], offsets: Offsets
) -> Catalog:
    """List the topics of a running query; retry while rows before ``offsets`` are missing.

    A restarting server should not fail a query. The files of a server that has just started lack
    its last commit for a moment.
    """
    delays = retry_delays()
    while True:
        try:
            catalog = load_catalog(options, backends)
        except Unreachable:
            if (delay := next(delays, None)) is None:
                raise
        else:
            if catalog.reaches(offsets) or options.path is None:
                return catalog
            if (delay := next(delays, None)) is None:
                return catalog
        time.sleep(delay)


def _damaged(what: str, fault: str) -> SourceError:
    return SourceError(
        f"{what} is out of use: {fault}; docs/ingest.md says how to repair damaged files"
    )


def require_topics(options: SourceOptions, backends: Sequence[Backend], catalog: Catalog) -> None:
    """Raise `SourceError` if no topic matches the pattern."""
    if not catalog.partitions:
        raise SourceError(
            f"option subscribePattern: no topic on {', '.join(map(str, backends))} matches "
            f"{options.pattern!r} completely"
        )


def start_offsets(options: SourceOptions, catalog: Catalog) -> dict[TopicPartition, int]:
    """Return the offsets to start from; raise `WrongOption` for one after the end."""
    if options.start_time is None:
        start = resolve("startingOffsets", options.start, catalog)
        if options.fail_on_data_loss:
            _check_reached(start, catalog)
        return start
    offsets = {}
    for topic, backend in catalog.backends.items():
        try:
            found = backend.offsets_at(topic, options.start_time)
        except AqueductError as error:
            raise SourceError(
                f"option startingTimestamp: {backend} cannot find the offsets of topic {topic!r} "
                f"at that time: {error}"
            ) from error
        offsets.update({TopicPartition(topic, number): at for number, at in found.items()})
    return {partition: offsets.get(partition, end) for partition, end in catalog.next.items()}


def _check_reached(start: Offsets, catalog: Catalog) -> None:
    """Raise for a start after the end, which would read no rows without any notice."""
    for partition, offset in start.items():
        if offset > (end := catalog.next[partition]):
            raise WrongOption(
                f"option startingOffsets: {partition} starts at {offset}, but its next offset is "
                f"{end}; -1 is the latest, and failOnDataLoss=false accepts the offset"
            )


def resolve(option: str, position: Position, catalog: Catalog) -> dict[TopicPartition, int]:
    """Return the offset of each partition that an option selects; raise `WrongOption`."""
    chosen = position.offsets or dict.fromkeys(catalog.partitions, position.everywhere or 0)
    unknown = [str(partition) for partition in chosen if partition not in catalog.partitions]
    if unknown:
        raise WrongOption(f"option {option} names {', '.join(unknown)}, which is not subscribed")
    missing = [str(partition) for partition in catalog.partitions if partition not in chosen]
    if missing:
        raise WrongOption(
            f"option {option} needs an offset for each partition, and has none for "
            f"{', '.join(missing)}; -2 is the earliest, -1 the latest"
        )
    special = {EARLIEST: catalog.first, LATEST: catalog.next}
    return {
        partition: special[offset][partition] if offset in special else offset
        for partition, offset in sorted(chosen.items())
    }


def clip_ranges(
    ranges: Iterable[OffsetRange], catalog: Catalog, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """Return the stored part of each range; raise `DataLoss` for missing rows, or skip them."""
    clipped = (_clip(each, catalog, fail_on_data_loss) for each in ranges)
    return [each for each in clipped if each.rows > 0]


def _clip(wanted: OffsetRange, catalog: Catalog, fail_on_data_loss: bool) -> OffsetRange:
    info = catalog.partitions.get(wanted.topic_partition)
    first, end = (info.first_offset, info.next_offset) if info else (wanted.end, wanted.end)
    if first <= wanted.start and wanted.end <= end and info:
        return wanted
    if fail_on_data_loss:
        stored = (
            f"there are offsets {first} up to {end}" if info else "the partition no longer exists"
        )
        raise data_loss(wanted, wanted.start, stored)
    clipped = skip_missing(wanted, wanted.start, wanted.end, first, end)
    return OffsetRange(*wanted.topic_partition, *clipped)
