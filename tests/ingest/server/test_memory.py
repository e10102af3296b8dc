"""Free memory goes back to the operating system."""

from __future__ import annotations

import os
import sys

import pytest

from aqueduct.ingest.server import memory
from tests.hostile.attacks import MEGABYTE, resident


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_free_memory_is_returned_to_the_system() -> None:
    if memory._trim is None:
        pytest.skip("this C library keeps what it has")
    # Below the threshold from which malloc maps each block by itself, with one in use behind.
    blocks = [bytes(100_000) for _ in range(1_000)]
    kept = blocks[::100]
    full = resident(os.getpid())
    del blocks
    memory.release_free_memory()
    assert full - resident(os.getpid()) > 50 * MEGABYTE
    assert len(kept) == 10
