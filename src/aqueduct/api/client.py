"""`connect`: the client side of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Required, TypedDict, TypeVar, Unpack, overload

from aqueduct.api.connection import (
    Connection,
    Opening,
    check_arguments,
    close_trace,
    open_trace,
    with_trace,
)
from aqueduct.api.handles import Sender
from aqueduct.api.racing import RACE_DELAY, Winners, race
from aqueduct.codec import CodecClass, codec_for
from aqueduct.codec.registry import choose
from aqueduct.errors import (
    AqueductError,
    CloseCode,
    ConnectTimeout,
    GoingAway,
    HandshakeFailed,
    HostUnreachable,
)
from aqueduct.observe.base import ObserverFactory
from aqueduct.protocol.config import Config, Delivery, Limits, config_of
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.runtime.headers import HeadersLike, to_pairs
from aqueduct.security import ServerTLS, Trust
from aqueduct.settings import check_type
from aqueduct.transport.address import Route
from aqueduct.transport.base import Connector, Transport
from aqueduct.transport.schemes import QuicSettings, connectors_for
from aqueduct.wire.chanid import Side

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from aqueduct.api.connection import TraceLike
    from aqueduct.observe.trace import Trace

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
RETRY_DELAY = 0.05

_winners = Winners(monotonic)
"""Servers that this process reached over TCP first, because UDP is blocked on the path."""


class ClientConnection(Connection[T]):
    """A client's connection, which sends messages on its entrypoint."""

    entrypoint: Sender[T]


class Connecting(Opening[ClientConnection[T]]):
    """What `connect` returns: use it in ``async with``, or await it."""

    _call = "connect"


class ConnectOptions(TypedDict, total=False):
    """What `connect` takes besides an address and a type."""

    trust: Required[Trust]
    certificate: ServerTLS | None
    headers: HeadersLike | None
    limits: Limits | None
    delivery: Delivery | None
    options: QuicSettings | None
    timeout: float
    trace: TraceLike | None
    observers: Sequence[ObserverFactory]
    codec: CodecClass | None
    early_data: bool


