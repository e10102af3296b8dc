"""`serve`: the server side of connections."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Required, Self, TypedDict, TypeVar, Unpack, overload

from aqueduct.api.connection import (
    Connection,
    Opening,
    check_arguments,
    close_trace,
    open_trace,
    with_trace,
)
from aqueduct.api.handles import CONCURRENCY, Receiver
from aqueduct.codec import CodecClass, codec_for
from aqueduct.codec.registry import choose, codec_of_peer, reason_to_refuse
from aqueduct.errors import (
    AqueductError,
    CloseCode,
    ConnectionLost,
    EndOfChannel,
    LocalProtocolError,
    TLSError,
)
from aqueduct.observe.base import ObserverFactory
from aqueduct.protocol.budget import Budget
from aqueduct.protocol.config import Delivery, Limits, config_of
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.runtime.connection_driver import ConnectionDriver
from aqueduct.runtime.headers import Headers, HeadersLike, to_pairs
from aqueduct.runtime.waiters import OTHER_LOOP, Waiters, is_foreign
from aqueduct.security import (
    ClientCertificate,
    ServerTLS,
    Trust,
    read_client_certificate,
)
from aqueduct.settings import check_type
from aqueduct.transport.address import Address
from aqueduct.transport.base import Listener, Transport
from aqueduct.transport.schemes import QuicSettings, listen
from aqueduct.wire.chanid import Side

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from aqueduct.api.connection import TraceLike
    from aqueduct.observe.trace import Trace

T = TypeVar("T")

MAX_ENDED = 64
"""Ended connections that are kept for `Server.accept`, with what arrived on them."""
MAX_ENDED_BYTES = 4 * 1024 * 1024
"""Bytes that arrived on them; one connection may have more. They count as open connections."""

_STOPPING = (CloseCode.GOING_AWAY, "the server stops")
_DRAINING = (CloseCode.GOING_AWAY, "the server is about to stop")


@dataclass(frozen=True, slots=True)
class Accept:
    """Returned by an accept callback to accept a client; any other value refuses it.

    ::

        def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
            user = users.get(headers.text("authorization"))
            if user is None:
                raise aqueduct.Refuse("unknown token", unauthenticated=True)
            return aqueduct.Accept(user)
    """

    identity: Any = None
    """Who the client is, such as a name or the claims of a token: `ServerConnection.identity`."""
    headers: HeadersLike | None = None
    """The server's connection headers, which the client gets."""


class Refuse(AqueductError):
    """Raised by an accept callback to refuse a client."""

    def __init__(
        self, reason: str = "", *, unauthenticated: bool = False, is_busy: bool = False
    ) -> None:
        """``is_busy`` is for a client that may try again later (AQ-CONN-5).

        It gets a plain `ConnectError`, and not `Refused` or `Unauthenticated`.
        """
        super().__init__(reason)
        self.reason = reason
        self.code = CloseCode.UNAUTHENTICATED if unauthenticated else CloseCode.REFUSED
        self.is_busy = is_busy


