"""The time that the core of an endpoint goes by: one that runs on while the host sleeps.

That nothing is taken twice rests on a sender that gives up before its receiver forgets (page 8 of
docs/spec). If the sender's clock stood still while its host slept, it would try again afterwards.
Where a system has no other clock than one that stops, both hosts must not sleep while messages are
under way, or a message may be taken twice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def choose() -> Callable[[], float]:
    """The clock of this system, in seconds; it never goes backwards."""
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    number = getattr(time, name, None)
    if number is None:
        return time.monotonic  # on Windows it runs on, too
    try:
        time.clock_gettime(number)
    except OSError:
        return time.monotonic

    def read() -> float:
        return time.clock_gettime(number)

    return read


now = choose()
