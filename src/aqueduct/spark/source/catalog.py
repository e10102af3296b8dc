"""What there is to read, and whether it is what a query wants: asked before a job begins."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aqueduct.errors import AqueductError, ConnectError
from aqueduct.ingest.identity import History, TopicPosition
from aqueduct.ingest.protocol import PartitionInfo
from aqueduct.spark.backend import Found, Place, find_topics, unreachable
from aqueduct.spark.errors import SourceError, Unreachable, WrongOption
from aqueduct.spark.source.fetch import lost, pauses, skip
from aqueduct.spark.source.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    TopicMark,
    TopicPartition,
    by_topic,
)
from aqueduct.spark.source.options import Position, ReadOptions
from aqueduct.spark.source.plan import OffsetRange


@dataclass(frozen=True)
class Survey:
    """The partitions of the topics that are asked for, as they were when somebody looked."""

    places: dict[str, Place]
    """By topic."""
    parts: dict[TopicPartition, PartitionInfo]
    histories: dict[str, History] = field(default_factory=dict)
    """By topic, its identity."""

    def marks(self, offsets: Offsets) -> dict[str, TopicMark]:
        """Return the identity at some offsets of each topic that has one."""
        found = {}
        for topic, parts in by_topic(offsets).items():
            history = self.histories.get(topic)
            if history is not None and history.topic_id:
                where = history.position(parts)
                found[topic] = TopicMark(where.topic_id, where.epoch)
        return found

    def mismatch(self, topic: str, mark: TopicMark | None, parts: Mapping[int, int]) -> str:
        """Return why the topic lacks the rows before some offsets; empty if it has them.

        A topic that is only too short is not a mismatch: its last rows may not be visible yet.
        """
        history = self.histories.get(topic)
        if history is None or mark is None:
            return ""
        return history.mismatch(TopicPosition(mark.topic_id, mark.epoch, dict(parts)))

    def new_to(self, topic: str, mark: TopicMark, parts: Mapping[int, int]) -> dict[int, int]:
        """Return, by partition, the offset from which rows are new to a query at some offsets."""
        position = TopicPosition(mark.topic_id, mark.epoch, dict(parts))
        firsts = {
            where.partition: first for where, first in self.first.items() if where.topic == topic
        }
        return self.histories[topic].common(position, firsts)

    @property
    def first(self) -> dict[TopicPartition, int]:
        """Of each partition the first offset that is there."""
        return {where: part.first_offset for where, part in self.parts.items()}

    @property
    def next(self) -> dict[TopicPartition, int]:
        """Of each partition the offset behind the last."""
        return {where: part.next_offset for where, part in self.parts.items()}

    @property
    def held(self) -> dict[TopicPartition, tuple[int, int]]:
        """Of each partition its rows, and the bytes that they take."""
        return {
            where: (part.next_offset - part.first_offset, part.size)
            for where, part in self.parts.items()
        }

    def reaches(self, offsets: Offsets) -> bool:
        """Whether all rows before these offsets are, or have been, there."""
        ends = self.next
        return all(offset <= ends.get(where, 0) for where, offset in offsets.items())


def survey(options: ReadOptions, where: Sequence[Place]) -> Survey:
    """Look at what there is; raises for a topic that is missing or cannot be read."""
    found = find_topics(options, list(where))
    parts = {}
    for topic, each in found.items():
        if each.info.fault:
            raise _out_of_use(f"topic {topic} on {each.place}", each.info.fault)
        for part in each.info.partitions:
            place = TopicPartition(topic, part.partition)
            if part.fault:
                raise _out_of_use(f"{place} on {each.place}", part.fault)
            parts[place] = part
    return Survey(
        {topic: each.place for topic, each in found.items()},
        parts,
        {topic: _history(each) for topic, each in found.items()},
    )


def _history(found: Found) -> History:
    try:
        return found.place.history(found.info)
    except ConnectError as error:
        raise unreachable(found.place, error) from None
    except AqueductError as error:
        raise SourceError(
            f"the history of topic {found.info.topic!r} on {found.place} is unavailable: {error}"
        ) from error


def survey_up_to(options: ReadOptions, where: Sequence[Place], offsets: Offsets) -> Survey:
    """The same for a query that runs, and once more if what was there is not.

    A server may be starting anew, and is not worth the end of a query. The files of one that has
    just started do not show its last group for a moment.
    """
    left = pauses()
    while True:
        try:
            seen = survey(options, where)
        except Unreachable:
            if (pause := next(left, None)) is None:
                raise
        else:
            if seen.reaches(offsets) or options.path is None:
                return seen
            if (pause := next(left, None)) is None:
                return seen
        time.sleep(pause)


def _out_of_use(what: str, fault: str) -> SourceError:
    return SourceError(
        f"{what} is out of use: {fault}; docs/ingest.md says what to do when something is damaged"
    )


def need_topics(options: ReadOptions, where: Sequence[Place], seen: Survey) -> None:
    """Raise if a pattern fits nothing."""
    if not seen.parts:
        there = ", ".join(map(str, where))
        raise SourceError(
            f"option subscribePattern: no topic on {there} fits {options.pattern!r} as a whole"
        )


def start_of(options: ReadOptions, seen: Survey) -> dict[TopicPartition, int]:
    """Where to begin; raises for a place that is not there yet, as nothing would be read of it."""
    if options.start_time is None:
        start = _resolve("startingOffsets", options.start, seen)
        if options.fail_on_data_loss:
            _check_reached(start, seen)
        return start
    offsets = {}
    for topic, place in seen.places.items():
        try:
            at = place.offsets_at(topic, options.start_time)
        except AqueductError as error:
            raise SourceError(
                f"option startingTimestamp: {place} does not tell the offsets of topic {topic!r} "
                f"at that time: {error}"
            ) from error
        offsets.update({TopicPartition(topic, number): at[number] for number in at})
    return {where: offsets.get(where, end) for where, end in seen.next.items()}


def end_of(options: ReadOptions, seen: Survey) -> dict[TopicPartition, int]:
    """Where a batch ends."""
    return _resolve("endingOffsets", options.end, seen)


def _check_reached(start: Offsets, seen: Survey) -> None:
    """Raise for a beginning behind the end: a batch would have no rows, and nobody would know."""
    for where, offset in start.items():
        if offset > (end := seen.next[where]):
            raise WrongOption(
                f"option startingOffsets: {where} begins at {offset}, and has offsets up to {end} "
                "only; -1 is the latest, and with failOnDataLoss false it begins there all the same"
            )


def _resolve(option: str, position: Position, seen: Survey) -> dict[TopicPartition, int]:
    given = position.offsets or dict.fromkeys(seen.parts, position.everywhere or 0)
    unknown = [str(where) for where in given if where not in seen.parts]
    if unknown:
        raise WrongOption(f"option {option} names {', '.join(unknown)}, which is not to be read")
    missing = [str(where) for where in seen.parts if where not in given]
    if missing:
        raise WrongOption(
            f"option {option} has an offset for each partition, and none for "
            f"{', '.join(missing)}; -2 is the earliest, -1 the latest"
        )
    special = {EARLIEST: seen.first, LATEST: seen.next}
    return {
        where: special[offset][where] if offset in special else offset
        for where, offset in sorted(given.items())
    }


def clipped(ranges: Iterable[OffsetRange], seen: Survey, fail: bool) -> list[OffsetRange]:
    """The part of each range that is there; raises unless that is all of it or may be less."""
    return [left for each in ranges if (left := _clip(each, seen, fail)).rows > 0]


def _clip(wanted: OffsetRange, seen: Survey, fail: bool) -> OffsetRange:
    part = seen.parts.get(wanted.where)
    first, end = (part.first_offset, part.next_offset) if part else (wanted.end, wanted.end)
    if first <= wanted.start and wanted.end <= end and part:
        return wanted
    if fail:
        there = f"there are offsets {first} up to {end}" if part else "the partition is gone"
        raise lost(wanted, wanted.start, there)
    start = skip(wanted, wanted.start, first) if first > wanted.start else wanted.start
    stop = min(wanted.end, max(end, start))
    if stop < wanted.end:
        skip(wanted, stop, wanted.end)
    return OffsetRange(wanted.topic, wanted.partition, start, stop)
