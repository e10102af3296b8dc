"""Sets of message numbers in random order, the worst case."""

from functools import cache
from random import Random

from aqueduct.wire.ranges import RangeSet
from bench.measure import Benchmark, Sample, Stopwatch

COUNT = 50_000


@cache
def shuffled() -> list[int]:
    numbers = list(range(COUNT))
    Random(1).shuffle(numbers)
    return numbers


def add_in_random_order() -> Sample:
    numbers = shuffled()
    found = RangeSet()
    clock = Stopwatch()
    with clock:
        for number in numbers:
            found.add_new(number, number + 1)
    assert found == RangeSet([(0, COUNT)])
    return Sample(COUNT, clock.seconds)


def look_up_in_random_order() -> Sample:
    numbers = shuffled()
    found = RangeSet((number, number + 1) for number in range(0, COUNT, 2))
    clock = Stopwatch()
    inside = 0
    with clock:
        for number in numbers:
            if number in found:
                inside += 1
    assert inside == COUNT // 2
    return Sample(COUNT, clock.seconds)


def benchmarks() -> list[Benchmark]:
    rate = "operations/s"
    return [
        Benchmark("ranges-add", "RangeSet: add, random order", rate, add_in_random_order),
        Benchmark(
            "ranges-contains",
            "RangeSet: look up among 25,000 ranges",
            rate,
            look_up_in_random_order,
        ),
    ]
