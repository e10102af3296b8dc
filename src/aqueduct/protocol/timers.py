"""Timers of a connection: one heap of wake-up times."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Protocol

NEVER = float("inf")
_FEW = 1_024
"""Heap size below which stale entries are not removed."""


class Sleeper(Protocol):
    """An object with one pending wake-up: the earliest time that it requested."""

    wake_at: float

    def handle_timer(self, now: float) -> None:
        """Act on the wake-up."""


class Timers:
    """A heap of wake-up times; an entry that differs from its sleeper's ``wake_at`` is stale."""

    __slots__ = ("_count", "_heap", "_most")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sleeper]] = []
        self._count = 0
        self._most = _FEW

    def wake(self, sleeper: Sleeper, at: float) -> None:
        """Wake the sleeper at the given time, or at an earlier time that it requested before."""
        if at < sleeper.wake_at:
            sleeper.wake_at = at
            self._count += 1
            heappush(self._heap, (at, self._count, sleeper))
            if len(self._heap) > self._most:
                self._sweep()

    def clear(self) -> None:
        """Cancel all wake-ups at the end of the connection."""
        self._heap.clear()

    def _sweep(self) -> None:
        """Remove the stale entries. Called when they may be half of the heap."""
        self._heap[:] = [each for each in self._heap if each[2].wake_at == each[0]]
        heapify(self._heap)
        self._most = max(_FEW, 2 * len(self._heap))

    def next(self) -> float | None:
        """Return the earliest wake-up time, or None."""
        heap = self._heap
        while heap:
            at, _, sleeper = heap[0]
            if sleeper.wake_at == at:
                return at
            heappop(heap)
        return None

    def sleepers(self) -> list[Sleeper]:
        """Return all scheduled sleepers."""
        return [sleeper for at, _, sleeper in self._heap if sleeper.wake_at == at]

    def due(self, now: float) -> list[Sleeper]:
        """Remove and return the sleepers that are due, in order."""
        heap = self._heap
        woken: list[Sleeper] = []
        while heap and heap[0][0] <= now:
            at, _, sleeper = heappop(heap)
            if sleeper.wake_at == at:
                sleeper.wake_at = NEVER
                woken.append(sleeper)
        return woken
