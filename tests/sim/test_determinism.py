"""The same seed gives the same run, bit for bit, in this process and in another."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from aqueduct.testing.simulate import PROTOCOLS
from aqueduct.testing.transcript import transcript, transcript_hash

pytestmark = pytest.mark.parametrize("protocol", PROTOCOLS)


def hash_of(protocol: str, seed: int) -> str:
    return transcript_hash(transcript(PROTOCOLS[protocol](seed).record))


first_hash_of = cache(hash_of)
"""The hash of the first run in this process."""


@pytest.mark.parametrize("seed", range(20))
def test_two_runs_of_a_seed_have_the_same_transcript(protocol: str, seed: int) -> None:
    assert first_hash_of(protocol, seed) == hash_of(protocol, seed)


def test_different_seeds_have_different_transcripts(protocol: str) -> None:
    assert len({first_hash_of(protocol, seed) for seed in range(20)}) == 20


@pytest.mark.parametrize("hash_seed", ["0", "1", "31337"])
def test_the_hash_seed_of_the_process_does_not_change_the_transcript(
    protocol: str, hash_seed: str
) -> None:
    program = (
        "from aqueduct.testing.simulate import PROTOCOLS\n"
        "from aqueduct.testing.transcript import transcript, transcript_hash\n"
        "for seed in range(15):\n"
        f"    print(transcript_hash(transcript(PROTOCOLS[{protocol!r}](seed).record)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [first_hash_of(protocol, seed) for seed in range(15)]
