"""Virtual time: a clock that jumps from one scheduled call to the next in a fixed order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import TypeVar

from aqueduct.errors import AqueductError

Argument = TypeVar("Argument")


class StuckTimer(AqueductError):
    """A core set its timer to the same instant repeatedly, and would never advance."""


class VirtualClock:
    """A clock that advances only when it is run.

    Calls that are due at the same instant run in the order in which they were scheduled, so a
    run depends only on what it schedules::

        clock = VirtualClock()
        clock.after(0.5, print, "half a second")
        clock.run(seconds=1)
    """

    __slots__ = ("_heap", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], object]] = []
        self._order = 0

    def at(self, time: float, call: Callable[[Argument], object], argument: Argument) -> None:
        """Schedule ``call(argument)`` for ``time``, or for now if that is in the past."""
        self._order += 1
        heapq.heappush(self._heap, (max(time, self.now), self._order, call, argument))

    def after(self, delay: float, call: Callable[[Argument], object], argument: Argument) -> None:
        """Schedule ``call(argument)`` in ``delay`` seconds."""
        self.at(self.now + delay, call, argument)

    def step(self) -> bool:
        """Make the next call; return False if none is scheduled."""
        if not self._heap:
            return False
        self.now, _, call, argument = heapq.heappop(self._heap)
        call(argument)
        return True

    def run(self, seconds: float) -> None:
        """Make every call due within ``seconds``, then advance exactly to their end."""
        end = self.now + seconds
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.step()
        self.now = end

    def run_until_idle(self, limit: float) -> bool:
        """Run until nothing is scheduled; return False after ``limit`` seconds."""
        end = self.now + limit
        heap = self._heap
        while heap:
            if heap[0][0] > end:
                self.now = end
                return False
            self.step()
        return True


def seeded(seed: int, purpose: str) -> Random:
    """Return an RNG for one purpose; draws for other purposes do not affect it."""
    return Random(f"{seed}/{purpose}")
