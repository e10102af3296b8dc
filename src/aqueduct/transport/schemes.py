"""Choose the transports for an address by its scheme.

============================================ =======================================
address                                      transport
============================================ =======================================
``host:port`` or ``aqueduct://host:port``    both of the next two
``aqueduct+quic://host:port``                `aqueduct.transport.quic`
``aqueduct+tcp://host:port``                 `aqueduct.transport.tcp`
``memory://name``                            `aqueduct.transport.memory`
============================================ =======================================

A server listens on both at the same port number; a client tries QUIC first. This is the only module
outside a transport's folder that opens connections with it: another transport is added here.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from aqueduct.errors import BindError, ConnectError, TLSError
from aqueduct.protocol.config import Config
from aqueduct.security import ServerTLS, Trust, check_client_trust
from aqueduct.transport import memory
from aqueduct.transport.address import (
    QUIC_SCHEME,
    TCP_SCHEME,
    Route,
    bind,
    resolve,
    split_address,
)
from aqueduct.transport.admission import Admission, Droppable
from aqueduct.transport.base import Connector, Listener, MakeCore, OnTransport
from aqueduct.transport.quic.connector import QuicConnector
from aqueduct.transport.quic.listener import QuicListener
from aqueduct.transport.quic.tickets import ServerTickets
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.tcp.connector import TcpConnector
from aqueduct.transport.tcp.listener import TcpListener

__all__ = ["QuicSettings", "connectors_for", "listen"]

_FREE_PORTS = 64
"""Ports of TCP that are tried until one is free for UDP, too."""


def connectors_for(
    address: str,
    *,
    trust: Trust,
    options: QuicSettings | None,
    early_data: bool,
    certificate: ServerTLS | None = None,
) -> Sequence[Connector]:
    """Return the connectors to try, the first one first; raise `ConnectError` if malformed.

    A client with a certificate uses TCP: QUIC cannot present it.
    """
    if address.startswith(memory.SCHEME):
        return [memory.MemoryConnector(address)]
    chosen = options or QuicSettings()
    connectors: list[Connector] = []
    if certificate is not None:
        _check_scheme(address)
    elif not address.startswith(TCP_SCHEME):
        connectors.append(QuicConnector(address, trust, chosen, early_data))
    if not address.startswith(QUIC_SCHEME):
        connectors.append(TcpConnector(address, trust, chosen, certificate))
    return connectors


class DualListener:
    """A `Listener` on UDP and TCP at one port number; both count against the same limits."""

    def __init__(self, quic: Listener, tcp: Listener, admission: Admission[Droppable]) -> None:
        self.quic = quic
        self.tcp = tcp
        self._admission = admission

    @property
    def unclaimed(self) -> int:
        """Ended connections that the server still holds for the application."""
        return self._admission.unclaimed

    @unclaimed.setter
    def unclaimed(self, number: int) -> None:
        self._admission.unclaimed = number

    @property
    def address(self) -> str:
        """The address of both, without a scheme."""
        return self.quic.address

    @property
    def handshake_timeout(self) -> float:
        """Seconds that a client has for the handshake and its headers."""
        return self.quic.handshake_timeout

    def stop_accepting(self) -> None:
        """Ignore new clients of both."""
        self.quic.stop_accepting()
        self.tcp.stop_accepting()

    def close(self) -> None:
        """Abandon all connections of both, and free the address."""
        self.quic.close()
        self.tcp.close()


async def listen(
    address: str,
    *,
    tls: ServerTLS,
    options: QuicSettings | None,
    config: Config,
    make_core: MakeCore,
    on_transport: OnTransport,
    early_data: bool,
    client_trust: Trust | None = None,
) -> Listener:
    """Listen on an address; raise `BindError` if it is malformed or cannot be bound.

    A server that verifies its clients uses TCP: QUIC cannot ask them for certificates.
    """
    chosen = options or QuicSettings()
    if client_trust is not None:
        _check_scheme(address)
        check_client_trust(client_trust)
    if address.startswith(memory.SCHEME):
        return memory.listen(address, chosen.handshake_timeout, make_core, on_transport)
    try:
        host, port = split_address(address)
        (route, *_) = await resolve(host or "0.0.0.0", port)
    except ConnectError as error:  # the address is malformed, or the host is unknown
        raise BindError(f"cannot listen on {address}: {error}", address=address) from None
    admission: Admission[Droppable] = Admission(chosen, config)
    udp, tcp = _bind(route, address, only_tcp=client_trust is not None)
    listeners: list[Listener] = []
    try:
        if udp is not None:
            tickets = ServerTickets() if early_data else None
            quic = QuicListener(
                udp, chosen, tls, make_core, on_transport, tickets, config, admission
            )
            if tcp is None:
                quic.address = QUIC_SCHEME + quic.address
            listeners.append(quic)
        if tcp is not None:
            listeners.append(
                TcpListener(tcp, chosen, tls, make_core, on_transport, admission, client_trust)
            )
    except BaseException:
        for listener in listeners:
            listener.close()
        for sock in (udp, tcp):
            if sock is not None:
                sock.close()
        raise
    if len(listeners) == 1:
        return listeners[0]
    over_quic, over_tcp = listeners
    return DualListener(over_quic, over_tcp, admission)


def _check_scheme(address: str) -> None:
    """Raise `TLSError` for an address over which no client can present a certificate."""
    if address.startswith((QUIC_SCHEME, memory.SCHEME)):
        raise TLSError(
            f"no client can present a certificate at {address}",
            hint="use TCP for client certificates: aqueduct+tcp://host:port",
        )


def _bind(
    route: Route, address: str, *, only_tcp: bool
) -> tuple[socket.socket | None, socket.socket | None]:
    """Return the sockets of UDP and of TCP that the scheme of an address asks for."""
    family, where = route
    if address.startswith(QUIC_SCHEME):
        return bind(socket.SOCK_DGRAM, family, where, address), None
    for attempt in range(_FREE_PORTS):
        tcp = bind(socket.SOCK_STREAM, family, where, address)
        if only_tcp or address.startswith(TCP_SCHEME):
            return None, tcp
        try:
            return bind(socket.SOCK_DGRAM, family, tcp.getsockname()[:2], address), tcp
        except BindError:
            tcp.close()
            if where[1] or attempt == _FREE_PORTS - 1:  # the port was not ours to choose
                raise
    raise AssertionError("the last attempt raises")
