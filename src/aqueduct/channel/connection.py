"""Connections and servers: how two processes meet."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, TypeVar, Unpack, overload

from aqueduct.channel.handles import Receiver, Sender
from aqueduct.channel.headers import Headers, HeadersLike, to_pairs
from aqueduct.channel.line import Line
from aqueduct.channel.waiting import Waiters
from aqueduct.errors import (
    AqueductError,
    CloseCode,
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    Refused,
    TLSError,
    Unauthenticated,
    VersionMismatch,
)
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Connection as Core
from aqueduct.quic.bridge import Bridge
from aqueduct.quic.endpoint import Driver, Endpoint, QuicOptions, ServerEndpoint, client_settings
from aqueduct.quic.engine import Engine
from aqueduct.quic.tls import ServerTLS, Trust
from aqueduct.quic.udp import Address
from aqueduct.wire.chanid import ENTRYPOINT, Side

if TYPE_CHECKING:
    from aqueduct.trace import Trace

    TraceLike = Trace | str | os.PathLike[str]

T = TypeVar("T")

SCHEME = "aqueduct://"
DEFAULT_PORT = 4433
CONNECT_TIMEOUT = 10.0
RETRY_DELAY = 0.05
LINGER = 3.0
"""How long a close waits for what was sent before it to leave."""


class Refuse(Exception):
    """Raise it in an accept callback to turn a client away."""

    def __init__(self, reason: str = "", *, unauthenticated: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = CloseCode.UNAUTHENTICATED if unauthenticated else CloseCode.REFUSED


class Connection(Line, Generic[T]):
    """One connection; `entrypoint` is where it begins."""

    entrypoint: Any
    _owns_trace = False

    def __init__(
        self, driver: Driver, kind: Any, peer: Address, trace: Trace | None = None
    ) -> None:
        super().__init__(driver)
        if trace is not None:
            self._record(trace)
        driver.owner = self
        driver.bridge.before_end = self.rescue
        self.peer = peer
        self._ready = self.driver.loop.create_future()
        self._over = self.driver.loop.create_future()
        self._turns = Waiters()
        port = self.open_port(ENTRYPOINT, kind)
        handle = Sender if self.core.side == Side.CLIENT else Receiver
        self.entrypoint = handle.from_port(port, ())  # type: ignore[arg-type]
        _live.add(self)

    @property
    def headers(self) -> Headers:
        """The peer's connection headers."""
        return Headers(self.peer_headers or ())

    @property
    def is_open(self) -> bool:
        """Whether the connection lives."""
        return self.ended is None

    async def wait_ready(self) -> None:
        """Until both sides know each other's headers."""
        await asyncio.shield(self._ready)

    async def wait_closed(self) -> None:
        """Until the connection is over."""
        await asyncio.shield(self._over)

    async def close(self, code: CloseCode = CloseCode.NO_ERROR, reason: str = "") -> None:
        """Close the connection behind what was sent; open channels end with `ConnectionLost`."""
        self.core.close_connection(code, reason, self.driver.now())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while not self.driver.bridge.is_closed():
                    self.driver.touch()
                    await self._turns.wait()
        self._stop()
        if self._owns_trace and self.tap is not None:
            self._owns_trace = False
            await self.tap.release()

    async def drain(self, grace: float = 10.0) -> None:
        """Wait for all channels to end, so long; then close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self.is_open and self.core.channel_count:
                    await self._turns.wait()
        await self.close(CloseCode.GOING_AWAY, "drained")

    def statistics(self) -> dict[str, float]:
        """What QUIC and the core count."""
        native = self.driver.bridge.quic.core
        numbers: dict[str, float] = {"channels": self.core.channel_count}
        numbers["held_bytes"] = self.core.held_bytes
        numbers.update(self.driver.bridge.statistics())
        if native is not None:
            numbers["rtt"] = native.smoothed_rtt or 0.0
            numbers["lost_packets"] = native.loss_total
            numbers["congestion_window"] = native.congestion_window
            numbers["bytes_in_flight"] = native.bytes_in_flight
        return numbers

    def on_headers(self) -> None:
        """The peer's headers came."""
        if not self._ready.done():
            self._ready.set_result(None)

    def on_end(self) -> None:
        """The connection is over."""
        if not self._ready.done():
            self._ready.set_exception(self._connect_error())
            self._ready.exception()
        if not self._over.done():
            self._over.set_result(None)
        _live.discard(self)

    def forked(self) -> None:
        """This is a child process: the connection belongs to the parent, and must not hang here."""
        for port in self.ports.values():
            port.fork()

    def turned(self) -> None:
        """The loop's turn is over; whoever waits for the connection to change looks again."""
        super().turned()
        if self._turns:
            self._turns.wake_all()

    def _record(self, trace: Trace) -> None:
        from aqueduct.trace.tap import Tap

        bridge = self.driver.bridge
        # The client chose it, and the server learned it from the first packet: both know it.
        name = bridge.quic.original_destination_connection_id
        self.tap = bridge.tap = Tap(trace, name, self.core.side)

    def _stop(self) -> None:
        self.driver.endpoint.forget(self.driver)
        self.driver.endpoint.released(self.driver)

    def _connect_error(self) -> AqueductError:
        assert self.ended is not None
        return connect_error(self.ended.code, self.ended.reason, self.peer, self.driver.bridge)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection with {self.peer[0]}:{self.peer[1]}, {state}>"


