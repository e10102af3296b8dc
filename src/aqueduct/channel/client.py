"""How a client connects to a server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, TypeVar, Unpack, overload

from aqueduct.channel.address import resolve, split_address
from aqueduct.channel.connection import Connection, HandshakeFailed, open_trace
from aqueduct.channel.handles import Sender
from aqueduct.channel.headers import HeadersLike, to_pairs
from aqueduct.errors import AqueductError, CloseCode, ConnectError, ConnectTimeout
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Connection as Core
from aqueduct.quic.bridge import Bridge
from aqueduct.quic.endpoint import Driver, Endpoint, QuicOptions, client_settings
from aqueduct.quic.engine import Engine
from aqueduct.quic.tls import Trust
from aqueduct.quic.udp import Address
from aqueduct.wire.chanid import Side

if TYPE_CHECKING:
    from aqueduct.channel.connection import TraceLike

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
RETRY_DELAY = 0.05


class ClientConnection(Connection[T]):
    """A connection as the client has it: messages go out on the entrypoint."""

    entrypoint: Sender[T]


class Connecting(Generic[T]):
    """What `connect` returns: use it in `async with`, or await it."""

    def __init__(self, open_: Callable[[], Awaitable[ClientConnection[T]]]) -> None:
        self._open = open_
        self._connection: ClientConnection[T] | None = None

    def __await__(self) -> Generator[Any, None, ClientConnection[T]]:
        return self._open().__await__()

    async def __aenter__(self) -> ClientConnection[T]:
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

    async def open_() -> ClientConnection[Any]:
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
) -> ClientConnection[Any]:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.connect(where)
    endpoint = ClientEndpoint(sock, options)
    quic = Engine(configuration=client_settings(trust, options, host, where))
    config = Config(limits=limits or Limits())
    core = Core(Side.CLIENT, config, headers=headers)
    driver = endpoint.add(Bridge(core, quic), quic.host_cid)
    recorder = open_trace(trace)
    connection: ClientConnection[Any] = ClientConnection(driver, kind, where, recorder)
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
