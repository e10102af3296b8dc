"""Tasks that wait for a port: woken one at a time, without losing a wake-up to a cancellation."""

from __future__ import annotations

import asyncio
from collections import deque


class Waiters:
    """A queue of tasks."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] | None = None
        """Made when somebody waits: an empty deque is larger than all else an idle port has."""

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self) -> None:
        """Sleep until woken; the caller then looks again."""
        future = asyncio.get_running_loop().create_future()
        if self._futures is None:
            self._futures = deque()
        self._futures.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake()  # woken and cancelled at once: somebody else has to look
            elif future in self._futures:
                self._futures.remove(future)
            raise

    def wake(self) -> None:
        """Wake the one that waits longest."""
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake everybody."""
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
