"""Each test here has a time limit that even a busy loop cannot ignore, and its own certificates."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

HARD_LIMIT = 150.0 + float(os.environ.get("CAMPAIGN_SECONDS", "0"))

if sys.platform != "linux":
    # Memory is read from /proc.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("certificates")
    before = os.environ.get("AQUEDUCT_DEV_DIR")
    os.environ["AQUEDUCT_DEV_DIR"] = str(directory)
    yield directory
    if before is None:
        del os.environ["AQUEDUCT_DEV_DIR"]
    else:
        os.environ["AQUEDUCT_DEV_DIR"] = before


@pytest.fixture(autouse=True)
def hard_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test did not end within {HARD_LIMIT:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, HARD_LIMIT)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
