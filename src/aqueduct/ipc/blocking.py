"""Endpoints for threads: the API of `aqueduct.ipc` with plain calls instead of awaits.

>>> from aqueduct.ipc import blocking
>>> endpoint = blocking.Endpoint("udp://127.0.0.1:0")
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar, overload
from weakref import WeakSet

from aqueduct.codec import codec_for
from aqueduct.errors import EndpointClosed
from aqueduct.ipc import endpoint as endpoints
from aqueduct.ipc.arguments import check_address, check_timeout
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.ipc.message import ReceivedMessage, encode_message
from aqueduct.ipc.transports.tcp import TcpLimits
from aqueduct.runtime.background import (
    Attribute,
    BlockingTwin,
    background,
    before_stop,
    on_loop,
)
from aqueduct.security import ServerTLS, Trust

__all__ = ["Endpoint"]

T = TypeVar("T")

THREADS = 32
"""The default number of threads that run ``on_message``."""
GRACE = 5.0
"""Seconds that `close` waits for ``on_message`` functions to return."""

_log = logging.getLogger("aqueduct.ipc")

_open: WeakSet[_ThreadedEndpoint] = WeakSet()


class _Threads:
    """Runs a function for each message in a thread pool.

    The pool is not the loop's: that one resolves host names, and functions that wait for a name
    would block it.
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


class _ThreadedEndpoint(endpoints.Endpoint[Any]):
    """An endpoint whose ``on_message`` runs in threads, which cannot be cancelled."""

    def __init__(
        self, address: str, type: Any, handlers: _Threads | None, /, **options: Any
    ) -> None:
        super().__init__(address, type, on_message=handlers, **options)
        self._handlers = handlers
        self.grace = GRACE

    def is_handling(self) -> bool:
        """Return whether the calling thread runs ``on_message``."""
        return self._handlers is not None and getattr(self._handlers.here, "busy", False)

    def close_soon(self) -> None:
        """Start to close without waiting."""
        self._start_closing()

    async def _end_handlers(self, tasks: set[asyncio.Task[None]]) -> None:
        if self._handlers is None:
            return
        self._handlers.pool.shutdown(wait=False, cancel_futures=True)
        if tasks:
            await asyncio.wait(tasks, timeout=self.grace)
        await super()._end_handlers({task for task in tasks if not task.done()})


