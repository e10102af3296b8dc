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


@dataclass
class QueryProgress:
    """The batches of a query so far; compact, because a run may take weeks."""

    batches: int = 0
    rows: int = 0
    last: int = -1
    """The number of the last batch."""
    latency_p50: float | None = None
    """The median of the seconds from send to commit, of the last batch with rows."""
    _ends: dict[TopicPartition, array[int]] = field(default_factory=dict)
    _times: dict[TopicPartition, array[float]] = field(default_factory=dict)

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add a progress report of Spark, unless its trigger had no batch or it is known."""
        duration = progress["durationMs"]
        if progress["batchId"] <= self.last or "addBatch" not in duration:
            return
        start = datetime.fromisoformat(progress["timestamp"])
        committed = start.timestamp() + duration["triggerExecution"] / 1_000
        observed = (progress.get("observedMetrics") or {}).get(SENT) or {}
        self.batches += 1
        self.rows += observed.get("rows") or 0
        self.last = progress["batchId"]
        if (middle := observed.get("middle")) is not None:
            self.latency_p50 = max(committed - middle / 1e6, 0.0)
        for partition, end in from_json(progress["sources"][0]["endOffset"]).items():
            ends = self._ends.setdefault(partition, array("q"))
            if not ends or end > ends[-1]:
                ends.append(end)
                self._times.setdefault(partition, array("d")).append(committed)

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
