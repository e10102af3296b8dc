"""The clock and the randomness of the operating system, which the core takes as arguments.

The clock runs while the host sleeps. A message is not delivered twice because a sender gives up
before its receiver forgets the message (page 8 of docs/spec). A clock that stopped during sleep
would let the sender retry after that time. Where a system has only a clock that stops, a message
may be delivered twice if a host sleeps during the transfer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from random import Random

_POOL = 4_096
"""Bytes to read from the system at a time: the call costs as much as sending a small message."""


def choose_clock() -> Callable[[], float]:
    """Return the clock of this system, in seconds; it never goes backwards."""
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    number = getattr(time, name, None)
    if number is None:
        return time.monotonic  # on Windows it also runs during sleep
    try:
        time.clock_gettime(number)
    except OSError:
        return time.monotonic

    def read() -> float:
        return time.clock_gettime(number)

    return read


now = choose_clock()


class SystemRandomness:
    """Unpredictable ids from the system's RNG, and backoffs from a fast one.

    An endpoint does not survive a fork, so no two processes share the pool of random bytes.
    """

    __slots__ = ("_at", "_pool", "uniform")

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0
        self.uniform = Random().uniform

    def randbytes(self, n: int, /) -> bytes:
        """Return unpredictable bytes; each byte of the system's RNG is used once."""
        at = self._at
        end = at + n
        if end > len(self._pool):
            self._pool = os.urandom(max(_POOL, n))
            at, end = 0, n
        self._at = end
        return self._pool[at:end]
