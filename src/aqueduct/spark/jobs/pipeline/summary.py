"""What a run was: the accounts of every record, rates, latency and aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aqueduct.spark.jobs.pipeline.fleet import MODES

RELIABLE = ("ordered", "unordered")


@dataclass(frozen=True)
class Account:
    """What became of the records of one mode."""

    sent: int
    """By the devices."""
    lost: int
    """On the way to the gateway, as the senders know it."""
    arrived: int
    """At the gateway, which had them stored."""
    rows: int
    """In the table of readings."""
    distinct: int
    """Of these, how many are not the same as another."""
    windowed: int
    """Counted in the table of windows."""
    too_late: int
    """In windows that were closed already when they came, and so in none."""

    @property
    def faults(self) -> list[str]:
        """What does not add up."""
        found = []
        if self.sent != self.arrived + self.lost:
            found.append(f"{self.sent:,} sent, {self.arrived:,} arrived and {self.lost:,} lost")
        if self.rows != self.arrived:
            found.append(f"{self.arrived:,} arrived and {self.rows:,} in the table")
        if self.distinct != self.rows:
            found.append(f"{self.rows - self.distinct:,} twice in the table")
        if self.windowed + self.too_late != self.rows:
            found.append(
                f"{self.rows:,} in the table, {self.windowed:,} in windows and "
                f"{self.too_late:,} too late"
            )
        return found


@dataclass(frozen=True)
class Spread:
    """Percentiles, in seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Figures:
    """What is computed from the tables."""

    rows: Mapping[str, int]
    distinct: Mapping[str, int]
    windowed: Mapping[str, int]
    too_late: Mapping[str, int]
    windows: int
    """Rows of the table of windows."""
    latency: Spread | None
    """From sending to being in the table."""
    start: float = 0.0
    """When the first record was sent, in seconds since 1970."""
    step: float = 1.0
    """Seconds between two points of what follows."""
    rates: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By mode: seconds since the start, and records a second."""
    latencies: Sequence[tuple[float, float, float]] = ()
    """Seconds since the start, p50 and p95."""
    histogram: Sequence[tuple[float, float, int]] = ()
    """From, to (seconds), and how many."""
    devices: Mapping[str, Sequence[tuple[float, float, float, float]]] = field(default_factory=dict)
    """By device: seconds since the start, mean, least and greatest of its readings."""


@dataclass(frozen=True)
class Summary:
    """A run, when it is over."""

    master: str
    topics: Sequence[str]
    source: str
    devices: int
    seconds: float
    """For which devices sent."""
    whole_seconds: float
    """From the start of the command."""
    interrupted: bool
    batches: int
    late: Mapping[str, int]
    """Sent late, by how late."""
    accounts: Mapping[str, Account]
    figures: Figures
    out: str
    report: str

    @property
    def faults(self) -> list[str]:
        """What does not add up, over all modes; nothing, if all is well."""
        found = [f"{mode}: {fault}" for mode, one in self.accounts.items() for fault in one.faults]
        found += [
            f"{mode}: {self.accounts[mode].lost:,} lost on a channel that loses nothing"
            for mode in RELIABLE
            if self.accounts[mode].lost
        ]
        return found

    @property
    def rows(self) -> int:
        """In the table of readings."""
        return sum(one.rows for one in self.accounts.values())

    def as_json(self) -> dict[str, Any]:
        """What programs read."""
        latency = self.figures.latency
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
            "modes": {
                mode: {
                    "sent": one.sent,
                    "lost": one.lost,
                    "arrived": one.arrived,
                    "rows": one.rows,
                    "distinct": one.distinct,
                    "windowed": one.windowed,
                    "too_late": one.too_late,
                }
                for mode, one in self.accounts.items()
            },
            "late": dict(self.late),
            "latency": None
            if latency is None
            else {"p50": latency.p50, "p95": latency.p95, "p99": latency.p99},
            "faults": self.faults,
            "out": self.out,
            "report": self.report,
        }


def accounts(
    sent: Mapping[str, int], lost: Mapping[str, int], arrived: Mapping[str, int], figures: Figures
) -> dict[str, Account]:
    """For each mode what became of its records."""
    return {
        mode: Account(
            sent=sent.get(mode, 0),
            lost=lost.get(mode, 0),
            arrived=arrived.get(mode, 0),
            rows=figures.rows.get(mode, 0),
            distinct=figures.distinct.get(mode, 0),
            windowed=figures.windowed.get(mode, 0),
            too_late=figures.too_late.get(mode, 0),
        )
        for mode in MODES
    }