_live: weakref.WeakSet[Connection[Any]] = weakref.WeakSet()


def connect_error(code: int, reason: str, peer: Address, bridge: Bridge) -> AqueductError:
    """Why a connection could not be made, in the words of its class."""
    where = f"{peer[0]}:{peer[1]}"
    if bridge.connected:
        kinds: dict[int, type[ConnectError]] = {
            CloseCode.VERSION_MISMATCH: VersionMismatch,
            CloseCode.REFUSED: Refused,
            CloseCode.UNAUTHENTICATED: Unauthenticated,
        }
        kind = kinds.get(code)
        if kind is not None:
            return kind(f"{where} said: {reason or kind.__name__}")
        return ConnectError(f"{where} closed the connection with code {code:#x}: {reason}")
    if 0x100 <= code <= 0x1FF:
        return TLSError(
            f"no trust between us and {where}: {reason or 'TLS failed'}. "
            "Check the server's certificate, its name, and what trust= says; "
            "for development use tls=dev_tls() and trust=dev_trust()"
        )
    return HandshakeFailed(f"cannot connect to {where}: {reason or f'code {code:#x}'}")


class Connecting(Generic[T]):
    """What `connect` returns: use it in `async with`, or await it."""

    def __init__(self, open_: Callable[[], Awaitable[Connection[T]]]) -> None:
        self._open = open_
        self._connection: Connection[T] | None = None

    def __await__(self) -> Generator[Any, None, Connection[T]]:
        return self._open().__await__()

    async def __aenter__(self) -> Connection[T]:
        self._connection = await self._open()
        return self._connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            await self._connection.close()


class ConnectOptions(TypedDict, total=False):
    """What `connect` takes besides an address and a type."""

    trust: Required[Trust]
    headers: HeadersLike | None
    limits: Limits | None
    options: QuicOptions | None
    timeout: float
    trace: TraceLike | None


@overload
def connect(address: str, **options: Unpack[ConnectOptions]) -> Connecting[bytes]: ...
@overload
def connect(address: str, kind: type[T], **options: Unpack[ConnectOptions]) -> Connecting[T]: ...
@overload
def connect(address: str, kind: Any, **options: Unpack[ConnectOptions]) -> Connecting[Any]: ...
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
) -> Connecting[Any]:
    """Connect to ``host:port``; the entrypoint sends messages of the given type.

    ``trace`` names a directory for Parquet files that tell what happened, or is a `Trace`.
    """

    async def open_() -> Connection[Any]:
        host, port = split_address(address)
        found = await resolve(host, port)
        chosen = options or QuicOptions()
        error: AqueductError | None = None
        waiting = list(found)
        try:
            async with asyncio.timeout(timeout):
                while waiting:
                    family, where = waiting.pop(0)
                    try:
                        return await _connect_to(
                            host,
                            family,
                            where,
                            kind,
                            trust,
                            to_pairs(headers),
                            limits,
                            chosen,
                            trace,
                        )
                    except Unreachable as problem:
                        error = problem
                    except HandshakeFailed as problem:
                        error = problem
                        waiting.append((family, where))  # packets were lost: try again
                        await asyncio.sleep(RETRY_DELAY)
        except TimeoutError:
            reached = error or ConnectTimeout(
                f"no answer from {address} within {timeout:g} s; "
                "is the server running, and UDP allowed on the way?"
            )
            raise reached from None
        assert error is not None
        raise error

    return Connecting(open_)


