"""The same seed gives the same run, bit for bit, in this process and in another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aqueduct.testing.simulation import simulate
from aqueduct.testing.story import story_hash, tell


def hash_of(seed: int) -> str:
    return story_hash(tell(simulate(seed).record))


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_played_twice_is_the_same_story(seed: int) -> None:
    assert hash_of(seed) == hash_of(seed)


def test_different_seeds_are_different_stories() -> None:
    assert len({hash_of(seed) for seed in range(20)}) == 20


@pytest.mark.parametrize("hash_seed", ["0", "1", "31337"])
def test_a_process_that_hashes_differently_tells_the_same_story(hash_seed: str) -> None:
    program = (
        "from aqueduct.testing.simulation import simulate\n"
        "from aqueduct.testing.story import story_hash, tell\n"
        "for seed in range(15): print(story_hash(tell(simulate(seed).record)))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == [hash_of(seed) for seed in range(15)]
