"""One event loop in a thread, for everything that blocks: shared by a process, made when needed."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aqueduct.errors import AqueductError, ConnectionLost, ForkedConnectionError

T = TypeVar("T")

_GOODBYE = 1.0
"""How long the end of the program waits for what was left open to say so."""

_goodbyes: list[Callable[[], Coroutine[Any, Any, None]]] = []


def before_stop(goodbye: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have something done on the loop before the end of the program."""
    _goodbyes.append(goodbye)


class Background:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.forked = False
        self._thread = threading.Thread(target=self._run, name="aqueduct", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it; `TimeoutError` when that takes too long."""
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        if timeout is not None:
            # The clock runs on the loop, so that what was done in time is never given up.
            work = _within(work, timeout)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def do(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a plain call on the loop and wait for it."""

        async def work() -> T:
            return call(*arguments)

        return self.run(work())

    def soon(self, call: Callable[..., object]) -> None:
        """Make a plain call on the loop, some time."""
        if not self.forked and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call)

    def check(self) -> None:
        """Raise rather than wait for what cannot happen."""
        if self.forked:
            raise ForkedConnectionError(
                "this was made before fork(); make it again in the child process"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the background thread would wait for itself")
        if self.loop.is_closed():
            raise ConnectionLost("the program is ending")

    def stop(self) -> None:
        """Say goodbye on whatever was left open, and stop."""
        if self.forked or self.loop.is_closed():
            return
        for goodbye in _goodbyes:
            with contextlib.suppress(TimeoutError, AqueductError):
                self.run(goodbye(), _GOODBYE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_GOODBYE)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()


class _State:
    """The one loop of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.background: Background | None = None


_state = _State()


def background() -> Background:
    """The loop of this process, started when it is first needed."""
    with _state.lock:
        if _state.background is None or _state.background.loop.is_closed():
            _state.background = Background()
        return _state.background


def _after_fork() -> None:
    if _state.background is not None:
        _state.background.forked = True
    _state.background = None
    _state.lock = threading.Lock()


def _at_exit() -> None:
    if _state.background is not None:
        _state.background.stop()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def _within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TimeoutError(f"not done within {seconds:g} s") from None


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
