"""A race between transports: the preferred one first, and the next one soon after."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aqueduct.errors import HandshakeFailed, HostUnreachable

T = TypeVar("T")

RACE_DELAY = 0.25
"""Seconds after which the next transport is tried, while the one before has not answered."""
REMEMBERED = 600.0
"""Seconds for which a server's winner is preferred."""
_MOST_REMEMBERED = 1_024

Attempt = Callable[[Callable[[], None]], Coroutine[Any, Any, T]]
"""One way to get the result. It calls its argument when it has won, if not when it returns."""


async def race(attempts: Sequence[Attempt[T]], delay: float) -> tuple[int, T]:
    """Return the first attempt that wins, by its index, and its result.

    The attempts begin in order: the next one when the one before has failed, or after ``delay``
    seconds. One that has won ends the others. If all have failed, this raises the first error, or
    one that says that another try may succeed. An error that is an answer of the server ends the
    race.
    """
    running: dict[asyncio.Task[T], int] = {}
    winner: asyncio.Task[T] | None = None
    errors: list[Exception] = []
    waiting = list(enumerate(attempts))

    def won() -> None:
        nonlocal winner
        if winner is None:
            winner = asyncio.current_task()
            waiting.clear()
            for task in running:
                if task is not winner:
                    task.cancel()

    try:
        while waiting or running:
            if waiting and (winner is None):
                index, attempt = waiting.pop(0)
                running[asyncio.create_task(attempt(won))] = index
            done, _ = await asyncio.wait(
                running,
                timeout=delay if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                index = running.pop(task)
                if task.cancelled():
                    continue
                error = task.exception()
                if error is None:
                    return index, task.result()
                if task is winner or not isinstance(error, HostUnreachable | HandshakeFailed):
                    raise error
                errors.append(error)
        raise next((each for each in errors if isinstance(each, HandshakeFailed)), errors[0])
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Winners:
    """Which transport has won the last race to a server, for a while.

    What has won because another one was blocked is tried first the next time. Later the usual order
    counts again: what was blocked may pass.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._won: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """The index of the transport that has won, and until when it is preferred."""

    def order(self, server: str, count: int) -> list[int]:
        """Return the order in which to try so many transports."""
        indices = list(range(count))
        index, until = self._won.get(server, (0, 0.0))
        if index and self._clock() < until:
            indices.insert(0, indices.pop(index))
        return indices

    def remember(self, server: str, index: int) -> None:
        """Remember a winner, unless it was remembered already."""
        now = self._clock()
        before, until = self._won.get(server, (-1, 0.0))
        if before == index and now < until:
            return
        self._won.pop(server, None)
        if index:  # the first one is preferred anyway
            self._won[server] = index, now + REMEMBERED
            while len(self._won) > _MOST_REMEMBERED:
                self._won.popitem(last=False)
