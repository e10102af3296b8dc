"""The server side of TCP: one socket that accepts connections.

A connection counts as half open from the moment that TCP accepts it; `Admission` decides which
clients are admitted. A transport and its core exist from the client's first bytes on, so that a
flood of connections without any costs a socket each.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from time import monotonic

from aqueduct.security import ServerTLS, Trust
from aqueduct.transport.address import TCP_SCHEME, Address, format_address
from aqueduct.transport.admission import Admission, Droppable, neighbourhood
from aqueduct.transport.base import MakeCore, OnTransport
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.tcp.transport import ALPN, HELLO_SIZE, TcpTransport
from aqueduct.transport.tls import SLICE, TlsSession, server_context

_BACKLOG = 1_024
_ACCEPTS_PER_TURN = 16
"""Connections that are accepted before those that are open get their turn."""
_PAUSE = 0.5
"""Seconds after which a process without a free file descriptor accepts again."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Arrival:
    """A connection of which too little came to begin with the handshake."""

    def __init__(self, listener: TcpListener, sock: socket.socket, peer: Address) -> None:
        self._listener = listener
        self.socket = sock
        self.peer = peer
        self.received = b""
        listener.loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        try:
            data = self.socket.recv(SLICE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.received += data
        if len(self.received) >= HELLO_SIZE:
            self._listener.loop.remove_reader(self.socket)
            self._listener.begin(self)

    def abandon(self, reason: str) -> None:
        """Do nothing: there is no core yet."""

    def close(self) -> None:
        """Close the socket."""
        self._listener.loop.remove_reader(self.socket)
        self._listener.leave(self)
        self.socket.close()


class TcpListener:
    """A `Listener` on a TCP socket."""

    def __init__(
        self,
        sock: socket.socket,
        options: QuicSettings,
        tls: ServerTLS,
        make_core: MakeCore,
        on_transport: OnTransport,
        admission: Admission[Droppable],
        client_trust: Trust | None = None,
    ) -> None:
        """``admission`` may count the connections of another listener, too.

        With ``client_trust``, each client needs a certificate of its authorities (AQ-TCP-1).
        """
        self._context = server_context(tls, ALPN, client_trust)
        self.loop = asyncio.get_running_loop()
        self.options = options
        self.flushes_due = 0
        """Connections that wait for their flush."""
        self.address = TCP_SCHEME + format_address(sock.getsockname()[:2])
        """The address of the socket, as clients write it; known also after the end."""
        self._socket = sock
        self._admission = admission
        self._make_core = make_core
        self._on_transport = on_transport
        self._open: dict[TcpTransport | _Arrival, asyncio.TimerHandle | None] = {}
        """All connections, with the timer that bounds the handshake."""
        self._is_accepting = True
        self._resume: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self.loop.add_reader(sock, self._acceptable)

    @property
    def unclaimed(self) -> int:
        """Ended connections that the server still holds for the application."""
        return self._admission.unclaimed

    @unclaimed.setter
    def unclaimed(self, number: int) -> None:
        self._admission.unclaimed = number

    @property
    def handshake_timeout(self) -> float:
        """Seconds that a client has for the handshake and its headers."""
        return self.options.handshake_timeout

    def stop_accepting(self) -> None:
        """Refuse new clients."""
        if self._is_accepting:
            self._is_accepting = False
            if self._resume is not None:
                self._resume.cancel()
            self.loop.remove_reader(self._socket)
            self._socket.close()

    def close(self) -> None:
        """Abandon all connections and free the address."""
        self.stop_accepting()
        for connection in list(self._open):
            connection.abandon("the listener was closed")
            connection.close()

    # -- calls of connections ---------------------------------------------------------------------

    def begin(self, arrival: _Arrival) -> None:
        """Begin the handshake of a client that has sent its first bytes."""
        timer = self._open[arrival]
        assert timer is not None
        self.leave(arrival)
        name = neighbourhood(arrival.peer[0])
        transport = TcpTransport(
            self,
            arrival.socket,
            TlsSession(self._context),
            self._make_core(self._admission.account(name)),
            arrival.peer,
            arrival.received,
        )
        self._open[transport] = self.loop.call_at(timer.when(), self._give_up, transport)
        self._admission.enter(transport, name, monotonic())
        self._on_transport(transport)
        transport.begin()

    def handle_established(self, transport: TcpTransport) -> None:
        """End the time limit of the handshake; the server limits that of the headers."""
        timer = self._open[transport]
        if timer is not None:
            timer.cancel()
            self._open[transport] = None

    def handle_ready(self, transport: TcpTransport) -> None:
        """Count a connection that was accepted no longer as half open."""
        self._admission.accepted(transport)

    def forget(self, transport: TcpTransport) -> None:
        """Remove a connection that has ended."""
        self.leave(transport)

    def leave(self, connection: TcpTransport | _Arrival) -> None:
        """Remove a connection."""
        timer = self._open.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._admission.leave(connection)

    # -- new connections --------------------------------------------------------------------------

    def _acceptable(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause()
                return
            self._accept(sock, peer[:2])

    def _accept(self, sock: socket.socket, peer: Address) -> None:
        name, now = neighbourhood(peer[0]), monotonic()
        if not self._admission.make_room(name, now):
            sock.close()
            return
        sock.setblocking(False)
        arrival = _Arrival(self, sock, peer)
        self._admission.account(name)
        self._admission.enter(arrival, name, now)
        timeout = self.options.handshake_timeout
        self._open[arrival] = self.loop.call_later(timeout, self._give_up, arrival)

    def _give_up(self, connection: TcpTransport | _Arrival) -> None:
        connection.abandon("the handshake took too long")
        connection.close()

    def _pause(self) -> None:
        """Accept no connections for a while: the process can open no more sockets."""
        self.loop.remove_reader(self._socket)
        self._resume = self.loop.call_later(_PAUSE, self._accept_again)

    def _accept_again(self) -> None:
        with contextlib.suppress(OSError):
            self.loop.add_reader(self._socket, self._acceptable)