@overload
def connect(address: str, **options: Unpack[ConnectOptions]) -> Connecting[bytes]: ...
@overload
def connect(address: str, kind: type[T], **options: Unpack[ConnectOptions]) -> Connecting[T]: ...
@overload
def connect(
    address: str, kind: TypeForm[T], **options: Unpack[ConnectOptions]
) -> Connecting[T]: ...
@overload
def connect(address: str, kind: Any, **options: Unpack[ConnectOptions]) -> Connecting[Any]: ...
def connect(
    address: str,
    kind: Any = bytes,
    *,
    trust: Trust,
    certificate: ServerTLS | None = None,
    headers: HeadersLike | None = None,
    limits: Limits | None = None,
    delivery: Delivery | None = None,
    options: QuicSettings | None = None,
    timeout: float = CONNECT_TIMEOUT,
    trace: TraceLike | None = None,
    observers: Sequence[ObserverFactory] = (),
    codec: CodecClass | None = None,
    early_data: bool = False,
) -> Connecting[Any]:
    """Connect to ``host:port``; the entrypoint sends messages of the given type.

    This tries QUIC, and TCP if QUIC gets no answer within 250 ms: see docs/tcp.md.
    ``aqueduct+quic://host:port`` and ``aqueduct+tcp://host:port`` try one of them.
    ``memory://name`` connects to a server in the same process, without a socket. ``certificate`` is
    for servers that ask for one; ``host:port`` is TCP then, because QUIC cannot present it.
    ``trace`` is a `Trace`, or a directory for its Parquet files. Each of ``observers`` makes an
    `aqueduct.observe.Observer` of the connection: see docs/observing.md. ``codec`` is the format of
    the messages, such as `aqueduct.codec.JsonCodec`; MessagePack by default. ``limits`` are what
    this side receives, ``delivery`` says how it sends and acknowledges, ``options`` are for QUIC:
    see docs/settings.md.

    With ``early_data``, a client that was connected to this server before does not wait for the
    handshake, if the server allows it: messages leave with the first packets, and answers arrive a
    round trip sooner. Errors of connecting, such as `Refused`, are then raised by the channels, by
    `Connection.wait_ready` and at the end of ``async with``.

    Raises `TypeError` at the call for an argument of a wrong type, and `ConnectError` or one of its
    subclasses when it connects.
    """
    codec_for(kind)  # raise here for a type that cannot be one
    check_arguments(address, options)
    check_type("trust", trust, Trust, "aqueduct.trust(…)", is_required=True)
    check_type("certificate", certificate, ServerTLS, "aqueduct.tls(cert, key)")
    chosen, pairs = choose(kind, codec, to_pairs(headers))
    config = config_of(limits, delivery)

    async def open_() -> ClientConnection[Any]:
        connectors = connectors_for(
            address,
            trust=trust,
            options=options,
            early_data=early_data,
            certificate=certificate,
        )
        error: AqueductError | None = None
        protocols = " or ".join(connector.protocol for connector in connectors)
        silence = ConnectTimeout(
            f"no answer from {address} within {timeout:g} s; "
            f"is the server running{f', and {protocols} allowed on the path' if protocols else ''}?"
        )
        deadline = asyncio.get_running_loop().time() + timeout
        routes = await _resolve_in_time(connectors[0], deadline)

        async def connect_to(
            connector: Connector, route: Route, won: Callable[[], None]
        ) -> ClientConnection[Any]:
            return await _connect_to(
                connector, route, won, kind, pairs, config, trace, observers, chosen
            )

        while routes:
            # A silent address leaves time for those behind it.
            left = deadline - asyncio.get_running_loop().time()
            share = left / len(routes)
            route = routes.pop(0)
            order = _winners.order(address, len(connectors))
            attempts = [partial(connect_to, connectors[index], route) for index in order]
            try:
                async with asyncio.timeout(share):
                    index, connection = await race(attempts, RACE_DELAY, _discard)
            except TimeoutError:
                error = error or silence
            except (HostUnreachable, GoingAway) as problem:
                error = problem  # another route may lead to another server
            except HandshakeFailed as problem:
                error = problem
                if left > RETRY_DELAY:
                    routes.append(route)  # the server did not reject the connection: try again
                    await asyncio.sleep(RETRY_DELAY)
            else:
                _winners.remember(address, order[index])
                if not connection.is_ready:
                    connection._driver.fail_after(timeout, silence)
                return connection
        assert error is not None
        raise error

    return Connecting(open_)


async def _connect_to(
    connector: Connector,
    route: Route,
    won: Callable[[], None],
    kind: Any,
    headers: Any,
    config: Config,
    trace: TraceLike | None,
    observers: Sequence[ObserverFactory],
    codec: CodecClass | None,
) -> ClientConnection[Any]:
    """Return a connection that is ready, or one that may send early data before it is.

    It has ``won`` when its handshake is complete: the server then gets no other one's headers.
    """
    core = ConnectionCore(Side.CLIENT, config, headers=headers)
    transport = connector.open(route, core)
    recorder: Trace | None = None
    try:
        recorder = open_trace(trace)
        factories = with_trace(observers, recorder)
        connection: ClientConnection[Any] = ClientConnection(transport, kind, factories, codec)
        connection._driver.when_closed = lambda: close_trace(recorder)
        transport.start()
        if not transport.may_send_early:
            await connection._driver.wait_established()
            if transport.is_established:
                won()
            await connection.wait_ready()
    except BaseException:
        _give_up(transport)
        await close_trace(recorder)
        raise
    return connection


def _discard(connection: ClientConnection[Any]) -> None:
    _give_up(connection._driver.transport)


def _give_up(transport: Transport) -> None:
    # Closing the core ends the entrypoint too, so that its handle does not warn.
    transport.core.close_connection(CloseCode.NO_ERROR, "", transport.now())
    if transport.is_established:
        transport.flush()  # the server may have accepted a connection that lost a race
    transport.abandon("the attempt to connect was given up")
    transport.close()


async def _resolve_in_time(connector: Connector, deadline: float) -> list[Route]:
    try:
        async with asyncio.timeout_at(deadline):
            return await connector.resolve()
    except TimeoutError:
        raise ConnectTimeout(
            f"cannot find {connector.host!r}: name resolution timed out",
            hint="check that DNS is reachable",
        ) from None