class Endpoint(BlockingTwin[_ThreadedEndpoint], Generic[T]):
    """Sends messages to other endpoints and receives theirs; any thread may use it.

    ::

        with ipc.blocking.Endpoint("udp://127.0.0.1:0") as endpoint:
            endpoint.send("udp://127.0.0.1:5000", b"hello")
            for message in endpoint:
                endpoint.send(message.source, b"thank you")

    See `aqueduct.ipc.Endpoint`, which has the same arguments. ``on_message`` is a plain function
    here. The endpoint runs it in one of ``threads`` threads, so it may block, and send; messages
    wait while all threads are busy.
    """

    address = Attribute[str]("The address that others send to.")

    max_pdu = Attribute[int](
        "The size in bytes of the largest PDU that new transfers send and take."
    )

    statistics = on_loop(endpoints.Endpoint.statistics)
    resize = on_loop(endpoints.Endpoint.resize)
    change_owner = on_loop(endpoints.Endpoint.change_owner)

    @overload
    def __init__(
        self: Endpoint[bytes],
        address: str,
        /,
        *,
        on_message: Callable[[ReceivedMessage[bytes]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
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
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
        threads: int = THREADS,
    ) -> None: ...
    @overload
    def __init__(
        self: Endpoint[Any],
        address: str,
        type: Any,
        /,
        *,
        on_message: Callable[[ReceivedMessage[Any]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
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
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
        threads: int = THREADS,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads is at least 1, not {threads}")
        if on_message is not None and not callable(on_message):
            raise TypeError(f"on_message is a function, not {on_message!r}")

        def make() -> _ThreadedEndpoint:
            handlers = None if on_message is None else _Threads(on_message, threads)
            options = {"tls": tls, "trust": trust, "config": config, "limits": limits}
            return _ThreadedEndpoint(address, type, handlers, **options)

        where = background()
        super().__init__(where.call(make), where)
        self._type = type
        self._callbacks: ThreadPoolExecutor | None = None
        self._callbacks_lock = threading.Lock()

    def open(self) -> None:
        """Open the endpoint and bind its address. Called by ``with``."""
        self._background.run(self._inner.open())
        _open.add(self._inner)

    def close(self) -> None:
        """Close the endpoint: pending sends fail, and messages that were not received are refused.

        Each running ``on_message`` has 5 seconds to return, and its message counts as received if
        it does. An ``on_message`` that closes its own endpoint does not wait: the endpoint closes
        after it has returned.
        """
        if self._inner.is_handling():
            self._background.call(self._inner.close_soon)
        else:
            self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self.open()
        return self

    def _leave(self, *, failed: bool) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)

    def send(self, to: str, message: T, *, timeout: float | None = None) -> None:
        """Send a message, and return when its receiver has taken it; see `ipc.Endpoint.send`."""
        self._background.run(self._inner.send(to, message, timeout=timeout))

    def send_soon(
        self,
        to: str,
        message: T,
        *,
        timeout: float | None = None,
        callback: Callable[[BaseException | None], object] | None = None,
    ) -> Future[None]:
        """Send a message without waiting, and return the future of its delivery.

        `Future.result` returns once the receiver has taken the message, and raises what `send`
        would; `Future.cancel` aborts the transfer. ``callback`` is called when the future is done,
        with the error or None. Callbacks run one after the other in a thread of the endpoint, and
        may use it.

        The message is encoded before this returns. Arguments of a wrong type raise here, and what
        is wrong with the address raises from the future. Nothing bounds the messages that wait, so
        bound the number of open futures.
        """
        check_address(to)
        seconds = None if timeout is None else check_timeout(timeout)
        payload = encode_message(codec_for(self._type), message)
        future = self._background.submit(self._deliver(to, payload, seconds))
        if callback is not None:
            self._call_when_done(future, callback)
        return future

    async def _deliver(self, to: str, payload: bytes, seconds: float | None) -> None:
        due = None if seconds is None else self._background.loop.time() + seconds
        await self._inner._send(to, payload, due)

    def _call_when_done(
        self, future: Future[None], callback: Callable[[BaseException | None], object]
    ) -> None:
        """Call a function in the thread for callbacks; the loop must not run it."""
        with self._callbacks_lock:
            if self._callbacks is None:
                self._callbacks = ThreadPoolExecutor(1, "aqueduct-ipc-callback")
            pool = self._callbacks

        def call() -> None:
            error = CancelledError() if future.cancelled() else future.exception()
            try:
                callback(error)
            except Exception:  # noqa: BLE001 -- whatever the application's code raises
                _log.exception("the callback of a send failed")

        def schedule(_: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the program is ending
                pool.submit(call)

        future.add_done_callback(schedule)

    def receive(self, timeout: float | None = None) -> ReceivedMessage[T]:
        """Wait for the next message, and return it.

        Raises `EndpointClosed` once the endpoint is closed, and `TimeoutError` after ``timeout``
        seconds.
        """
        return self._background.run(self._inner.receive(), timeout)

    def __iter__(self) -> Iterator[ReceivedMessage[T]]:
        while True:
            try:
                message = self.receive()
            except EndpointClosed:
                return
            yield message


async def _close_all() -> None:
    """Close the endpoints that are open when the program ends."""
    left = list(_open)
    for endpoint in left:
        endpoint.grace = 0.0
    await asyncio.gather(*(endpoint.close() for endpoint in left))


before_stop(_close_all)
