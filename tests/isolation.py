"""What tests with processes have in common: a time limit, and certificates of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

HARD_LIMIT = 300.0
"""Seconds: no test takes a tenth of that on an idle machine."""


@contextmanager
def time_limit(seconds: float = HARD_LIMIT) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread after a time, also if its event loop is blocked."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test did not end within {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def own_certificates(directory: Path) -> Iterator[None]:
    """Keep the development certificates of this process and its children in a directory."""
    before = os.environ.get("AQUEDUCT_DEV_DIR")
    os.environ["AQUEDUCT_DEV_DIR"] = str(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ["AQUEDUCT_DEV_DIR"]
        else:
            os.environ["AQUEDUCT_DEV_DIR"] = before
