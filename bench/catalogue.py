"""All benchmarks, in the order of the table."""

from bench import channels, encode, memory, modes, receive, reference
from bench.measure import Benchmark

SUBJECTS = (reference, encode, receive, modes, channels, memory)


def all_benchmarks() -> dict[str, Benchmark]:
    return {each.name: each for subject in SUBJECTS for each in subject.benchmarks()}
