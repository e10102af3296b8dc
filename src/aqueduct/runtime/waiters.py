"""A queue of waiting tasks in which a cancellation loses no wake-up, and checks of their loop."""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop
from collections import OrderedDict

from aqueduct.errors import LocalProtocolError

OTHER_LOOP = (
    "another event loop: use it in tasks of the loop that made it; loop.call_soon_threadsafe and "
    "asyncio.run_coroutine_threadsafe take work there, and any thread may use aqueduct.blocking"
)
"""The end of the error for a call from a wrong loop or thread."""


def is_foreign(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the caller must not use what belongs to this event loop.

    A call between two runs of the loop, in which no loop runs, disturbs no task.
    """
    running = _get_running_loop()
    return running is not loop and (running is not None or loop.is_running())


class Waiters:
    """Tasks that wait for a port, woken in FIFO order."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: OrderedDict[asyncio.Future[None], None] | None = None
        """Created when a task waits: an idle port needs none. Not a deque, because removing a
        cancelled task from a deque takes linear time."""

    def __bool__(self) -> bool:
        return bool(self._futures)

    def __len__(self) -> int:
        return len(self._futures or ())

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


class LocalWaiters(Waiters):
    """Tasks that wait for a local channel, whose other half another thread may hold."""

    __slots__ = ()

    def wake(self) -> None:
        """Wake the task that has waited longest; raise if it waits in another event loop."""
        if self._futures:
            self.check_loop()
            super().wake()

    def wake_all(self) -> None:
        """Wake all tasks; raise if they wait in another event loop."""
        if self._futures:
            self.check_loop()
            super().wake_all()

    def check_loop(self) -> None:
        """Raise if tasks wait in another event loop, in which this call could not wake them."""
        loop = self.loop()
        if loop is not None and is_foreign(loop):
            raise LocalProtocolError(
                f"a task waits for the other half of this channel in {OTHER_LOOP}"
            )

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop in which tasks wait, if any do."""
        return next(iter(self._futures)).get_loop() if self._futures else None
