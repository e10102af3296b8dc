"""Endpoints for threads: what `aqueduct.ipc` has, with plain calls instead of awaits.

>>> from aqueduct.ipc import blocking
>>> endpoint = blocking.Endpoint("udp://127.0.0.1:0")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

from aqueduct.errors import EndpointClosed
from aqueduct.ipc import endpoint as endpoints
from aqueduct.ipc.core.config import Config
from aqueduct.ipc.core.events import Statistics
from aqueduct.ipc.message import ReceivedMessage
from aqueduct.runtime.background import background, before_stop
from aqueduct.security import ServerTLS, Trust

__all__ = ["Endpoint"]

T = TypeVar("T")

THREADS = 32
"""Functions that take messages at once, where nobody says otherwise."""
GRACE = 5.0
"""Seconds that a close gives them to return."""

_open: WeakSet[_Endpoint] = WeakSet()


class _Threads:
    """Runs a function for each message in a thread of its own pool.

    Those of the loop look up hosts: functions that wait for that would keep it from happening.
    """

    def __init__(self, function: Callable[[ReceivedMessage[Any]], object], threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="aqueduct-ipc")
        self.here = threading.local()
        self._function = function

    def __call__(self, message: ReceivedMessage[Any]) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self.pool, self._run, message)

    def _run(self, message: ReceivedMessage[Any]) -> None:
        self.here.busy = True
        try:
            self._function(message)
        finally:
            self.here.busy = False


class _Endpoint(endpoints.Endpoint[Any]):
    """An endpoint whose functions cannot be cancelled, since they run in threads."""

    def __init__(
        self, address: str, type: Any, handlers: _Threads | None, /, **options: Any
    ) -> None:
        super().__init__(address, type, on_message=handlers, **options)
        self._handlers = handlers
        self.grace = GRACE

    def is_handling(self) -> bool:
        """Whether this thread is running the function for a message."""
        return self._handlers is not None and getattr(self._handlers.here, "busy", False)

    def close_soon(self) -> None:
        """Begin to close."""
        self._start_closing()

    async def _end_handlers(self, tasks: set[asyncio.Task[None]]) -> None:
        if self._handlers is None:
            return
        self._handlers.pool.shutdown(wait=False, cancel_futures=True)
        if tasks:
            await asyncio.wait(tasks, timeout=self.grace)
        await super()._end_handlers({task for task in tasks if not task.done()})


class Endpoint(Generic[T]):
    """Sends messages to other endpoints and receives theirs; any thread may use it.

    ::

        with ipc.blocking.Endpoint("udp://127.0.0.1:0") as endpoint:
            endpoint.send("udp://127.0.0.1:5000", b"hello")
            for message in endpoint:
                endpoint.send(message.source, b"thank you")

    See `aqueduct.ipc.Endpoint`, which has the same arguments. ``on_message`` is a plain function
    here, and runs in one of ``threads`` threads that this endpoint has for it; with all of them
    busy, messages wait. It may block, and send.
    """

    @overload
    def __init__(
        self: Endpoint[bytes],
        address: str,
        /,
        *,
        on_message: Callable[[ReceivedMessage[bytes]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: Config | None = None,
        threads: int = THREADS,
    ) -> None: ...
    @overload
    def __init__(
        self,
        address: str,
        type: type[T],
        /,
        *,
        on_message: Callable[[ReceivedMessage[T]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: Config | None = None,
        threads: int = THREADS,
    ) -> None: ...
    def __init__(
        self,
        address: str,
        type: Any = bytes,
        /,
        *,
        on_message: Callable[[ReceivedMessage[Any]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: Config | None = None,
        threads: int = THREADS,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads is at least 1, not {threads}")
        if on_message is not None and not callable(on_message):
            raise TypeError(f"on_message is a function, not {on_message!r}")

        def make() -> _Endpoint:
            handlers = None if on_message is None else _Threads(on_message, threads)
            return _Endpoint(address, type, handlers, tls=tls, trust=trust, config=config)

        self._background = background()
        self._endpoint = self._background.do(make)

    def open(self) -> None:
        """Be there; ``with`` does it."""
        self._background.run(self._endpoint.open())
        _open.add(self._endpoint)

    def close(self) -> None:
        """End it: what is being sent fails, what was not taken is refused.

        Each ``on_message`` that runs has 5 seconds to return, and its message is taken if it does.
        One that closes its own endpoint does not wait for itself: the end comes when it has
        returned.
        """
        if self._endpoint.is_handling():
            self._background.do(self._endpoint.close_soon)
        else:
            self._background.run(self._endpoint.close())

    def __enter__(self) -> Endpoint[T]:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where others send to."""
        return self._endpoint.address

    def statistics(self) -> Statistics:
        """Counts since it was opened."""
        return self._background.do(self._endpoint.statistics)

    def __repr__(self) -> str:
        return repr(self._endpoint)

    def send(self, to: str, message: T, *, timeout: float | None = None) -> None:
        """Send a message, and return when its receiver has taken it.

        Raises what `aqueduct.ipc.Endpoint.send` raises.
        """
        self._background.run(self._endpoint.send(to, message, timeout=timeout))

    def receive(self, timeout: float | None = None) -> ReceivedMessage[T]:
        """The next message; `EndpointClosed` once closed, `TimeoutError` if none comes in time."""
        return self._background.run(self._endpoint.receive(), timeout)

    def __iter__(self) -> Iterator[ReceivedMessage[T]]:
        while True:
            try:
                message = self.receive()
            except EndpointClosed:
                return
            yield message


async def _close_all() -> None:
    """Close every endpoint that was left open: the program ends."""
    left = list(_open)
    for endpoint in left:
        endpoint.grace = 0.0
    await asyncio.gather(*(endpoint.close() for endpoint in left))


before_stop(_close_all)
