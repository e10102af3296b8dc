"""The progress of a streaming query: its micro-batches, their end offsets and commit times."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aqueduct.spark.source.offsets import Offsets, TopicPartition, from_json

Commits = dict[TopicPartition, tuple[Sequence[int], Sequence[float]]]
"""The end offsets of batches and their commit times (seconds since 1970), by partition."""
SENT = "sent"
"""The name of the observed metrics with the send times of records."""


@dataclass(frozen=True)
class MicroBatch:
    """A committed micro-batch."""

    number: int
    committed: float
    """Seconds since 1970."""
    rows: int
    ends: Offsets
    """The offset after the last row, by partition."""
    latency_p50: float | None = None
    """The median of the seconds from send to commit."""


def read_batch(progress: Mapping[str, Any]) -> MicroBatch | None:
    """Parse a progress report of Spark; return None if the trigger had no batch."""
    duration = progress["durationMs"]
    if "addBatch" not in duration:
        return None
    start = datetime.fromisoformat(progress["timestamp"])
    committed = start.timestamp() + duration["triggerExecution"] / 1_000
    observed = (progress.get("observedMetrics") or {}).get(SENT) or {}
    middle = observed.get("middle")
    return MicroBatch(
        number=progress["batchId"],
        committed=committed,
        rows=observed.get("rows") or 0,
        ends=from_json(progress["sources"][0]["endOffset"]),
        latency_p50=None if middle is None else max(committed - middle / 1e6, 0.0),
    )


@dataclass
class QueryProgress:
    """The batches of a query so far; compact, because a run may take weeks."""

    batches: int = 0
    rows: int = 0
    last: int = -1
    """The number of the last batch."""
    latency_p50: float | None = None
    """The value of the last batch with rows."""
    _ends: dict[TopicPartition, array[int]] = field(default_factory=dict)
    _times: dict[TopicPartition, array[float]] = field(default_factory=dict)

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add a progress report, unless its batch is known."""
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
        for partition, end in batch.ends.items():
            ends = self._ends.setdefault(partition, array("q"))
            if not ends or end > ends[-1]:
                ends.append(end)
                self._times.setdefault(partition, array("d")).append(batch.committed)

    def misses(self, progress: Mapping[str, Any]) -> bool:
        """Return whether batches before this progress report were not added."""
        return bool(progress["batchId"] > self.last + 1)

    def has_reached(self, offsets: Offsets) -> bool:
        """Return whether the rows at these offsets, and all before them, are committed."""
        return all(
            partition in self._ends and self._ends[partition][-1] > offset
            for partition, offset in offsets.items()
        )

    def commits(self) -> Commits:
        """Return the end offsets and commit times of batches."""
        return {partition: (ends, self._times[partition]) for partition, ends in self._ends.items()}
