"""Connection racing: start the preferred transport first, and the next one after a short delay."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aqueduct.errors import HandshakeFailed, HostUnreachable

T = TypeVar("T")

RACE_DELAY = 0.25
"""Seconds to wait for an answer over one transport before the next one is tried as well."""
REMEMBERED = 600.0
"""Seconds for which the transport that won the last race to a server is tried first."""
_MOST_REMEMBERED = 1_024

Attempt = Callable[[Callable[[], None]], Coroutine[Any, Any, T]]
"""One way to get the result. It has won when it calls its argument, or else when it returns."""


async def race(
    attempts: Sequence[Attempt[T]], delay: float, discard: Callable[[T], object]
) -> tuple[int, T]:
    """Return the first attempt that wins, by its index, and its result.

    The attempts start in order: each when the previous one has failed, or ``delay`` seconds after
    its start. The winner cancels the others. If all fail, this raises the first error, or a later
    one after which a retry may succeed. An error that the server has answered with ends the race.
    ``discard`` gets a result that comes too late: after another one, or when this is cancelled.
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
        for late in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(late, BaseException):
                discard(late)


class Winners:
    """Remembers for `REMEMBERED` seconds which transport won the last race to a server.

    That transport is tried first. After that time the default order applies again, because the path
    may no longer block the others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._won: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """The index of the transport that has won, and until when it is preferred."""

    def order(self, server: str, count: int) -> list[int]:
        """Return the order in which to try this number of transports, as indices."""
        indices = list(range(count))
        index, until = self._won.get(server, (0, 0.0))
        if index and self._clock() < until:
            indices.insert(0, indices.pop(index))
        return indices

    def remember(self, server: str, index: int) -> None:
        """Remember a winner, unless it is remembered already."""
        now = self._clock()
        before, until = self._won.get(server, (-1, 0.0))
        if before == index and now < until:
            return
        self._won.pop(server, None)
        if index:  # the first one is preferred anyway
            self._won[server] = index, now + REMEMBERED
            while len(self._won) > _MOST_REMEMBERED:
                self._won.popitem(last=False)