class ServerConnection(Connection[T]):
    """A server's connection, which receives messages on its entrypoint."""

    entrypoint: Receiver[T]
    identity: Any = None
    """The identity in the `Accept` that the accept callback returned; None without a callback."""
    certificate: ClientCertificate | None = None
    """The client's certificate, verified by the server's ``client_trust``; None without that."""

    async def serve(
        self,
        handler: Callable[[T], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Handle each request of this client in a task of its own; see `Receiver.serve`."""
        await self.entrypoint.serve(handler, concurrency=concurrency)


AcceptCallback = (
    Callable[[Headers, Address], Accept | Awaitable[Accept]]
    | Callable[[Headers, Address, ClientCertificate], Accept | Awaitable[Accept]]
)
"""The third argument is there if the server has ``client_trust``."""
ConnectionHandler = Callable[[ServerConnection[Any]], Awaitable[None]]


class Server(Generic[T]):
    """Accepts connections: iterate over it, or let `run` handle each in a task."""

    def __init__(
        self,
        listener: Listener,
        kind: Any,
        accept: AcceptCallback | None,
        trace: Trace | None = None,
        observers: Sequence[ObserverFactory] = (),
        codec: CodecClass | None = None,
        asks_certificates: bool = False,
    ) -> None:
        self._asks_certificates = asks_certificates
        self._codec = codec
        self._listener = listener
        self._trace = trace
        self._observers = with_trace(observers, trace)
        self._kind = kind
        self._accept = accept
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: OrderedDict[ServerConnection[T], None] = OrderedDict()
        """Connections that wait for `accept`."""
        self._ended: dict[ServerConnection[T], int] = {}
        """Those of them that have ended, and the bytes that they left for the application."""
        self._arrived = Waiters()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._is_draining = False
        self._has_forgotten = False
        self._connections: set[ServerConnection[T]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks that close connections whose handlers have returned."""

    @property
    def address(self) -> str:
        """The address that clients connect to, such as ``host:port``."""
        return self._listener.address

    @property
    def connections(self) -> list[ServerConnection[T]]:
        """The connections that are open."""
        return list(self._connections)

    async def run(self, handler: ConnectionHandler) -> None:
        """Run a handler for each connection in a task, and close it when the handler returns.

        A handler that raises ends its connection: catch `ChannelError` around the work of a single
        request, so that one bad request or lost answer does not.
        """
        self._check_loop()  # here, since the group would wrap the error
        async with asyncio.TaskGroup() as group:
            while (connection := await self._next_connection()) is not None:
                group.create_task(self._handle(handler, connection))
                del connection  # otherwise it stays alive until the next client connects

    async def serve(
        self,
        handler: Callable[[T], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Handle each request of each client in a task of its own, until the server is closed.

        See `Receiver.serve`. ``concurrency`` is the limit for each connection.
        """

        async def handle(connection: ServerConnection[Any]) -> None:
            await connection.serve(handler, concurrency=concurrency)

        await self.run(handle)

    async def accept(self) -> ServerConnection[T]:
        """Wait for the next connection, and return it.

        Raises `EndOfChannel` once the server is closed.
        """
        connection = await self._next_connection()
        if connection is None:
            raise EndOfChannel("the server was closed")
        return connection

    async def _next_connection(self) -> ServerConnection[T] | None:
        """Wait for the next connection; return None once the server is closed."""
        self._check_loop()
        while not self._ready:
            if self._is_closed:
                return None
            await self._arrived.wait()
        connection, _ = self._ready.popitem(last=False)
        self._ended.pop(connection, None)
        self._listener.unclaimed = len(self._ended)
        return connection

    def _check_loop(self) -> None:
        if is_foreign(self._loop):
            raise LocalProtocolError(f"this server belongs to {OTHER_LOOP}")

    async def __aiter__(self) -> AsyncIterator[ServerConnection[T]]:
        while (connection := await self._next_connection()) is not None:
            yield connection
            del connection  # do not keep it alive until the next client connects

    async def drain(self, grace: float = 10.0) -> None:
        """Drain all connections, for up to ``grace`` seconds, then close.

        Clients learn it at once: `ReceiverClosed` tells them that the entrypoint takes no more, and
        new clients get `GoingAway`. What is under way is finished; see `Connection.drain`.
        """
        self._check_loop()
        self._is_draining = True
        await asyncio.gather(*(one.drain(grace) for one in self.connections))
        await self.close()

    async def close(self) -> None:
        """Close all connections, and free the address."""
        self._check_loop()
        self._listener.stop_accepting()
        self._is_closed = True
        self._arrived.wake_all()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(
                *self._leaving, *(one.close(*_STOPPING) for one in self.connections)
            )
        finally:
            self._listener.close()
            trace, self._trace = self._trace, None
            await close_trace(trace)

    def _handle_transport(self, transport: Transport) -> None:
        """Wait for the headers of a new client, in a task."""
        connection: ServerConnection[T] = ServerConnection(transport, self._kind, self._observers)
        task = asyncio.get_running_loop().create_task(self._decide(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decide(self, connection: ServerConnection[T]) -> None:
        """Accept or refuse a client when it has sent its headers."""
        driver = connection._driver
        try:
            async with asyncio.timeout(self._listener.handshake_timeout):
                await driver.wait_ready()
        except AqueductError as error:
            connection._discard(error)
            return
        except TimeoutError:
            driver.close_soon(CloseCode.IDLE, "no connection headers came")
            return
        if driver.ended is not None or self._turns_away(driver):
            return
        if self._kind is not bytes:
            headers = driver.peer_headers or ()
            problem = reason_to_refuse(headers, self._codec)
            if problem:
                driver.refuse(CloseCode.REFUSED, problem)
                return
            driver.set_entrypoint_type(self._kind, codec_of_peer(headers))
        try:
            answer: object = Accept()
            arguments: list[Any] = [connection.headers, connection.peer]
            if self._asks_certificates:
                connection.certificate = _certificate_of(driver.transport)
                arguments.append(connection.certificate)
            if self._accept is not None:
                ask: Callable[..., object] = self._accept
                answer = ask(*arguments)
                if inspect.isawaitable(answer):
                    answer = await answer
            if self._turns_away(driver):
                return
            if not isinstance(answer, Accept):
                _report_refusal(connection, answer)
                driver.refuse(CloseCode.REFUSED, "")  # AQ-CONN-9
                return
            connection.identity = answer.identity
            driver.accept(to_pairs(answer.headers))
        except Refuse as refusal:
            if refusal.is_busy:
                driver.close_soon(CloseCode.LIMIT_EXCEEDED, refusal.reason)
            else:
                driver.refuse(refusal.code, refusal.reason)
            return
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the server closes
            report(f"the accept callback for {connection!r} failed", error)
            driver.close_soon(CloseCode.INTERNAL, "the accept callback failed")
            return
        if not connection.is_open:
            return
        self._connections.add(connection)
        self._ready[connection] = None
        self._arrived.wake()
        driver.over.add_done_callback(lambda _: self._handle_end(connection))

    def _turns_away(self, driver: ConnectionDriver) -> bool:
        """Close the connection of a new client if this server drains (AQ-DRAIN-2)."""
        if self._is_draining:
            driver.close_soon(*_DRAINING)
        return self._is_draining

    def _handle_end(self, connection: ServerConnection[T]) -> None:
        """Keep an ended connection that was not accepted yet, within the limits, for `accept`."""
        self._connections.discard(connection)
        if connection not in self._ready or self._is_closed:
            return
        size = connection._driver.rescued_bytes
        ended = self._ended
        if not ended or (len(ended) < MAX_ENDED and sum(ended.values()) + size <= MAX_ENDED_BYTES):
            ended[connection] = size
            self._listener.unclaimed = len(ended)
            return
        del self._ready[connection]
        connection.entrypoint.close()
        if not self._has_forgotten:
            self._has_forgotten = True
            message = (
                "connections ended before they were accepted, more than the server keeps; "
                "what arrived on some of them is lost"
            )
            asyncio.get_running_loop().call_exception_handler({"message": message})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Server {self.address} {state}>"

    async def _handle(self, handler: ConnectionHandler, connection: ServerConnection[Any]) -> None:
        failed = (CloseCode.INTERNAL, "the handler failed")
        try:
            await handler(connection)
            await self._drained(connection)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._close_in_task(connection, *_STOPPING)  # `close` waits for this task
                raise
            _report_handler(connection, error)
            closing = self._close_in_task(connection, *failed)
        except Exception as error:  # noqa: BLE001 -- one connection's failure is not the server's
            if is_end_of(connection, error):
                closing = self._close_in_task(connection, CloseCode.NO_ERROR, "")
            else:
                _report_handler(connection, error)
                closing = self._close_in_task(connection, *failed)
        else:
            closing = self._close_in_task(connection, CloseCode.NO_ERROR, "")
        await asyncio.shield(closing)

    async def _drained(self, connection: Connection[Any]) -> None:
        """Wait until `drain` has closed a connection whose handler has returned, if it runs."""
        if self._is_draining:
            connection.entrypoint.close()  # the handler receives no more
            await connection.wait_closed()

    def _close_in_task(
        self, connection: ServerConnection[Any], code: CloseCode, reason: str
    ) -> asyncio.Task[None]:
        """Close a connection whose handler has returned, in a task."""
        closing = asyncio.get_running_loop().create_task(connection.close(code, reason))
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard)
        return closing


def _certificate_of(transport: Transport) -> ClientCertificate:
    """Return the client's certificate, without which no client is accepted."""
    try:
        return read_client_certificate(transport.client_certificate or b"")
    except TLSError as error:
        raise Refuse(str(error), unauthenticated=True) from None


def check_accept(accept: AcceptCallback, *, takes_certificate: bool) -> None:
    """Raise `TypeError` for an accept callback that cannot be called."""
    arguments = ["headers", "peer", "certificate"][: 3 if takes_certificate else 2]
    what = f"accept is a function of {', '.join(arguments[:-1])} and {arguments[-1]}"
    if not callable(accept):
        raise TypeError(f"{what}, not {accept!r}")
    try:
        signature = inspect.signature(accept)
    except ValueError:  # of a builtin
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def is_end_of(connection: Connection[Any], error: BaseException) -> bool:
    """Return whether an error, or each one of a group, only says that the client has left.

    That is `ConnectionLost` once the connection has ended, and `EndOfChannel` once the handler has
    seen the end of the entrypoint.
    """
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left.extend(one.exceptions)
        elif not (
            (isinstance(one, ConnectionLost) and not connection.is_open)
            or (isinstance(one, EndOfChannel) and connection._driver.has_told_end)
        ):
            return False
    return True


def _report_handler(connection: ServerConnection[Any], error: BaseException) -> None:
    report(f"the handler of {connection!r} failed", error)


def _report_refusal(connection: ServerConnection[Any], answer: object) -> None:
    """Report a client that was refused because the accept callback returned something else.

    The report does not show what it returned, which may be a secret.
    """
    what = repr(answer) if answer is None or isinstance(answer, bool) else type(answer).__name__
    message = (
        f"{connection!r} was refused: the accept callback returned {what}; to accept a client, "
        "return aqueduct.Accept(identity), and to refuse one, raise aqueduct.Refuse"
    )
    asyncio.get_running_loop().call_exception_handler({"message": message})


def report(message: str, error: BaseException) -> None:
    """Report an exception of the application's code to the event loop's exception handler."""
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": message, "exception": error})


class Serving(Opening[Server[T]]):
    """What `serve` returns: use it in ``async with``, or await it."""

    _call = "serve"


class ServeOptions(TypedDict, total=False):
    """What `serve` takes besides an address and a type."""

    tls: Required[ServerTLS]
    client_trust: Trust | None
    accept: AcceptCallback | None
    limits: Limits | None
    delivery: Delivery | None
    options: QuicSettings | None
    trace: TraceLike | None
    observers: Sequence[ObserverFactory]
    codec: CodecClass | None
    early_data: bool


@overload
def serve(address: str, **options: Unpack[ServeOptions]) -> Serving[bytes]: ...
@overload
def serve(address: str, kind: type[T], **options: Unpack[ServeOptions]) -> Serving[T]: ...
@overload
def serve(address: str, kind: TypeForm[T], **options: Unpack[ServeOptions]) -> Serving[T]: ...
@overload
def serve(address: str, kind: Any, **options: Unpack[ServeOptions]) -> Serving[Any]: ...
def serve(
    address: str,
    kind: Any = bytes,
    *,
    tls: ServerTLS,
    client_trust: Trust | None = None,
    accept: AcceptCallback | None = None,
    limits: Limits | None = None,
    delivery: Delivery | None = None,
    options: QuicSettings | None = None,
    trace: TraceLike | None = None,
    observers: Sequence[ObserverFactory] = (),
    codec: CodecClass | None = None,
    early_data: bool = False,
) -> Serving[Any]:
    """Serve on ``host:port``; each connection's entrypoint receives messages of the given type.

    This listens on UDP for QUIC, and on TCP for clients whose UDP is blocked: see docs/tcp.md.
    ``aqueduct+quic://host:port`` and ``aqueduct+tcp://host:port`` listen on one of them.
    ``memory://name`` serves clients in the same process, without a socket. ``trace`` is a `Trace`,
    or a directory for its Parquet files. Each of ``observers`` makes an `aqueduct.observe.Observer`
    of each connection: see docs/observing.md. ``accept`` is called with the headers and the address
    of each new client, and may be a coroutine function: it returns `Accept`, or raises `Refuse`.
    Any other value refuses the client. With ``client_trust``, each client needs a certificate that
    one of these authorities has signed: ``accept`` gets it as a third argument, and ``host:port``
    is TCP, because QUIC cannot ask for it. ``codec`` is the one format that the server reads,
    such as `aqueduct.codec.JsonCodec`; by default each client chooses one that the server knows.
    ``limits`` are what this side receives, ``delivery`` says how it sends and acknowledges,
    ``options`` are for QUIC: see docs/settings.md.

    With ``early_data``, clients that were connected before may send their first messages without
    waiting for the handshake. Such messages cannot be replayed, but an attacker can delay them, and
    the address in ``peer`` is not validated when they arrive: see docs/early-data.md.
    """
    codec_for(kind)  # raise here for a type that cannot be one
    choose(kind, codec, ())
    check_arguments(address, options)
    check_type("tls", tls, ServerTLS, "aqueduct.tls(cert, key)", is_required=True)
    check_type("client_trust", client_trust, Trust, "aqueduct.trust(…)")
    config = config_of(limits, delivery)
    if accept is not None:
        check_accept(accept, takes_certificate=client_trust is not None)

    async def open_() -> Server[Any]:
        early = Budget(config.max_early_total, config.early_allowance)
        server: Server[Any]
        listener = await listen(
            address,
            tls=tls,
            options=options,
            config=config,
            make_core=lambda account: ConnectionCore(
                Side.SERVER, config, early=early, account=account
            ),
            on_transport=lambda transport: server._handle_transport(transport),  # noqa: PLW0108 -- made below
            early_data=early_data,
            client_trust=client_trust,
        )
        try:
            recorder = open_trace(trace)
        except BaseException:
            listener.close()
            raise
        asks_certificates = client_trust is not None
        server = Server(listener, kind, accept, recorder, observers, codec, asks_certificates)
        return server

    return Serving(open_)
