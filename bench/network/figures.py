"""Arithmetic: the length of a stream, and the summary of several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LONG_ENOUGH = 0.75
"""The fraction of the wanted time that a stream must last to count."""
FEWEST = 100


def first_count(large: bool) -> int:
    return 100 if large else 500


def larger_count(count: int, seconds: float, wanted: float) -> int:
    """Return the length of the next stream after one that was too short."""
    factor = 1.5 * wanted / max(seconds, 1e-9)
    return int(count * min(8.0, max(2.0, factor)))


def full_count(rate: float, seconds: float) -> int:
    """Return the number of messages for a stream of this duration."""
    return max(FEWEST, int(rate * seconds))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def beside_bulk(name: str, idle: Sequence[int], loaded: Sequence[int]) -> dict[str, float]:
    """Return the figures of one kind of probe, from its times in nanoseconds."""
    before = percentile(idle, 99) / 1e3
    p50, p99 = (percentile(loaded, percent) / 1e3 for percent in (50, 99))
    return {
        f"{name}_idle": before,
        f"{name}_p50": p50,
        f"{name}_p99": p99,
        f"{name}_share": p99 / (3 * before + 2_000),
    }


@dataclass(frozen=True)
class Summary:
    """Median and extremes over the runs."""

    median: float
    low: float
    high: float
    runs: int

    @property
    def spread(self) -> float:
        """Half the distance between the extremes, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def summary(values: Sequence[float]) -> Summary:
    return Summary(median(values), min(values), max(values), len(values))
