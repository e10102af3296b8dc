"""A queue of waiting tasks in which a cancellation loses no wake-up."""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class Waiters:
    """Tasks that wait for a port, woken in FIFO order."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: OrderedDict[asyncio.Future[None], None] | None = None
        """Created when a task waits: an idle port needs none. Not a deque, because removing a
        cancelled task from a deque takes linear time."""

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self) -> None:
        """Wait until woken; the caller then checks its condition again."""
        future = asyncio.get_running_loop().create_future()
        if self._futures is None:
            self._futures = OrderedDict()
        self._futures[future] = None
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake()  # woken and cancelled at once: pass the wake-up on
            else:
                self._futures.pop(future, None)
            raise

    def wake(self) -> None:
        """Wake the task that has waited longest."""
        while self._futures:
            future, _ = self._futures.popitem(last=False)
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake all tasks."""
        while self._futures:
            future, _ = self._futures.popitem(last=False)
            if not future.done():
                future.set_result(None)
