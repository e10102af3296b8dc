"""How a client connects to a server."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Required, TypedDict, TypeVar, Unpack, overload

from aqueduct.api.address import resolve, split_address
from aqueduct.api.connection import (
    Connection,
    HandshakeFailed,
    close_trace,
    open_trace,
)
from aqueduct.api.handles import Sender
from aqueduct.api.opening import Opening
from aqueduct.codec import codec_for
from aqueduct.errors import AqueductError, CloseCode, ConnectError, ConnectTimeout
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.runtime.headers import HeadersLike, to_pairs
from aqueduct.security import Trust
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.endpoint import Driver, Endpoint, QuicOptions, client_settings
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.tickets import ClientTickets
from aqueduct.transport.udp import Address
from aqueduct.wire.chanid import Side

if TYPE_CHECKING:
    from aqueduct.api.connection import TraceLike
    from aqueduct.observe.trace import Trace

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
RETRY_DELAY = 0.05

_tickets = ClientTickets()
"""What servers gave this process for the next time; never written anywhere."""


class ClientConnection(Connection[T]):
    """A connection as the client has it: messages go out on the entrypoint."""

    entrypoint: Sender[T]


class Connecting(Opening[ClientConnection[T]]):
    """What `connect` returns: use it in `async with`, or await it."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            if error is None:
                await self._opened.leave()
            else:
                await self._opened.close()


class ConnectOptions(TypedDict, total=False):
    """What `connect` takes besides an address and a type."""

    trust: Required[Trust]
    headers: HeadersLike | None
    limits: Limits | None
    options: QuicOptions | None
    timeout: float
    trace: TraceLike | None
    early_data: bool


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
    early_data: bool = False,
) -> Connecting[Any]:
    """Connect to ``host:port``; the entrypoint sends messages of the given type.

    ``trace`` names a directory for Parquet files that tell what happened, or is a `Trace`.

    With ``early_data``, when this process was connected to that server before and the server wants
    it too, there is no wait: messages go with the first packets, and the answer is there a round
    trip sooner. What would have been raised here, such as `Refused`, is then raised by the
    channels, by `Connection.wait_ready` and at the end of ``async with``.
    """
    codec_for(kind)  # say now what is wrong with it

    async def open_() -> ClientConnection[Any]:
        host, port = split_address(address)
        chosen = options or QuicOptions()
        pairs = to_pairs(headers)
        error: AqueductError | None = None
        silence = ConnectTimeout(
            f"no answer from {address} within {timeout:g} s; "
            "is the server running, and UDP allowed on the way?"
        )
        deadline = asyncio.get_running_loop().time() + timeout
        waiting = await _resolve_in_time(host, port, deadline)
        if early_data:
            waiting.sort(key=lambda one: not _tickets.knows(host, one[1], trust))
        while waiting:
            # A silent address leaves time for those behind it.
            left = deadline - asyncio.get_running_loop().time()
            share = left / len(waiting)
            family, where = waiting.pop(0)
            try:
                async with asyncio.timeout(share):
                    connection = await _connect_to(
                        host,
                        family,
                        where,
                        kind,
                        trust,
                        pairs,
                        limits,
                        chosen,
                        trace,
                        _tickets if early_data else None,
                    )
            except TimeoutError:
                error = error or silence
            except Unreachable as problem:
                error = problem
            except HandshakeFailed as problem:
                error = problem
                if left > RETRY_DELAY:
                    waiting.append((family, where))  # not the server's word: try again
                    await asyncio.sleep(RETRY_DELAY)
            else:
                if not connection.is_ready:
                    connection.expect(timeout, silence)
                return connection
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
    trace: TraceLike | None,
    tickets: ClientTickets | None,
) -> ClientConnection[Any]:
    """A connection that is ready, or that has begun with a ticket and may be used before it is."""
    endpoint = _open_endpoint(family, where, options)
    recorder: Trace | None = None
    connection: ClientConnection[Any] | None = None
    try:
        settings = client_settings(trust, options, host, where)
        on_ticket = None
        config = Config(limits=limits or Limits())
        settings.max_streams = max(settings.max_streams, config.max_streams)
        core = ConnectionCore(Side.CLIENT, config, headers=headers)
        recorder = open_trace(trace)
        if tickets is not None:
            settings = replace(settings, session_ticket=tickets.take(host, where, trust))
            on_ticket = partial(tickets.add, host, where, trust)
        quic = Engine(configuration=settings, on_ticket=on_ticket)
        driver = endpoint.add(Bridge(core, quic), quic.host_cid)
        connection = ClientConnection(driver, kind, where, recorder)
        connection._owns_trace = recorder is not None
        endpoint.connection = connection
        quic.connect(where, driver.now())
        driver.touch()
        if not quic.is_early:
            await connection.wait_ready()
    except BaseException:
        if connection is not None:
            # Its entrypoint has ended too, and nobody needs to be warned of that.
            connection.core.close_connection(CloseCode.NO_ERROR, "", connection.driver.now())
            connection.driver.tell()
        endpoint.close()
        await close_trace(recorder)
        raise
    return connection


async def _resolve_in_time(host: str, port: int, deadline: float) -> list[tuple[int, Address]]:
    try:
        async with asyncio.timeout_at(deadline):
            return await resolve(host, port)
    except TimeoutError:
        raise ConnectTimeout(
            f"cannot find {host!r}: name resolution took too long; is DNS reachable?"
        ) from None


def _open_endpoint(family: int, where: Address, options: QuicOptions) -> ClientEndpoint:
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.connect(where)
        return ClientEndpoint(sock, options)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError):
            raise Unreachable(
                f"cannot reach {where[0]}:{where[1]} ({error.strerror}); check the address, "
                "and that this host has a network that leads there"
            ) from None
        raise


class ClientEndpoint(Endpoint):
    """A socket for one connection, which closes with it."""

    connection: Connection[Any] | None = None

    def released(self, driver: Driver) -> None:
        """The connection is closed, and so is its socket."""
        self.close()

    def network_error(self, error: OSError) -> None:
        """Nobody listens at the other end, and the handshake is not done: no use to wait."""
        connection = self.connection
        if connection is not None:
            connection.fail(
                Unreachable(
                    f"nobody listens at {connection.peer[0]}:{connection.peer[1]} "
                    f"({error.strerror}); start the server first"
                )
            )


def _after_fork() -> None:
    """The parent keeps its tickets: each is good for one connection."""
    global _tickets  # noqa: PLW0603 -- one store for the process
    _tickets = ClientTickets()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
