"""Connections for threads: `connect()`, `serve()`, and what they return."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from aqueduct.api import client
from aqueduct.api import connection as connections
from aqueduct.api import server as servers
from aqueduct.api.blocking.handles import Receiver, Sender, present, wrap
from aqueduct.api.blocking.serving import THREADS, serve_in_threads
from aqueduct.api.client import ConnectOptions
from aqueduct.api.server import AcceptCallback, ServeOptions
from aqueduct.api.serving import RequestHandler
from aqueduct.errors import CloseCode, EndOfChannel
from aqueduct.runtime.background import (
    Attribute,
    Background,
    BlockingTwin,
    background,
    before_stop,
    blocking,
    on_loop,
    with_parameters_of,
)
from aqueduct.runtime.closing import Closing, close_all
from aqueduct.runtime.headers import Headers
from aqueduct.runtime.threads import run_in_daemon_thread
from aqueduct.security import ClientCertificate
from aqueduct.transport.address import Address

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

ACCEPT_THREADS = 64
"""Calls of a server's accept callback that run at the same time."""

before_stop(close_all)


class Connection(BlockingTwin[connections.Connection[T]], Generic[T]):
    """A connection, for threads; use it in ``with``, or call `close`. See `aqueduct.Connection`."""

    entrypoint: Any
    """A `Sender` at the client and a `Receiver` at the server."""

    headers = Attribute[Headers]("The connection headers of the peer.")
    peer = Attribute[Address]("The address of the peer.")
    is_ready = Attribute[bool]("Whether both sides have the other's connection headers.")
    early_data = Attribute[bool]("Whether the first messages were sent in 0-RTT packets.")

    close = blocking(connections.Connection.close)
    drain = blocking(connections.Connection.drain)
    statistics = on_loop(connections.Connection.statistics)

    def __init__(self, connection: connections.Connection[T], where: Background) -> None:
        super().__init__(connection, where)
        connection._driver.present = present
        self.entrypoint = wrap(connection.entrypoint)

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return not self._background.forked and self._inner.is_open

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until both sides have the other's headers; raises what `connect` would raise."""
        self._background.run(self._inner.wait_ready(), timeout)

    def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the connection has ended."""
        self._background.run(self._inner.wait_closed(), timeout)

    def _leave(self, *, failed: bool) -> None:
        self._background.run(Closing(self._inner._driver).leave(failed=failed))

    def __repr__(self) -> str:
        return f"<blocking.{repr(self._inner)[1:]}"


class ClientConnection(Connection[T]):
    """The client's side of a connection: the entrypoint sends."""

    entrypoint: Sender[T]


class ServerConnection(Connection[T]):
    """The server's side of a connection: the entrypoint receives."""

    entrypoint: Receiver[T]

    identity = Attribute[Any]("What the accept callback returned as the client's identity.")
    certificate = Attribute[ClientCertificate | None]("The client's verified certificate, if any.")

    def serve(self, handler: Callable[[T], object], *, threads: int = THREADS) -> None:
        """Handle each request of this client in a thread; see `Receiver.serve`."""
        self.entrypoint.serve(handler, threads=threads)


@overload
def connect(address: str, **options: Unpack[ConnectOptions]) -> ClientConnection[bytes]: ...
@overload
def connect(
    address: str, kind: type[T], **options: Unpack[ConnectOptions]
) -> ClientConnection[T]: ...
@overload
def connect(
    address: str, kind: TypeForm[T], **options: Unpack[ConnectOptions]
) -> ClientConnection[T]: ...
@overload
def connect(
    address: str, kind: Any, **options: Unpack[ConnectOptions]
) -> ClientConnection[Any]: ...
@with_parameters_of(client.connect)
def connect(address: str, kind: Any = bytes, **options: Any) -> ClientConnection[Any]:
    """Connect to ``host:port``; see `aqueduct.connect`."""
    where = background()

    async def open_() -> ClientConnection[Any]:
        return ClientConnection(await client.connect(address, kind, **options), where)

    return where.run(open_())


