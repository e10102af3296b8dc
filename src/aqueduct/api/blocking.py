"""The same channels for threads: plain methods, and one event loop in the background.

Everything happens on one loop, which runs in a daemon thread that all of a process shares. A call
hops to that thread and waits there, so it costs some tens of microseconds; `send_many`,
`receive_many` and plain iteration of a channel from the network hop once for many messages. Handles
may be used by any thread.
Message types for threads declare their channels as `aqueduct.blocking.Sender` and `Receiver`; of a
type that was declared for asynchronous code, a thread makes ``blocking.Receiver(request.numbers)``.

After fork a child process starts a loop of its own; what the parent opened raises
`ForkedConnectionError` there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, Unpack, overload

from aqueduct.api import client, handles
from aqueduct.api import connection as connections
from aqueduct.api import server as servers
from aqueduct.api.client import CONNECT_TIMEOUT, ConnectOptions
from aqueduct.api.handles import DEFAULT_CAPACITY, ChannelOptions, OneshotOptions
from aqueduct.api.server import AcceptCallback, ServeOptions
from aqueduct.codec import ChannelHalf
from aqueduct.errors import (
    AqueductError,
    CloseCode,
    ConnectionLost,
    EndOfChannel,
    MessageError,
)
from aqueduct.protocol.config import Limits
from aqueduct.protocol.connection import Mode
from aqueduct.runtime.background import Background, background, before_stop
from aqueduct.runtime.headers import Headers, HeadersLike
from aqueduct.runtime.local_channel import LocalReceivePort
from aqueduct.runtime.ports import Message, Outcome
from aqueduct.security import ServerTLS, Trust
from aqueduct.transport.quic.endpoint import QuicOptions
from aqueduct.transport.udp import Address

if TYPE_CHECKING:
    from aqueduct.api.connection import TraceLike

__all__ = [
    "Channel",
    "ClientConnection",
    "Connection",
    "Receipt",
    "Receiver",
    "Sender",
    "Server",
    "ServerConnection",
    "channel",
    "connect",
    "oneshot",
    "serve",
]

T = TypeVar("T")

before_stop(connections.close_all)

_HOP = 1_024
"""Messages `send_many` takes over to the loop at a time."""
_AHEAD = 64
"""Messages that one hop of `receive` brings along, if they are there."""
_AHEAD_BYTES = 256 * 1024
"""And their payloads, where they are bytes: what the user did not ask for should stay small."""


class Receipt:
    """The fate of one message."""

    def __init__(self, where: Background, future: asyncio.Future[Outcome]) -> None:
        self._background = where
        self._future = future

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for it: `DELIVERED` or `LOST`."""

        async def wait() -> Outcome:
            return await asyncio.shield(self._future)

        return self._background.run(wait(), timeout)


