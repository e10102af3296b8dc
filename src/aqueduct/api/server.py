"""How a server takes connections and hands them to the application."""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, TypeVar, Unpack, overload

from aqueduct.api.address import resolve, split_address
from aqueduct.api.connection import Connection, close_trace, open_trace
from aqueduct.api.handles import Receiver
from aqueduct.api.opening import Opening
from aqueduct.codec import codec_for
from aqueduct.errors import AqueductError, CloseCode, ConnectError, ConnectionLost
from aqueduct.protocol.budget import Budget
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Connection as Core
from aqueduct.runtime.headers import Headers, to_pairs
from aqueduct.runtime.waiters import Waiters
from aqueduct.security import ServerTLS
from aqueduct.transport.quic.endpoint import Driver, QuicOptions, ServerEndpoint
from aqueduct.transport.quic.tickets import ServerTickets
from aqueduct.transport.udp import Address
from aqueduct.wire.chanid import Side

if TYPE_CHECKING:
    from aqueduct.api.connection import TraceLike
    from aqueduct.observe.trace import Trace

T = TypeVar("T")

MAX_ENDED = 64
"""Connections that ended before they were accepted, and still are when somebody asks."""
MAX_ENDED_BYTES = 4 * 1024 * 1024
"""What arrived on them; one of them may have more. They count as connections of the server."""

_STOPPING = (CloseCode.GOING_AWAY, "the server stops")


class Refuse(Exception):
    """Raise it in an accept callback to turn a client away."""

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
    """A connection as the server has it: messages come in on the entrypoint."""

    entrypoint: Receiver[T]


AcceptCallback = Callable[[Headers, Address], Any]
Handler = Callable[[ServerConnection[Any]], Awaitable[None]]