class Unreachable(ConnectError):
    """Nobody listens there; another address of the host may be better."""


class HandshakeFailed(ConnectError):
    """QUIC gave up before both sides knew each other, as it may when packets are lost."""


async def _connect_to(
    host: str,
    family: int,
    where: Address,
    kind: Any,
    trust: Trust,
    headers: Any,
    limits: Limits | None,
    options: QuicOptions,
    trace: TraceLike | None = None,
) -> Connection[Any]:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.connect(where)
    endpoint = ClientEndpoint(sock, options)
    quic = Engine(configuration=client_settings(trust, options, host, where))
    config = Config(limits=limits or Limits())
    core = Core(Side.CLIENT, config, headers=headers)
    driver = endpoint.add(Bridge(core, quic), quic.host_cid)
    recorder = _open_trace(trace)
    connection: Connection[Any] = Connection(driver, kind, where, recorder)
    connection._owns_trace = recorder is not None
    endpoint.connection = connection
    quic.connect(where, driver.now())
    driver.touch()
    try:
        await connection.wait_ready()
    except BaseException:
        core.close_connection(CloseCode.NO_ERROR, "", driver.now())
        driver.tell()  # its entrypoint has ended too, and nobody needs to be warned of that
        endpoint.close()
        if connection.tap is not None:
            await connection.tap.release()
        raise
    return connection


def _open_trace(trace: TraceLike | None) -> Trace | None:
    if trace is None:
        return None
    from aqueduct.trace.writer import acquire

    return acquire(trace)


class ClientEndpoint(Endpoint):
    """A socket for one connection, which closes with it."""

    connection: Connection[Any] | None = None

    def released(self, driver: Driver) -> None:
        """The connection is closed, and so is its socket."""
        self.close()

    def network_error(self, error: OSError) -> None:
        """Nobody listens at the other end, and the handshake is not done: no use to wait."""
        connection = self.connection
        if connection is not None and not connection._ready.done():
            connection._ready.set_exception(
                Unreachable(
                    f"nobody listens at {connection.peer[0]}:{connection.peer[1]} "
                    f"({error.strerror}); start the server first"
                )
            )


