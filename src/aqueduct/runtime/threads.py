"""Threads that run calls of the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """A limited number of threads, each started when no other one is idle.

    They are daemon threads if the thread that makes this object is one, so that a server in a
    daemon thread keeps no program from ending. The interpreter waits at its end for all threads of
    a `concurrent.futures.ThreadPoolExecutor`, whichever thread has made it.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._daemon = threading.current_thread().daemon
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_stopped = False

    def run(self, function: Callable[[Any], object], argument: Any) -> asyncio.Future[object]:
        """Call a function in a thread. Call this on the event loop, which gets the result.

        Raises `RuntimeError` after `stop`.
        """
        call = _Call(function, argument)
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("the threads were stopped")
            self._calls.put(call)
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._limit:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=self._daemon)
                self._threads.append(thread)
                thread.start()
        return asyncio.wrap_future(call.future)

    def stop(self) -> None:
        """Wait until all calls have returned, and end the threads."""
        with self._lock:
            self._is_stopped = True
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            settle = call.run()
            self._idle.release()  # first, so that who awaits the result finds an idle thread
            settle()
            del call, settle  # the thread keeps nothing alive while it is idle


def run_in_daemon_thread(function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Call a function in a daemon thread of its own. Call this on the event loop.

    Unlike the threads of an executor, it keeps no program from ending, and waits for no other call.
    """
    call = _Call(lambda given: function(*given), arguments)

    def run() -> None:
        call.run()()

    threading.Thread(target=run, name="aqueduct-call", daemon=True).start()
    future: asyncio.Future[Any] = asyncio.wrap_future(call.future)
    return future


class _Call:
    """A function to call, and the future of its result."""

    def __init__(self, function: Callable[[Any], object], argument: Any) -> None:
        self.future: concurrent.futures.Future[object] = concurrent.futures.Future()
        self._function = function
        self._argument = argument

    def run(self) -> Callable[[], None]:
        """Call the function, and return what sets the result."""
        if not self.future.set_running_or_notify_cancel():
            return lambda: None
        try:
            result = self._function(self._argument)
        except (SystemExit, KeyboardInterrupt) as error:
            # These would end the event loop, and with it all connections of the process.
            failure = RuntimeError(f"{error!r} was raised in a thread, which ends no program")
            failure.__cause__ = error
            return partial(self.future.set_exception, failure)
        except BaseException as error:  # noqa: BLE001 -- raised where the future is awaited
            return partial(self.future.set_exception, error)
        return partial(self.future.set_result, result)