class Server(Generic[T]):
    """Accepts connections: iterate over it, or let `run` handle each in a task."""

    def __init__(
        self,
        endpoint: ServerEndpoint,
        kind: Any,
        accept: AcceptCallback | None,
        trace: Trace | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._trace = trace
        self._kind = kind
        self._accept = accept
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: OrderedDict[ServerConnection[T], None] = OrderedDict()
        """Who waits to be accepted."""
        self._ended: dict[ServerConnection[T], int] = {}
        """Those of them that are over, and the bytes that they left for the application."""
        self._arrived = Waiters()
        self._is_closed = False
        self._has_forgotten = False
        self._connections: set[ServerConnection[T]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        """Closes of connections whose handlers are done."""

    @property
    def address(self) -> str:
        """``host:port`` the server listens on."""
        host, port = self._endpoint.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def connections(self) -> list[ServerConnection[T]]:
        """The connections that are open now."""
        return list(self._connections)

    def incoming(self, driver: Driver, peer: Address) -> None:
        """A client opened a connection; wait for its headers and decide."""
        connection: ServerConnection[T] = ServerConnection(driver, self._kind, peer, self._trace)
        task = asyncio.get_running_loop().create_task(self._welcome(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, handler: Handler) -> None:
        """Handle each connection in a task, for ever, and close it when its handler is done.

        A handler that fails ends its connection, so let one bad request or lost answer not be a
        failure: ``except ChannelError`` around what belongs to it.
        """
        async with asyncio.TaskGroup() as group:
            while (connection := await self.accept()) is not None:
                group.create_task(self._handle(handler, connection))
                del connection  # otherwise it stays alive until the next client connects

    async def accept(self) -> ServerConnection[T] | None:
        """The next connection; None when the server was closed."""
        while not self._ready:
            if self._is_closed:
                return None
            await self._arrived.wait()
        connection, _ = self._ready.popitem(last=False)
        self._ended.pop(connection, None)
        self._endpoint.unclaimed = len(self._ended)
        return connection

    async def __aiter__(self) -> AsyncIterator[ServerConnection[T]]:
        while (connection := await self.accept()) is not None:
            yield connection
            del connection  # do not keep it alive until the next client connects

    async def drain(self, grace: float = 10.0) -> None:
        """Take no new connections, let those there are end by themselves so long, then close."""
        self._endpoint.accepting = False
        await asyncio.gather(*(one.drain(grace) for one in self.connections))
        await self.close()

    async def close(self) -> None:
        """Close all connections and the socket."""
        self._endpoint.accepting = False
        self._is_closed = True
        self._arrived.wake_all()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(
                *self._leaving, *(one.close(*_STOPPING) for one in self.connections)
            )
        finally:
            self._endpoint.close()
            trace, self._trace = self._trace, None
            await close_trace(trace)

    async def _welcome(self, connection: ServerConnection[T]) -> None:
        try:
            async with asyncio.timeout(self._endpoint.options.handshake_timeout):
                await connection.wait_ready()
        except AqueductError as error:
            connection._discard(error)
            return
        except TimeoutError:
            connection.core.close_connection(
                CloseCode.IDLE, "no connection headers came", connection.driver.now()
            )
            connection.driver.touch()
            return
        try:
            answer = self._accept(connection.headers, connection.peer) if self._accept else None
            if inspect.isawaitable(answer):
                answer = await answer
            connection.core.accept(to_pairs(answer), connection.driver.now())
        except Refuse as refusal:
            now = connection.driver.now()
            if refusal.is_busy:
                connection.core.close_connection(CloseCode.LIMIT_EXCEEDED, refusal.reason, now)
            else:
                connection.core.refuse(refusal.code, refusal.reason, now)
            return
        except Exception as error:  # noqa: BLE001 -- one client's failure is not the server's
            report(f"the accept callback for {connection!r} failed", error)
            connection.core.close_connection(
                CloseCode.INTERNAL, "the accept callback failed", connection.driver.now()
            )
            return
        finally:
            connection.driver.touch()
        if not connection.is_open:
            return
        self._connections.add(connection)
        self._ready[connection] = None
        self._arrived.wake()
        connection._over.add_done_callback(lambda _: self._over(connection))

    def _over(self, connection: ServerConnection[T]) -> None:
        """A connection ended; if nobody has accepted it, it may wait with what arrived on it."""
        self._connections.discard(connection)
        if connection not in self._ready or self._is_closed:
            return
        size = connection.rescued_bytes
        ended = self._ended
        if not ended or (len(ended) < MAX_ENDED and sum(ended.values()) + size <= MAX_ENDED_BYTES):
            ended[connection] = size
            self._endpoint.unclaimed = len(ended)
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

    async def _handle(self, handler: Handler, connection: ServerConnection[Any]) -> None:
        failed = (CloseCode.INTERNAL, "the handler failed")
        try:
            await handler(connection)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._part(connection, *_STOPPING)  # the server waits for it when it closes
                raise
            _report_handler(connection, error)
            closing = self._part(connection, *failed)
        except Exception as error:  # noqa: BLE001 -- one connection's failure is not the server's
            if isinstance(error, ConnectionLost) and not connection.is_open:
                return
            _report_handler(connection, error)
            closing = self._part(connection, *failed)
        else:
            closing = self._part(connection, CloseCode.NO_ERROR, "")
        await asyncio.shield(closing)

    def _part(
        self, connection: ServerConnection[Any], code: CloseCode, reason: str
    ) -> asyncio.Task[None]:
        """Close a connection that nobody reads any more."""
        closing = asyncio.get_running_loop().create_task(connection.close(code, reason))
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard)
        return closing


def _report_handler(connection: ServerConnection[Any], error: BaseException) -> None:
    report(f"the handler of {connection!r} failed", error)


def report(message: str, error: BaseException) -> None:
    """Tell whoever watches the loop of a failure in the application's code."""
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": message, "exception": error})


class Serving(Opening[Server[T]]):
    """What `serve` returns: use it in `async with`."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


class ServeOptions(TypedDict, total=False):
    """What `serve` takes besides an address and a type."""

    tls: Required[ServerTLS]
    accept: AcceptCallback | None
    limits: Limits | None
    options: QuicOptions | None
    trace: TraceLike | None
    early_data: bool


@overload
def serve(address: str, **options: Unpack[ServeOptions]) -> Serving[bytes]: ...
@overload
def serve(address: str, kind: type[T], **options: Unpack[ServeOptions]) -> Serving[T]: ...
@overload
def serve(address: str, kind: Any, **options: Unpack[ServeOptions]) -> Serving[Any]: ...
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
) -> Serving[Any]:
    """Serve on ``host:port``; each connection's entrypoint receives messages of the given type.

    ``trace`` names a directory for Parquet files that tell what happened, or is a `Trace`.

    With ``early_data`` clients that come back, and want it too, send their first messages without
    waiting for the handshake. Such messages cannot be replayed, but they can be held back, and
    the address in ``peer`` is not proven when they arrive: see docs/early-data.md.
    """
    codec_for(kind)  # say now what is wrong with it

    async def open_() -> Server[Any]:
        host, port = split_address(address)
        family, where = (await resolve(host or "0.0.0.0", port))[0]
        sock = _bound(family, where, address)
        recorder: Trace | None = None
        try:
            recorder = open_trace(trace)
            config = Config(limits=limits or Limits())
            early = Budget(config.max_early_total, config.early_allowance)
            server: Server[Any]
            endpoint = ServerEndpoint(
                sock,
                options or QuicOptions(),
                tls,
                lambda account: Core(Side.SERVER, config, early=early, account=account),
                lambda driver, peer: server.incoming(driver, peer),  # noqa: PLW0108 -- made below
                ServerTickets() if early_data else None,
                config,
            )
        except BaseException:
            sock.close()
            await close_trace(recorder)
            raise
        server = Server(endpoint, kind, accept, recorder)
        return server

    return Serving(open_)


def _bound(family: int, where: Address, address: str) -> socket.socket:
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.bind(where)
    except OSError as error:
        if sock is not None:
            sock.close()
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = "; choose another port, or 0 for a free one"
        raise ConnectError(f"cannot listen on {address}: {error.strerror}{hint}") from None
    return sock
