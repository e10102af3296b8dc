"""What a streaming query tells of itself: batches, how far each one came, and when it was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aqueduct.spark.offsets import Offsets, TopicPartition, from_json

Commits = dict[TopicPartition, tuple[list[int], list[float]]]
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
    """The batches of a query, as they come."""

    batches: list[Batch] = field(default_factory=list)
    rows: int = 0
    _ends: dict[TopicPartition, int] = field(default_factory=dict)

    def add(self, progress: Mapping[str, Any] | None) -> None:
        """Take in what a query told last, if it is new."""
        if progress is None or (self.batches and progress["batchId"] <= self.batches[-1].number):
            return
        batch = read_batch(progress)
        if batch is not None:
            self.batches.append(batch)
            self.rows += batch.rows
            self._ends.update(batch.ends)

    def has_reached(self, offsets: Offsets) -> bool:
        """Whether the rows at these offsets, and all before them, were processed."""
        return all(self._ends.get(where, 0) > offset for where, offset in offsets.items())

    @property
    def latency_p50(self) -> float | None:
        """Of the last batch that had rows."""
        for batch in reversed(self.batches):
            if batch.latency_p50 is not None:
                return batch.latency_p50
        return None

    def commits(self) -> Commits:
        """Where batches ended, and when each was committed."""
        found: Commits = {}
        for batch in self.batches:
            for where, end in batch.ends.items():
                ends, times = found.setdefault(where, ([], []))
                if not ends or end > ends[-1]:
                    ends.append(end)
                    times.append(batch.committed)
        return found
