"""The client side of TCP."""

from __future__ import annotations

import asyncio
import socket

from aqueduct.errors import ConnectError
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.security import ServerTLS, Trust
from aqueduct.transport.address import Route, resolve, split_address, unreachable
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.tcp.transport import ALPN, TcpTransport
from aqueduct.transport.tls import TlsSession, client_context


class TcpConnector:
    """A `Connector` for ``aqueduct+tcp://host:port``."""

    protocol = "TCP"

    def __init__(
        self,
        address: str,
        trust: Trust,
        options: QuicSettings,
        certificate: ServerTLS | None = None,
    ) -> None:
        """``certificate`` is for servers that ask for one."""
        self.host, self._port = split_address(address)
        if not self.host or not self._port:
            missing = "port" if self.host else "host"
            raise ConnectError(f"cannot connect to {address!r}: the {missing} is missing")
        self._trust, self._certificate = trust, certificate
        self._options = options

    async def resolve(self) -> list[Route]:
        """Return the addresses of the host."""
        return await resolve(self.host, self._port)

    def open(self, route: Route, core: ConnectionCore) -> TcpTransport:
        """Return a transport with a socket that is not connected yet."""
        family, where = route
        context = client_context(self._trust, ALPN, self._certificate)
        session = TlsSession(context, self.host, self._trust.pinned)
        session.shake_hands()
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise unreachable(where, error.errno or 0) from None
        sock.setblocking(False)
        endpoint = TcpClientEndpoint(self._options)
        return TcpTransport(endpoint, sock, session, core, where, session.poll_ciphertext())


class TcpClientEndpoint:
    """What the connection of a client has in common with others: nothing."""

    def __init__(self, options: QuicSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.options = options
        self.flushes_due = 0

    def handle_established(self, transport: TcpTransport) -> None:
        """Do nothing: `connect` bounds the time of the handshake."""

    def handle_ready(self, transport: TcpTransport) -> None:
        """Do nothing."""

    def forget(self, transport: TcpTransport) -> None:
        """Do nothing."""
