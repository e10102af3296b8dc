"""The client side of QUIC: one socket per connection, and tickets for early data."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from functools import partial

from aqueduct.errors import ConnectError
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.security import Trust
from aqueduct.transport.address import (
    Address,
    Route,
    resolve,
    split_address,
    unreachable,
)
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.configuration import client_settings
from aqueduct.transport.quic.endpoint import QuicEndpoint, has_short_header
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.tickets import ClientTickets
from aqueduct.transport.quic.transport import QuicTransport
from aqueduct.transport.settings import QuicSettings

_tickets = ClientTickets()
"""The session tickets that servers gave this process; they are kept in memory only."""


class QuicConnector:
    """A `Connector` for ``host:port``."""

    protocol = "UDP"

    def __init__(self, address: str, trust: Trust, options: QuicSettings, early_data: bool) -> None:
        self.host, self._port = split_address(address)
        if not self.host or not self._port:
            missing = "port" if self.host else "host"
            raise ConnectError(f"cannot connect to {address!r}: the {missing} is missing")
        self._trust = trust
        self._options = options
        self._tickets = _tickets if early_data else None

    async def resolve(self) -> list[Route]:
        """Return the addresses of the host, those with a ticket for early data first."""
        routes = await resolve(self.host, self._port)
        tickets = self._tickets
        if tickets is not None:
            routes.sort(key=lambda route: not tickets.knows(self.host, route[1], self._trust))
        return routes

    def open(self, route: Route, core: ConnectionCore) -> QuicTransport:
        """Open a socket and a QUIC connection on it."""
        family, where = route
        endpoint = _open_endpoint(family, where, self._options)
        try:
            settings = client_settings(self._trust, self._options, self.host, where)
            settings.max_streams = max(settings.max_streams, core.config.max_streams)
            on_ticket = None
            tickets = self._tickets
            if tickets is not None:
                ticket = tickets.take(self.host, where, self._trust)
                settings = replace(settings, session_ticket=ticket)
                on_ticket = partial(tickets.add, self.host, where, self._trust)
            quic = Engine(configuration=settings, on_ticket=on_ticket)
            return endpoint.add(Bridge(core, quic, self._options.keep_alive), where, quic.host_cid)
        except BaseException:
            endpoint.close()
            raise


def _open_endpoint(family: int, where: Address, options: QuicSettings) -> QuicClientEndpoint:
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.connect(where)
        return QuicClientEndpoint(sock, options)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError):
            raise unreachable(where, error.errno or 0) from None
        raise


class QuicClientEndpoint(QuicEndpoint):
    """A socket for one connection, which is closed with it."""

    def handle_unknown(self, data: bytes, address: Address) -> QuicTransport | None:
        """Hand a packet with an unknown id to the connection: it may be a stateless reset."""
        if has_short_header(data):
            for transport in self.transports:
                if transport.is_established:
                    return transport
        return None

    def handle_closed(self, transport: QuicTransport) -> None:
        """Close the socket."""
        self.close()

    def handle_network_error(self, error: OSError) -> None:
        """Fail a connection that is not ready: nothing listens there, or nothing gets there."""
        for transport in list(self.transports):
            if transport.owner is not None:
                transport.owner.handle_failure(unreachable(transport.peer, error.errno or 0))


def _after_fork() -> None:
    """Leave the tickets to the parent: each is valid for one connection."""
    global _tickets  # noqa: PLW0603 -- one store for the process
    _tickets = ClientTickets()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
