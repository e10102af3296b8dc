"""Benchmarks and their timing."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import process_time
from types import TracebackType


@dataclass(frozen=True)
class Sample:
    """The result of one round: an amount, and the seconds or channels to divide it by."""

    amount: float
    per: float

    @property
    def value(self) -> float:
        return self.amount / self.per


@dataclass(frozen=True)
class Benchmark:
    """A function that runs one round, and the unit of its value."""

    name: str
    what: str
    unit: str
    run: Callable[[], Sample]
    reference: "Benchmark | None" = None
    """The reference to divide by, measured alternately in the same process."""
    uses_core: bool = True
    """Whether the result depends on the build of the core."""
    repeats: bool = True
    """Whether rounds differ; those of memory do not."""


@dataclass(frozen=True)
class Measured:
    """Median and extremes over all rounds."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The distance between the extremes, as a fraction of the median."""
        return (self.high - self.low) / self.median


class Stopwatch:
    """Sums the processor time spent inside ``with``.

    The core does not wait, so on an idle machine this is the time on the clock; on a busy one the
    turns of other processes do not count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = process_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += process_time() - self._started


def measure(benchmark: Benchmark, repeat: int) -> tuple[Measured, Measured | None]:
    """Return the figure of a benchmark and its ratio to the reference, from alternating rounds."""
    if not benchmark.repeats:
        return summary([benchmark.run().value]), None
    values: list[float] = []
    ratios: list[float] = []
    for round_number in range(repeat + 1):
        reference = fresh(benchmark.reference) if benchmark.reference is not None else None
        value = fresh(benchmark)
        if round_number == 0:
            continue  # the warm-up round
        values.append(value)
        if reference is not None:
            ratios.append(value / reference)
    return summary(values), summary(ratios) if ratios else None


def fresh(benchmark: Benchmark) -> float:
    """Run one round after a garbage collection."""
    gc.collect()
    return benchmark.run().value


def summary(values: list[float]) -> Measured:
    return Measured(median(values), min(values), max(values))
