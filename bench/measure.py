"""What a benchmark is, and how it is timed."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import process_time
from types import TracebackType


@dataclass(frozen=True)
class Sample:
    """What one round found: so much of something, in so many seconds or for so many channels."""

    amount: float
    per: float

    @property
    def value(self) -> float:
        return self.amount / self.per


@dataclass(frozen=True)
class Benchmark:
    """A function that runs one round, and how to read its value."""

    name: str
    what: str
    unit: str
    run: Callable[[], Sample]
    reference: "Benchmark | None" = None
    """Measured in turn with this one in the same process: the figure to divide by."""
    uses_core: bool = True
    """Whether it makes a difference which build of the core runs."""
    repeats: bool = True
    """Whether rounds differ at all; memory does not."""


@dataclass(frozen=True)
class Measured:
    """Median and extremes over all rounds."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """How far the extremes are apart, as a part of the median."""
        return (self.high - self.low) / self.median


class Stopwatch:
    """Adds up the processor time spent inside ``with``.

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
    """The benchmark's figure, and its ratio to the reference, from rounds that take turns."""
    if not benchmark.repeats:
        return summary([benchmark.run().value]), None
    values: list[float] = []
    ratios: list[float] = []
    for round_number in range(repeat + 1):
        reference = fresh(benchmark.reference) if benchmark.reference is not None else None
        value = fresh(benchmark)
        if round_number == 0:
            continue  # it warmed up caches and Python's specialising interpreter
        values.append(value)
        if reference is not None:
            ratios.append(value / reference)
    return summary(values), summary(ratios) if ratios else None


def fresh(benchmark: Benchmark) -> float:
    """One round, without the garbage of those before it."""
    gc.collect()
    return benchmark.run().value


def summary(values: list[float]) -> Measured:
    return Measured(median(values), min(values), max(values))
