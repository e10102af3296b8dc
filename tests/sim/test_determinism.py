"""The same seed gives the same run, bit for bit, in this process and in another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aqueduct.testing.simulate import PROTOCOLS
from aqueduct.testing.transcript import transcript_hash

pytestmark = pytest.mark.parametrize("protocol", PROTOCOLS)


def hash_of(protocol: str, seed: int) -> str:
    simulated = PROTOCOLS[protocol]
    return transcript_hash(simulated.transcript(simulated.simulate(seed).record))


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_played_twice_is_the_same_story(protocol: str, seed: int) -> None:
    assert hash_of(protocol, seed) == hash_of(protocol, seed)


def test_different_seeds_are_different_stories(protocol: str) -> None:
    assert len({hash_of(protocol, seed) for seed in range(20)}) == 20


@pytest.mark.parametrize("hash_seed", ["0", "1", "31337"])
def test_a_process_that_hashes_differently_has_the_same_transcript(
    protocol: str, hash_seed: str
) -> None:
    program = (
        "from aqueduct.testing.simulate import PROTOCOLS\n"
        "from aqueduct.testing.transcript import transcript_hash\n"
        f"simulated = PROTOCOLS[{protocol!r}]\n"
        "for seed in range(15):\n"
        "    print(transcript_hash(simulated.transcript(simulated.simulate(seed).record)))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == [hash_of(protocol, seed) for seed in range(15)]
