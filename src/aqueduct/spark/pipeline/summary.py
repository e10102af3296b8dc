"""The result of a run: the outcome of every record, rates, latency and aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aqueduct.spark.pipeline.fleet import MODES

RELIABLE = ("ordered", "unordered")


@dataclass(frozen=True)
class ModeTotals:
    """The outcome of the records of one mode, counted at each stage."""

    sent: int
    """Records that the devices sent."""
    lost: int
    """Records lost before the gateway, as the senders count them."""
    arrived: int
    """Records that the gateway received and stored."""
    rows: int
    """Rows of the table of readings."""
    distinct: int
    """Rows of that table without duplicates."""
    windowed: int
    """Rows counted in the table of windows."""
    too_late: int
    """Rows behind the watermark, and so in no window."""

    @property
    def faults(self) -> list[str]:
        """The counts that are inconsistent."""
        found = []
        if self.sent != self.arrived + self.lost:
            found.append(f"{self.sent:,} sent, {self.arrived:,} arrived and {self.lost:,} lost")
        if self.rows != self.arrived:
            found.append(f"{self.arrived:,} arrived and {self.rows:,} in the table")
        if self.distinct != self.rows:
            found.append(f"{self.rows - self.distinct:,} duplicates in the table")
        if self.windowed + self.too_late != self.rows:
            found.append(
                f"{self.rows:,} in the table, {self.windowed:,} in windows and "
                f"{self.too_late:,} too late"
            )
        return found


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of a latency in seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Figures:
    """The figures computed from the tables."""

    rows: Mapping[str, int]
    distinct: Mapping[str, int]
    windowed: Mapping[str, int]
    too_late: Mapping[str, int]
    windows: int
    """Rows of the table of windows."""
    latency: Percentiles | None
    """From send to commit in the table."""
    start: float = 0.0
    """The send time of the first record, in seconds since 1970."""
    step: float = 1.0
    """Seconds between two points of the series below."""
    rates: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By mode: seconds since the start, and records per second."""
    latencies: Sequence[tuple[float, float, float]] = ()
    """Seconds since the start, p50 and p95."""
    histogram: Sequence[tuple[float, float, int]] = ()
    """Lower bound, upper bound (seconds) and count."""
    devices: Mapping[str, Sequence[tuple[float, float, float, float]]] = field(default_factory=dict)
    """By device: seconds since the start; mean, minimum and maximum of its readings."""


@dataclass(frozen=True)
class Summary:
    """The result of a run."""

    master: str
    topics: Sequence[str]
    source: str
    devices: int
    seconds: float
    """How long the devices sent."""
    whole_seconds: float
    """How long the command ran."""
    interrupted: bool
    batches: int
    late: Mapping[str, int]
    """Records that were sent late, by kind of lateness."""
    totals: Mapping[str, ModeTotals]
    """By mode."""
    figures: Figures
    out: str
    report: str

    @property
    def faults(self) -> list[str]:
        """The counts that are inconsistent, over all modes."""
        found = [f"{mode}: {fault}" for mode, one in self.totals.items() for fault in one.faults]
        found += [
            f"{mode}: {self.totals[mode].lost:,} lost on a reliable channel"
            for mode in RELIABLE
            if self.totals[mode].lost
        ]
        return found

    @property
    def rows(self) -> int:
        """The number of rows of the table of readings."""
        return sum(one.rows for one in self.totals.values())

    def as_json(self) -> dict[str, Any]:
        """Return the result for ``--json``."""
        return {
            "master": self.master,
            "source": self.source,
            "topics": list(self.topics),
            "devices": self.devices,
            "seconds": round(self.seconds, 3),
            "whole_seconds": round(self.whole_seconds, 3),
            "interrupted": self.interrupted,
            "batches": self.batches,
            "rows": self.rows,
            "windows": self.figures.windows,
            "modes": {mode: asdict(totals) for mode, totals in self.totals.items()},
            "late": dict(self.late),
            "latency": None if self.figures.latency is None else asdict(self.figures.latency),
            "faults": self.faults,
            "out": self.out,
            "report": self.report,
        }


def totals_by_mode(
    sent: Mapping[str, int], lost: Mapping[str, int], arrived: Mapping[str, int], figures: Figures
) -> dict[str, ModeTotals]:
    """Return the outcome of the records of each mode."""
    tables = (figures.rows, figures.distinct, figures.windowed, figures.too_late)
    counts = (sent, lost, arrived, *tables)
    return {mode: ModeTotals(*(count.get(mode, 0) for count in counts)) for mode in MODES}
