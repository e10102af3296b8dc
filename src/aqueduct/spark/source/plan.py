"""Plan a batch: the offset ranges to read, split into tasks and limited in rows.

The functions are pure, so that a batch which Spark plans again after a crash is the same batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aqueduct.spark.source.offsets import Offsets, TopicPartition, ordered

MAX_ROWS = 1_000_000
"""The most rows of a task: Spark retries a failed task from its first row."""


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Rows of one partition, from ``start`` up to ``end`` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the rows."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition}, offsets {self.start} up to {self.end}"


def ranges_between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the ranges between two offsets; a partition without a start begins at 0."""
    return [
        OffsetRange(*partition, start.get(partition, 0), stop)
        for partition, stop in ordered(end).items()
        if start.get(partition, 0) < stop
    ]


def split(
    ranges: Iterable[OffsetRange], min_partitions: int = 1, max_rows: int = MAX_ROWS
) -> list[OffsetRange]:
    """Split ranges into at least ``min_partitions`` of nearly equal size, if rows suffice."""
    whole = [each for each in ranges if each.rows > 0]
    counts = [-(-each.rows // max_rows) for each in whole]
    wanted = min(min_partitions, sum(each.rows for each in whole))
    # Split the range with the largest parts next.
    heap = [(-each.rows / counts[at], at) for at, each in enumerate(whole)]
    heapq.heapify(heap)
    for _ in range(wanted - sum(counts)):
        at = _next_to_split(heap, whole, counts)
        counts[at] += 1
        heapq.heappush(heap, (-whole[at].rows / counts[at], at))
    return [
        part for each, count in zip(whole, counts, strict=True) for part in _split_one(each, count)
    ]


def _next_to_split(
    heap: list[tuple[float, int]], whole: Sequence[OffsetRange], counts: Sequence[int]
) -> int:
    while True:
        _, at = heapq.heappop(heap)
        if counts[at] < whole[at].rows:
            return at


def _split_one(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.rows * at // count for at in range(count + 1)]
    return [
        OffsetRange(whole.topic, whole.partition, edges[at], edges[at + 1]) for at in range(count)
    ]


def limit_rows(start: Offsets, available: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return the end offsets of a batch with at most ``limit`` rows.

    Each partition gets an equal share, and unused shares go to the others. The remainder goes to
    the partitions with the largest backlog, so that no partition starves.
    """
    backlog = backlog_of(start, available)
    end = {partition: start.get(partition, 0) for partition in available}
    left = limit
    waiting = sorted(backlog, key=lambda partition: (backlog[partition], partition))
    for at, partition in enumerate(waiting):
        share = min(backlog[partition], left // (len(waiting) - at))
        end[partition] += share
        left -= share
    for partition in sorted(waiting, key=lambda partition: (-backlog[partition], partition)):
        if left and end[partition] < available[partition]:
            end[partition] += 1
            left -= 1
    return ordered(end)


def backlog_of(start: Offsets, available: Offsets) -> dict[TopicPartition, int]:
    """Return the number of rows to read, by partition; partitions without any are left out."""
    return {each.topic_partition: each.rows for each in ranges_between(start, available)}


def rows_within(
    size: int, backlog: Mapping[TopicPartition, int], held: Mapping[TopicPartition, tuple[int, int]]
) -> int:
    """Estimate how many rows of a backlog have ``size`` bytes, from the mean size of stored rows.

    ``held`` has the stored rows and their bytes by partition. The result is at least 1, so that a
    row larger than the limit is read, too.
    """
    rows = sum(backlog.values())
    weight = sum(
        count * bytes_held / rows_held
        for partition, count in backlog.items()
        for rows_held, bytes_held in [held.get(partition, (0, 0))]
        if rows_held
    )
    return max(int(size * rows / weight), 1) if weight else max(rows, 1)
