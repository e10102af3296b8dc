"""Who reads what: ranges of offsets, cut into the pieces that tasks read, and kept within limits.

Everything here depends on its arguments alone, so a batch that Spark plans again after a crash is
the same batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aqueduct.spark.source.offsets import Offsets, TopicPartition, ordered

MAX_ROWS = 1_000_000
"""Rows that one task reads: a task that fails is read again as a whole."""


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Rows of one partition, from an offset up to, and not including, another."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.end - self.start

    @property
    def where(self) -> TopicPartition:
        """The partition that they are in."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition}, offsets {self.start} up to {self.end}"


def ranges_between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """What lies between two places; a partition that has no start is read from its beginning."""
    return [
        OffsetRange(where.topic, where.partition, start.get(where, 0), stop)
        for where, stop in ordered(end).items()
        if start.get(where, 0) < stop
    ]


def split(
    ranges: Iterable[OffsetRange], min_partitions: int = 1, max_rows: int = MAX_ROWS
) -> list[OffsetRange]:
    """The same rows in at least so many pieces, if there are as many rows, of nearly equal size."""
    whole = [each for each in ranges if each.rows > 0]
    counts = [-(-each.rows // max_rows) for each in whole]
    wanted = min(min_partitions, sum(each.rows for each in whole))
    # The next cut goes to whichever has the largest pieces.
    heap = [(-each.rows / counts[at], at) for at, each in enumerate(whole)]
    heapq.heapify(heap)
    for _ in range(wanted - sum(counts)):
        at = _next_to_cut(heap, whole, counts)
        counts[at] += 1
        heapq.heappush(heap, (-whole[at].rows / counts[at], at))
    return [piece for each, count in zip(whole, counts, strict=True) for piece in _cut(each, count)]


def _next_to_cut(
    heap: list[tuple[float, int]], whole: Sequence[OffsetRange], counts: Sequence[int]
) -> int:
    while True:
        _, at = heapq.heappop(heap)
        if counts[at] < whole[at].rows:
            return at


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.rows * at // count for at in range(count + 1)]
    return [
        OffsetRange(whole.topic, whole.partition, edges[at], edges[at + 1]) for at in range(count)
    ]


def admit(start: Offsets, available: Offsets, limit: int) -> dict[TopicPartition, int]:
    """How far to read if no more than so many rows may be read.

    Each partition gets the same share, and what some do not need goes to the others. What cannot be
    shared goes to those with the most rows to read, so that each has its turn.
    """
    backlog = {each.where: each.rows for each in ranges_between(start, available)}
    end = {where: start.get(where, 0) for where in available}
    end.update({where: offset for where, offset in start.items() if where in available})
    left = limit
    waiting = sorted(backlog, key=lambda where: (backlog[where], where))
    for at, where in enumerate(waiting):
        share = min(backlog[where], left // (len(waiting) - at))
        end[where] += share
        left -= share
    for where in sorted(waiting, key=lambda where: (-backlog[where], where)):
        if left and end[where] < available[where]:
            end[where] += 1
            left -= 1
    return ordered(end)


def rows_within(
    size: int, backlog: Mapping[TopicPartition, int], held: Mapping[TopicPartition, tuple[int, int]]
) -> int:
    """How many rows of a backlog have so many bytes, if they are as large as those that are held.

    ``held`` has of each partition its rows and the bytes they take. It is one row at least: a row
    that is larger than the limit has to be read, too.
    """
    rows = sum(backlog.values())
    weight = sum(
        count * bytes_held / rows_held
        for where, count in backlog.items()
        for rows_held, bytes_held in [held.get(where, (0, 0))]
        if rows_held
    )
    return max(int(size * rows / weight), 1) if weight else max(rows, 1)