AcceptCallback = Callable[[Headers, Address], Any]
Handler = Callable[[Connection[Any]], Awaitable[None]]


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
        self._ready: asyncio.Queue[Connection[T] | None] = asyncio.Queue()
        self._connections: set[Connection[T]] = set()

    @property
    def address(self) -> str:
        """``host:port`` the server listens on."""
        host, port = self._endpoint.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def connections(self) -> list[Connection[T]]:
        """The connections that are open now."""
        return list(self._connections)

    def incoming(self, driver: Driver, peer: Address) -> None:
        """A client opened a connection; wait for its headers and decide."""
        connection: Connection[T] = Connection(driver, self._kind, peer, self._trace)
        task = asyncio.get_running_loop().create_task(self._welcome(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, handler: Handler) -> None:
        """Handle each connection in a task, for ever; a handler that fails ends its connection."""
        async with asyncio.TaskGroup() as group:
            async for connection in self:
                group.create_task(_handle(handler, connection))

    async def accept(self) -> Connection[T] | None:
        """The next connection; None when the server was closed."""
        connection = await self._ready.get()
        if connection is None:
            self._ready.put_nowait(None)  # for the next one who asks
        return connection

    async def __aiter__(self) -> AsyncIterator[Connection[T]]:
        while (connection := await self.accept()) is not None:
            yield connection

    async def drain(self, grace: float = 10.0) -> None:
        """Take no new connections, let those there are end by themselves so long, then close."""
        self._endpoint.accepting = False
        await asyncio.gather(*(one.drain(grace) for one in self.connections))
        await self.close()

    async def close(self) -> None:
        """Close all connections and the socket."""
        self._endpoint.accepting = False
        self._ready.put_nowait(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(
            *(one.close(CloseCode.GOING_AWAY, "the server stops") for one in self.connections)
        )
        self._endpoint.close()
        if self._trace is not None:
            from aqueduct.trace.writer import release

            trace, self._trace = self._trace, None
            await asyncio.get_running_loop().run_in_executor(None, release, trace)

    async def _welcome(self, connection: Connection[T]) -> None:
        try:
            await connection.wait_ready()
        except AqueductError:
            return
        try:
            answer = self._accept(connection.headers, connection.peer) if self._accept else None
            if inspect.isawaitable(answer):
                answer = await answer
            pairs = to_pairs(answer)
        except Refuse as refusal:
            connection.core.refuse(refusal.code, refusal.reason, connection.driver.now())
            connection.driver.touch()
            return
        if connection.ended is not None:
            return
        connection.core.accept(pairs, connection.driver.now())
        connection.driver.touch()
        self._connections.add(connection)
        self._ready.put_nowait(connection)
        connection._over.add_done_callback(lambda _: self._connections.discard(connection))


async def _handle(handler: Handler, connection: Connection[Any]) -> None:
    try:
        await handler(connection)
    except ConnectionLost:
        pass
    except Exception as error:  # noqa: BLE001 -- one connection's failure is not the server's
        loop = asyncio.get_running_loop()
        loop.call_exception_handler(
            {"message": f"the handler of {connection!r} failed", "exception": error}
        )
        await connection.close(CloseCode.INTERNAL, "the handler failed")
    else:
        await connection.close()


class Serving(Generic[T]):
    """What `serve` returns: use it in `async with`."""

    def __init__(self, open_: Callable[[], Awaitable[Server[T]]]) -> None:
        self._open = open_
        self._server: Server[T] | None = None

    def __await__(self) -> Generator[Any, None, Server[T]]:
        return self._open().__await__()

    async def __aenter__(self) -> Server[T]:
        self._server = await self._open()
        return self._server

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            await self._server.close()


class ServeOptions(TypedDict, total=False):
    """What `serve` takes besides an address and a type."""

    tls: Required[ServerTLS]
    accept: AcceptCallback | None
    limits: Limits | None
    options: QuicOptions | None
    trace: TraceLike | None


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
) -> Serving[Any]:
    """Serve on ``host:port``; each connection's entrypoint receives messages of the given type.

    ``trace`` names a directory for Parquet files that tell what happened, or is a `Trace`.
    """

    async def open_() -> Server[Any]:
        host, port = split_address(address)
        family, where = (await resolve(host or "0.0.0.0", port))[0]
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.bind(where)
        except OSError as error:
            sock.close()
            raise ConnectError(f"cannot listen on {address}: {error.strerror}") from None
        config = Config(limits=limits or Limits())
        server: Server[Any]
        endpoint = ServerEndpoint(
            sock,
            options or QuicOptions(),
            tls,
            lambda: Core(Side.SERVER, config),
            lambda driver, peer: server.incoming(driver, peer),  # noqa: PLW0108 -- made below
        )
        server = Server(endpoint, kind, accept, _open_trace(trace))
        return server

    return Serving(open_)


def split_address(address: str) -> tuple[str, int]:
    """``host:port``, ``[::1]:port`` or ``aqueduct://host:port``."""
    text = address.removeprefix(SCHEME).rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, str(DEFAULT_PORT)
    try:
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:
        raise ConnectError(f"not an address: {address!r}; write host:port")
    return host.strip("[]"), number


async def resolve(host: str, port: int) -> list[tuple[int, Address]]:
    """The addresses of a host, each with its family."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise ConnectError(f"cannot find {host!r}: {error.strerror}") from None
    return [(family, (str(where[0]), int(where[1]))) for family, _, _, _, where in found]


async def close_all() -> None:
    """Close every connection on this loop: the program ends."""
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(one.close() for one in list(_live) if one.driver.loop is loop))


def _after_fork() -> None:
    for connection in list(_live):
        connection.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
