"""Virtual time: a clock that jumps from one scheduled call to the next, in one fixed order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import TypeVar

Argument = TypeVar("Argument")


class Clock:
    """Time that passes only when it is told to.

    Calls due at the same instant run in the order they were scheduled, so that a run depends on
    nothing but what it schedules::

        clock = Clock()
        clock.after(0.5, print, "half a second")
        clock.run(seconds=1)
    """

    __slots__ = ("_heap", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], object]] = []
        self._order = 0

    def at(self, time: float, call: Callable[[Argument], object], argument: Argument) -> None:
        """Schedule ``call(argument)``; a time that has passed means now."""
        self._order += 1
        heapq.heappush(self._heap, (max(time, self.now), self._order, call, argument))

    def after(self, delay: float, call: Callable[[Argument], object], argument: Argument) -> None:
        """Schedule ``call(argument)`` in ``delay`` seconds."""
        self.at(self.now + delay, call, argument)

    @property
    def next_time(self) -> float | None:
        """When the next call is due; None when nothing is scheduled."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Make the next call, and say whether there was one."""
        if not self._heap:
            return False
        self.now, _, call, argument = heapq.heappop(self._heap)
        call(argument)
        return True

    def run(self, seconds: float) -> None:
        """Make every call due within ``seconds``, then stand exactly at their end."""
        end = self.now + seconds
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.step()
        self.now = end

    def run_until_idle(self, limit: float) -> bool:
        """Run until nothing is scheduled; False if that took more than ``limit`` seconds."""
        end = self.now + limit
        heap = self._heap
        while heap:
            if heap[0][0] > end:
                self.now = end
                return False
            self.step()
        return True


def seeded(seed: int, purpose: str) -> Random:
    """A source of random choices for one purpose, undisturbed by what others draw from theirs."""
    return Random(f"{seed}/{purpose}")