class Server(BlockingTwin[servers.Server[T]], Generic[T]):
    """Accepts connections: iterate over it, or let `run` handle each connection in a thread."""

    address = Attribute[str]("The ``host:port`` that the server listens on.")

    drain = blocking(servers.Server.drain)
    close = blocking(servers.Server.close)

    def accept(self, timeout: float | None = None) -> ServerConnection[T]:
        """Wait for the next connection; raises `EndOfChannel` once the server is closed."""

        async def accept() -> ServerConnection[T]:
            return ServerConnection(await self._inner.accept(), self._background)

        return self._background.run(accept(), timeout)

    def __iter__(self) -> Iterator[ServerConnection[T]]:
        while True:
            try:
                yield self.accept()
            except EndOfChannel:
                return

    def run(self, handler: Callable[[ServerConnection[T]], object], *, threads: int = 64) -> None:
        """Call a handler in a thread for each connection, until the server is closed.

        At most ``threads`` connections are handled at the same time; others wait. The connection is
        closed when its handler returns. A handler that raises ends its connection, so catch
        `ChannelError` where one bad request should not do that. Ctrl-C closes the server, which
        ends the handlers. In a daemon thread, the handlers are daemon threads as well, and keep no
        program from ending.
        """
        free = threading.Semaphore(threads)
        handlers: dict[threading.Thread, None] = {}

        def work(connection: ServerConnection[T]) -> None:
            try:
                _handle(self._inner, handler, connection)
            finally:
                handlers.pop(threading.current_thread(), None)
                free.release()

        failures: list[BaseException] = []

        def accept() -> None:
            try:
                while free.acquire():
                    # Not a ThreadPoolExecutor: the interpreter waits for its threads at exit.
                    thread = threading.Thread(target=work, args=(self.accept(),))
                    thread.name = thread.name.replace("Thread", "aqueduct-handler", 1)
                    handlers[thread] = None
                    thread.start()
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
            self.close()  # so that handlers stop waiting for their clients
            raise
        finally:
            if accepting.ident is not None:
                accepting.join()
            for thread in list(handlers):
                thread.join()
        if failures:
            self.close()
            raise failures[0]

    def serve(self, handler: Callable[[T], object], *, threads: int = THREADS) -> None:
        """Handle each request of each client in a thread, until the server is closed.

        See `Receiver.serve`. ``threads`` is the limit for all clients together. Ctrl-C closes the
        server.
        """

        def serve(handle: RequestHandler) -> Coroutine[Any, Any, None]:
            async def serve_one(connection: servers.ServerConnection[Any]) -> None:
                connection._driver.present = present
                await connection.serve(handle)

            return self._inner.run(serve_one)

        try:
            serve_in_threads(self._background, serve, handler, threads)
        except BaseException:
            self.close()
            raise

    def _leave(self, *, failed: bool) -> None:
        self.close()


@overload
def serve(address: str, **options: Unpack[ServeOptions]) -> Server[bytes]: ...
@overload
def serve(address: str, kind: type[T], **options: Unpack[ServeOptions]) -> Server[T]: ...
@overload
def serve(address: str, kind: TypeForm[T], **options: Unpack[ServeOptions]) -> Server[T]: ...
@overload
def serve(address: str, kind: Any, **options: Unpack[ServeOptions]) -> Server[Any]: ...
@with_parameters_of(servers.serve)
def serve(
    address: str, kind: Any = bytes, *, accept: AcceptCallback | None = None, **options: Any
) -> Server[Any]:
    """Serve on ``host:port``; see `aqueduct.serve`.

    ``accept`` is a plain function here. It runs in a thread, so it may block.
    """
    if inspect.iscoroutinefunction(accept):
        raise TypeError(
            "accept is a plain function here, which may block; not a coroutine function"
        )
    where = background()
    free = asyncio.Semaphore(ACCEPT_THREADS)

    async def accept_in_thread(*arguments: Any) -> Any:
        ask: Any = accept
        async with free:
            return await run_in_daemon_thread(ask, *arguments)

    async def open_() -> Server[Any]:
        callback = None
        if accept is not None:
            servers.check_accept(accept, takes_certificate=options.get("client_trust") is not None)
            callback = accept_in_thread
        return Server(await servers.serve(address, kind, accept=callback, **options), where)

    return where.run(open_())


def _handle(
    server: servers.Server[Any],
    handler: Callable[[ServerConnection[Any]], object],
    connection: ServerConnection[Any],
) -> None:
    try:
        handler(connection)
        connection._background.run(server._drained(connection._inner))
    except BaseException as error:  # noqa: BLE001 -- an error in one handler must not stop the server
        if servers.is_end_of(connection._inner, error):
            connection.close()
            return
        loop = connection._background.loop
        context = {"message": f"the handler of {connection!r} failed", "exception": error}
        loop.call_soon_threadsafe(loop.call_exception_handler, context)
        connection.close(CloseCode.INTERNAL, "the handler failed")
    else:
        connection.close()
