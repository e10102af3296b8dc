"""What a streaming query tells of itself: batches, how far each one came, and when it was done."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aqueduct.spark.source.offsets import Offsets, TopicPartition, from_json

Commits = dict[TopicPartition, tuple[Sequence[int], Sequence[float]]]
"""For each partition where batches ended, and when each was committed (seconds since 1970)."""
SENT = "sent"
"""The name under which a query observes when its records were sent."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch that was committed."""

    number: int
    committed: float
    """Seconds since 1970."""
    rows: int
    ends: Offsets
    """The offset behind the last row of each partition."""
    latency_p50: float | None = None
    """Seconds from sending to committing, of the middle one of its records."""


def read_batch(progress: Mapping[str, Any]) -> Batch | None:
    """A batch from the progress of a query; None if there was none, only a look for new rows."""
    duration = progress["durationMs"]
    if "addBatch" not in duration:
        return None
    start = datetime.fromisoformat(progress["timestamp"])
    committed = start.timestamp() + duration["triggerExecution"] / 1_000
    observed = (progress.get("observedMetrics") or {}).get(SENT) or {}
    middle = observed.get("middle")
    return Batch(
        number=progress["batchId"],
        committed=committed,
        rows=observed.get("rows") or 0,
        ends=from_json(progress["sources"][0]["endOffset"]),
        latency_p50=None if middle is None else max(committed - middle / 1e6, 0.0),
    )


@dataclass
class History:
    """The batches of a query, as they come; of each it keeps little, as a run may take weeks."""

    batches: int = 0
    rows: int = 0
    last: int = -1
    """The number of the last batch."""
    latency_p50: float | None = None
    """Of the last batch that had rows."""
    _ends: dict[TopicPartition, array[int]] = field(default_factory=dict)
    _times: dict[TopicPartition, array[float]] = field(default_factory=dict)

    def add(self, progress: Mapping[str, Any]) -> None:
        """Take in what a query tells of a batch, if it is new."""
        if progress["batchId"] <= self.last:
            return
        batch = read_batch(progress)
        if batch is None:
            return
        self.batches += 1
        self.rows += batch.rows
        self.last = batch.number
        if batch.latency_p50 is not None:
            self.latency_p50 = batch.latency_p50
        for where, end in batch.ends.items():
            ends = self._ends.setdefault(where, array("q"))
            if not ends or end > ends[-1]:
                ends.append(end)
                self._times.setdefault(where, array("d")).append(batch.committed)

    def misses(self, progress: Mapping[str, Any]) -> bool:
        """Whether there were batches between the last one here and what a query tells."""
        return bool(progress["batchId"] > self.last + 1)

    def has_reached(self, offsets: Offsets) -> bool:
        """Whether the rows at these offsets, and all before them, were processed."""
        return all(
            where in self._ends and self._ends[where][-1] > offset
            for where, offset in offsets.items()
        )

    def commits(self) -> Commits:
        """Where batches ended, and when each was committed."""
        return {where: (ends, self._times[where]) for where, ends in self._ends.items()}