class Sender(ChannelHalf, Generic[T]):
    """The half that sends: made by `channel`, got in a message, or made from `aqueduct.Sender`."""

    __slots__ = ("_background", "_half")

    sends = True

    def __init__(self, half: handles.Sender[T]) -> None:
        self._background = _background_of(half)
        self._half = half

    def to_attach(self) -> ChannelHalf:
        """The half on the loop is the one that travels."""
        return self._half

    @property
    def headers(self) -> Headers:
        """The headers the channel was made with."""
        return self._half.headers

    def send(
        self,
        value: T,
        *,
        headers: HeadersLike | None = None,
        receipt: bool = False,
        timeout: float | None = None,
    ) -> Receipt | None:
        """Send a message; waits for room. If it raises `TimeoutError`, nothing was sent."""
        work = self._half.send(value, headers=headers, receipt=receipt)
        future = self._background.run(work, timeout)
        return None if future is None else Receipt(self._background, future)

    def send_nowait(self, value: T, *, headers: HeadersLike | None = None) -> None:
        """Send a message now, or raise `WouldBlock`."""
        self._background.do(lambda: self._half.send_nowait(value, headers=headers))

    def send_many(self, values: Iterable[T], *, timeout: float | None = None) -> int:
        """Send messages with few hops to the loop, and return how many.

        An error says in a note how many were sent before it; the timeout is for all of them.
        """
        sent = 0
        waiting = iter(values)
        deadline = None if timeout is None else self._background.loop.time() + timeout
        while batch := list(islice(waiting, _HOP)):
            left = None if deadline is None else deadline - self._background.loop.time()
            count, error = self._background.run(_send_all(self._half, batch, left))
            sent += count
            if error is not None:
                error.add_note(f"{sent} messages were sent before")
                raise error
        return sent

    def finish(self) -> None:
        """No more messages: the receiver sees the end after the last one."""
        self._background.do(self._half.finish)

    def cancel(self) -> None:
        """Give up: what was not received yet need not be."""
        self._background.do(self._half.cancel)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the peer has everything sent so far, or raise what happened instead."""
        self._background.run(self._half.flush(), timeout)

    def call(self, kind: type[Any], /, *, timeout: float | None = None, **fields: Any) -> Any:
        """Send a ``kind`` whose one unfilled `Sender` field is for the answer; returns that."""
        return self._background.run(self._half.call(kind, timeout=timeout, **fields))

    def statistics(self) -> dict[str, int]:
        """Counters of this half."""
        return self._background.do(self._half.statistics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            with contextlib.suppress(AqueductError):  # the user's own error is the one to see
                self.cancel()

    def __del__(self) -> None:
        _forget(self, "finish() or cancel()")


class Receiver(ChannelHalf, Generic[T]):
    """The half that receives: made by `channel`, got in a message, or from `aqueduct.Receiver`."""

    __slots__ = ("_ahead", "_background", "_half", "_waiting")

    sends = False

    def __init__(self, half: handles.Receiver[T]) -> None:
        self._background = _background_of(half)
        self._half = half
        self._ahead: deque[Message[T] | MessageError] = deque()
        """What an earlier hop brought along; the loop puts it there, any thread takes it."""
        self._waiting = 0

    def to_attach(self) -> ChannelHalf:
        """The half on the loop is the one that travels."""
        return self._half

    @property
    def headers(self) -> Headers:
        """The headers the channel was made with."""
        return self._half.headers

    def receive(self, timeout: float | None = None) -> T:
        """The next message; `EndOfChannel` after the last one of a finished channel."""
        return self.receive_message(timeout).payload

    def receive_message(self, timeout: float | None = None) -> Message[T]:
        """The next message with its headers and number; of `bytes`, also with its halves."""
        message = self._next_ahead()
        if message is None:
            message = self._background.run(self._receive(), timeout)
        return message

    def receive_nowait(self) -> T:
        """The next message if there is one, else `WouldBlock`."""
        message = self._next_ahead()
        if message is not None:
            return message.payload
        return self._background.do(self._half.receive_nowait)

    def receive_message_nowait(self) -> Message[T]:
        """The next message with its headers and number if there is one, else `WouldBlock`."""
        message = self._next_ahead()
        if message is not None:
            return message
        return self._background.do(self._half.receive_message_nowait)

    def receive_many(self, limit: int = 1024, *, timeout: float | None = None) -> list[T]:
        """At least one message, and as many more as are here, up to a limit; one hop."""
        values: list[T] = []
        while len(values) < limit and (message := self._next_ahead(values)) is not None:
            values.append(message.payload)
        return values or self._background.run(self._receive_many(limit), timeout)

    def __iter__(self) -> Iterator[T]:
        """All messages, until the channel is finished; other ends raise."""
        while True:
            try:
                yield self.receive()
            except EndOfChannel:
                return

    def close(self) -> None:
        """Stop receiving: what is queued is dropped."""
        self._background.do(self._half.close)
        self._ahead.clear()

    def statistics(self) -> dict[str, int]:
        """Counters of this half."""
        numbers = self._background.do(self._half.statistics)
        numbers["received"] = numbers.get("received", 0) - len(self._ahead)
        numbers["queued"] = numbers.get("queued", 0) + len(self._ahead)
        return numbers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with contextlib.suppress(AqueductError):
                self.close()

    def __del__(self) -> None:
        _forget(self, "close()")

    def _next_ahead(self, behind: list[T] | None = None) -> Message[T] | None:
        """A message an earlier hop brought along; an error waits until nothing is before it."""
        self._background.check()
        try:
            item = self._ahead.popleft()
        except IndexError:
            return None
        if isinstance(item, MessageError):
            if behind:
                self._ahead.appendleft(item)
                return None
            raise item
        return item

    # -- on the loop ------------------------------------------------------------------------------

    async def _receive(self) -> Message[T]:
        message = self._taken_ahead()
        if message is not None:
            return message
        self._waiting += 1
        try:
            message = await self._half.receive_message()
        finally:
            self._waiting -= 1
        if not self._waiting:  # else the next message is for another thread
            self._read_ahead(_size(message))
        return message

    async def _receive_many(self, limit: int) -> list[T]:
        message = self._taken_ahead()
        if message is not None:
            return [message.payload]
        self._waiting += 1
        try:
            return await self._half.receive_many(limit)
        finally:
            self._waiting -= 1

    def _taken_ahead(self) -> Message[T] | None:
        """Another thread's hop may have come between this thread's look and its own hop."""
        try:
            item = self._ahead.popleft()
        except IndexError:
            return None
        if isinstance(item, MessageError):
            raise item
        return item

    def _read_ahead(self, size: int) -> None:
        """Bring along what is here already, up to a limit.

        Not of a local channel: this half may be sent away, and what is queued goes with it.
        """
        if isinstance(self._half._port, LocalReceivePort):
            return
        while len(self._ahead) < _AHEAD and size < _AHEAD_BYTES:
            try:
                message = self._half.receive_message_nowait()
            except MessageError as error:
                self._ahead.append(error)
                return
            except AqueductError:
                return  # nothing more, or an end, which the next receive sees as well
            self._ahead.append(message)
            size += _size(message)


class Channel(NamedTuple, Generic[T]):
    """Both halves of a channel, sender first."""

    sender: Sender[T]
    receiver: Receiver[T]


@overload
def channel(**options: Unpack[ChannelOptions]) -> Channel[bytes]: ...
@overload
def channel(kind: type[T], **options: Unpack[ChannelOptions]) -> Channel[T]: ...
@overload
def channel(kind: Any, **options: Unpack[ChannelOptions]) -> Channel[Any]: ...
def channel(
    kind: Any = bytes,
    *,
    mode: Mode = Mode.ORDERED,
    capacity: int = DEFAULT_CAPACITY,
    headers: HeadersLike | None = None,
) -> Channel[Any]:
    """A channel for messages of a type; local until one of its halves is sent in a message."""
    return _pair(handles.channel(kind, mode=mode, capacity=capacity, headers=headers))


@overload
def oneshot(**options: Unpack[OneshotOptions]) -> Channel[bytes]: ...
@overload
def oneshot(kind: type[T], **options: Unpack[OneshotOptions]) -> Channel[T]: ...
@overload
def oneshot(kind: Any, **options: Unpack[OneshotOptions]) -> Channel[Any]: ...
def oneshot(kind: Any = bytes, *, headers: HeadersLike | None = None) -> Channel[Any]:
    """A channel for one message, such as an answer."""
    return _pair(handles.oneshot(kind, headers=headers))


class Connection(Generic[T]):
    """One connection; `entrypoint` is where it begins. Use it in `with`, or call `close`."""

    entrypoint: Any

    def __init__(self, connection: connections.Connection[T], where: Background) -> None:
        self._connection = connection
        self._background = where
        connection.present = _present
        self.entrypoint = _wrap(connection.entrypoint)

    @property
    def headers(self) -> Headers:
        """The peer's connection headers."""
        return self._connection.headers

    @property
    def peer(self) -> Address:
        """The peer's address."""
        return self._connection.peer

    @property
    def is_open(self) -> bool:
        """Whether the connection lives."""
        return not self._background.forked and self._connection.is_open

    @property
    def is_ready(self) -> bool:
        """Whether both sides know each other's headers; an early connection begins without."""
        return self._connection.is_ready

    @property
    def early_data(self) -> bool:
        """Whether the first messages came, or went, before the handshake was done (0-RTT)."""
        return self._connection.early_data

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until both sides know each other's headers; raises what `connect` would."""
        self._background.run(self._connection.wait_ready(), timeout)

    def wait_closed(self, timeout: float | None = None) -> None:
        """Until the connection is over."""
        self._background.run(self._connection.wait_closed(), timeout)

    def close(self, code: CloseCode = CloseCode.NO_ERROR, reason: str = "") -> None:
        """Close the connection behind what was sent; open channels end with `ConnectionLost`.

        This waits up to three seconds for the peer to have what was sent, and does not say whether
        that was long enough: `Sender.flush`, called before, is the promise.
        """
        self._background.run(self._connection.close(code, reason))

    def drain(self, grace: float = 10.0) -> None:
        """Wait for all channels to end, so long; then close."""
        self._background.run(self._connection.drain(grace))

    def statistics(self) -> dict[str, float]:
        """What QUIC and the core count."""
        return self._background.do(self._connection.statistics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._background.run(self._connection.leave())
        else:
            _close_after(self.close, error)

    def __repr__(self) -> str:
        return repr(self._connection)


class ClientConnection(Connection[T]):
    """A connection as the client has it: messages go out on the entrypoint."""

    entrypoint: Sender[T]


class ServerConnection(Connection[T]):
    """A connection as the server has it: messages come in on the entrypoint."""

    entrypoint: Receiver[T]


@overload
def connect(address: str, **options: Unpack[ConnectOptions]) -> ClientConnection[bytes]: ...
@overload
def connect(
    address: str, kind: type[T], **options: Unpack[ConnectOptions]
) -> ClientConnection[T]: ...
@overload
def connect(
    address: str, kind: Any, **options: Unpack[ConnectOptions]
) -> ClientConnection[Any]: ...
def connect(
    address: str,
    kind: Any = bytes,
    *,
    trust: Trust,
    headers: HeadersLike | None = None,
    limits: Limits | None = None,
    options: QuicOptions | None = None,
    timeout: float = CONNECT_TIMEOUT,
    trace: TraceLike | None = None,
    early_data: bool = False,
) -> ClientConnection[Any]:
    """Connect to ``host:port``; the entrypoint sends messages of the given type."""
    where = background()

    async def open_() -> ClientConnection[Any]:
        made = await client.connect(
            address,
            kind,
            trust=trust,
            headers=headers,
            limits=limits,
            options=options,
            timeout=timeout,
            trace=trace,
            early_data=early_data,
        )
        return ClientConnection(made, where)

    return where.run(open_())


class Server(Generic[T]):
    """Accepts connections: iterate over it, or let `run` handle each in a thread."""

    def __init__(self, server: servers.Server[T], where: Background) -> None:
        self._server = server
        self._background = where

    @property
    def address(self) -> str:
        """``host:port`` the server listens on."""
        return self._server.address

    def accept(self, timeout: float | None = None) -> ServerConnection[T]:
        """The next connection; `EndOfChannel` when the server was closed."""

        async def next_() -> ServerConnection[T]:
            connection = await self._server.accept()
            if connection is None:
                raise EndOfChannel("the server was closed")
            return ServerConnection(connection, self._background)

        return self._background.run(next_(), timeout)

    def __iter__(self) -> Iterator[ServerConnection[T]]:
        while True:
            try:
                yield self.accept()
            except EndOfChannel:
                return

    def run(self, handler: Callable[[ServerConnection[T]], object], *, threads: int = 64) -> None:
        """Handle each connection in a thread, until the server is closed.

        So many connections are handled at once; more wait their turn. A handler that fails ends
        its connection, so let one bad request or lost answer not be a failure: ``except
        ChannelError`` around what belongs to it. Ctrl-C closes the server, so that handlers end.
        """
        pool = ThreadPoolExecutor(threads, thread_name_prefix="aqueduct-handler")
        free = threading.Semaphore(threads)

        def work(connection: ServerConnection[T]) -> None:
            try:
                _handle(handler, connection)
            finally:
                free.release()

        failures: list[BaseException] = []

        def accept() -> None:
            try:
                while free.acquire():
                    pool.submit(work, self.accept())
            except EndOfChannel:
                pass
            except BaseException as error:  # noqa: BLE001 -- raised again below
                failures.append(error)

        # In a thread of its own: an interrupt while the pool starts a thread would lose the thread,
        # and the process would wait for it at exit.
        accepting = threading.Thread(target=accept, name="aqueduct-accept")
        try:
            accepting.start()
            accepting.join()
        except BaseException:
            self.close()  # handlers wait for clients
            raise
        finally:
            if accepting.ident is not None:
                accepting.join()
            pool.shutdown()
        if failures:
            self.close()
            raise failures[0]

    def drain(self, grace: float = 10.0) -> None:
        """Take no new connections, let those there are end by themselves so long, then close."""
        self._background.run(self._server.drain(grace))

    def close(self) -> None:
        """Close all connections and the socket."""
        self._background.run(self._server.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _close_after(self.close, error)


@overload
def serve(address: str, **options: Unpack[ServeOptions]) -> Server[bytes]: ...
@overload
def serve(address: str, kind: type[T], **options: Unpack[ServeOptions]) -> Server[T]: ...
@overload
def serve(address: str, kind: Any, **options: Unpack[ServeOptions]) -> Server[Any]: ...
def serve(
    address: str,
    kind: Any = bytes,
    *,
    tls: ServerTLS,
    accept: AcceptCallback | None = None,
    limits: Limits | None = None,
    options: QuicOptions | None = None,
    trace: TraceLike | None = None,
    early_data: bool = False,
) -> Server[Any]:
    """Serve on ``host:port``; ``accept`` is a plain function and may take its time."""
    where = background()

    async def ask(headers: Headers, peer: Address) -> Any:
        assert accept is not None
        return await asyncio.get_running_loop().run_in_executor(None, accept, headers, peer)

    async def open_() -> Server[Any]:
        made = await servers.serve(
            address,
            kind,
            tls=tls,
            accept=ask if accept is not None else None,
            limits=limits,
            options=options,
            trace=trace,
            early_data=early_data,
        )
        return Server(made, where)

    return where.run(open_())


# -- on the loop -----------------------------------------------------------------------------------


async def _send_all(
    half: handles.Sender[Any], values: list[Any], seconds: float | None
) -> tuple[int, AqueductError | TimeoutError | None]:
    """Send in order; how many were sent, and what came in between."""
    sent = 0
    try:
        async with asyncio.timeout(seconds):
            for value in values:
                await half.send(value)
                sent += 1
    except (AqueductError, TimeoutError) as error:
        return sent, error
    return sent, None


def _size(message: Message[Any]) -> int:
    return len(message.payload) if isinstance(message.payload, bytes) else 0


def _handle(
    handler: Callable[[ServerConnection[Any]], object], connection: ServerConnection[Any]
) -> None:
    try:
        handler(connection)
    except BaseException as error:  # noqa: BLE001 -- one connection's failure is not the server's
        if isinstance(error, ConnectionLost) and not connection.is_open:
            return
        loop = connection._background.loop
        context = {"message": f"the handler of {connection!r} failed", "exception": error}
        loop.call_soon_threadsafe(loop.call_exception_handler, context)
        connection.close(CloseCode.INTERNAL, "the handler failed")
    else:
        connection.close()


# -- making handles --------------------------------------------------------------------------------


def _pair(made: handles.Channel[T]) -> Channel[T]:
    return Channel(Sender(made.sender), Receiver(made.receiver))


def _wrap(half: ChannelHalf) -> ChannelHalf:
    if isinstance(half, handles.Sender):
        return Sender(half)
    assert isinstance(half, handles.Receiver)
    return Receiver(half)


def _present(half: ChannelHalf, wanted: type[ChannelHalf] | None) -> ChannelHalf:
    """A half as the type of its message says; without a type, for threads."""
    return half if wanted is type(half) else _wrap(half)


def _background_of(half: handles.Sender[Any] | handles.Receiver[Any]) -> Background:
    where = background()
    line = getattr(half._port, "line", None)
    if line is not None and line.driver.loop is not where.loop:
        raise TypeError("this half belongs to another event loop; use it there")
    return where


def _close_after(close: Callable[[], None], error: BaseException | None) -> None:
    if error is None:
        close()
    else:
        with contextlib.suppress(AqueductError):  # the user's own error is the one to see
            close()


def _forget(half: Sender[Any] | Receiver[Any], what: str) -> None:
    """A half was dropped: if it is open, warn, and end it on the loop."""
    inner = getattr(half, "_half", None)
    if inner is None or half._background.forked or not inner._port.is_open():
        return
    half._background.soon(inner.cancel if isinstance(inner, handles.Sender) else inner.close)
    warnings.warn(
        f"a {type(half).__name__} was forgotten while open; use `with`, or call {what}",
        ResourceWarning,
        stacklevel=3,
        source=half,
    )
