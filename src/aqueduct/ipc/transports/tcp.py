"""The transport between hosts: PDUs over TCP with TLS, on connections that it manages itself.

The transport opens a connection to a remote when there is something to send, uses it for all
messages to that remote and their acks, reopens it after a loss, and closes it when it is idle.
Replies to a remote that connected use its connection, so that the remote need not listen.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from aqueduct.errors import BindError, ConnectError, TLSError
from aqueduct.ipc.address import parse, unparse
from aqueduct.ipc.core.events import BatchResult, Transmit
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.transports.base import PduListener
from aqueduct.ipc.transports.stream import BUFFER, FULL, TlsConnection
from aqueduct.security import ServerTLS, Trust
from aqueduct.settings import MIB, declare, seconds, whole
from aqueduct.transport.tls import TlsSession, client_context, server_context

SCHEME = "tls://"
MAX_PDU = 256 * 1024
WINDOW = 4 * 1024 * 1024
ID_TRUST = 3_600.0
"""Seconds. A connected peer does not change; `handle_transient_error` reports when it is lost."""

_MIN_FRAME = 1024 * 1024
"""Frames up to this are read whatever ``max_pdu`` is, so that a sender that does not know it gets
an error instead of a closed connection (IPC-RECV-5)."""
_PAUSE = 0.05
"""Seconds between two attempts to connect to a remote, however many messages wait."""
_LINGER = 1.0
"""Seconds that closing waits for buffered data to be sent."""
_BACKLOG = 1_024
_ALL_ADDRESSES = ("0.0.0.0", "::")
_MAX_UNSENT = 64 * 1024 * 1024
"""Unsent bytes over all connections, above which acks to peers that do not read are dropped."""
_NOT_ITS_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_NOT_ITS_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_VERSIONS = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "UNSUPPORTED_VERSION")


@dataclass(frozen=True)
class TcpLimits:
    """The limits on the connections of one transport (IPC-TCP-6)."""

    idle_timeout: float = field(
        default=60.0,
        metadata=seconds("A connection that advances no message for this long is closed.", above=0),
    )
    handshake_timeout: float = field(
        default=5.0,
        metadata=seconds("How long TCP and TLS together may take to connect.", above=0),
    )
    max_connections: int = field(
        default=1_024,
        metadata=whole(
            "connections",
            "Accepted connections, and as many opened ones: about 60 MB. A further connection "
            "replaces the least useful one.",
            least=1,
        ),
    )
    idle_grace: float = field(
        default=1.0,
        metadata=seconds(
            "A connection that advanced a message within this time is not replaced, unless its "
            "address has more connections than that of the new one. Far above the time between "
            "two PDUs of a transfer.",
            above=0,
        ),
    )
    max_partial: int = field(
        default=64 * MIB,
        metadata=whole(
            "bytes",
            "Incomplete PDUs over all connections; above that, the connection that was useful "
            "least recently is closed.",
            least=_MIN_FRAME,
        ),
    )


declare(TcpLimits)


class _Route:
    """The route to one remote: a connection, an attempt to connect, or a recent failure."""

    __slots__ = ("connection", "not_before", "remote", "task", "waiting", "waiting_size")

    def __init__(self, remote: Hashable) -> None:
        self.remote = remote
        self.connection: TlsConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.waiting: list[Transmit] = []
        self.waiting_size = 0
        self.not_before = 0.0

    def take_waiting(self) -> list[Transmit]:
        """Remove and return the PDUs that wait for the connection."""
        waiting = self.waiting
        self.waiting = []
        self.waiting_size = 0
        return waiting


async def open_tls(
    address: str,
    listener: PduListener,
    *,
    max_pdu: int = MAX_PDU,
    tls: ServerTLS | None = None,
    trust: Trust | None = None,
    limits: TcpLimits | None = None,
) -> TlsTransport:
    """Listen at ``tls://host:port`` if there is a certificate; else only connect."""
    transport = TlsTransport(listener, max_pdu, trust or Trust(), limits or TcpLimits())
    if tls is not None:
        _, host, port = parse(address)
        await transport.listen(host, port, tls)
    return transport


class TlsTransport:
    """Carries PDUs over TCP with TLS."""

    def __init__(
        self, listener: PduListener, max_pdu: int, trust: Trust, limits: TcpLimits
    ) -> None:
        self.address = SCHEME
        self.max_pdu = max_pdu
        self.window = WINDOW
        self.id_trust: float | None = ID_TRUST
        self.reports_sent = True
        self._listener = listener
        self._limits = limits
        self._largest = max(max_pdu, _MIN_FRAME)
        self._loop = asyncio.get_running_loop()
        self._client = client_context(trust)
        self._pinned = trust.pinned
        self._server: asyncio.Server | None = None
        self._server_context: ssl.SSLContext | None = None
        self._routes: dict[Hashable, _Route] = {}
        # All with a socket; those that this side is opening; those that it has accepted, with the
        # timer that bounds the handshake; those that carry PDUs.
        self._alive: dict[TlsConnection, None] = {}
        self._connecting: dict[TlsConnection, asyncio.Future[None]] = {}
        self._accepted: dict[TlsConnection, asyncio.TimerHandle] = {}
        self._per_address: dict[str, int] = {}
        self._partial = 0
        self._up: dict[Hashable, TlsConnection] = {}
        self._numbers = itertools.count(1)
        self._unsent = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        self._buffers = (memoryview(bytearray(BUFFER)), memoryview(bytearray(BUFFER)))

    def __repr__(self) -> str:
        return f"<TlsTransport {self.address}: {len(self._up)} connections>"

    async def listen(self, host: str, port: int, tls: ServerTLS) -> None:
        """Accept connections."""
        self._server_context = server_context(tls)
        try:
            bound: str | None = host or None
            if host and not port:  # a name with two addresses would get two ports
                found = await self._loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
                bound = str(found[0][4][0])
            self._server = await self._loop.create_server(
                self._accept, bound, port, backlog=_BACKLOG
            )
        except OSError as error:
            reason = error.strerror or error
            where = unparse("tls", host, port)
            raise BindError(f"cannot listen at {where}: {reason}", address=where) from None
        number = self._server.sockets[0].getsockname()[1]
        self.address = unparse("tls", host, number)

    async def locate(self, address: str) -> Hashable:
        """Return the remote of an address, or of an accepted connection's name."""
        where, hash_sign, number = address.partition("#")
        scheme, host, port = parse(where)
        if scheme != "tls" or not host or not port:
            raise ConnectError(f"not an address to send to: {address!r}; write {SCHEME}host:port")
        if host in _ALL_ADDRESSES:
            raise ConnectError(
                f"{address} stands for all addresses of a host; send to one of them, by a name "
                "that its certificate contains"
            )
        if not hash_sign:
            return ("tls", host, port)
        if not number.isdecimal():
            raise ConnectError(f"not a connection: {address!r}")
        return ("tls", host, port, int(number))

    def name(self, remote: Hashable) -> str:
        """Return the address of a remote; an accepted one ends in the number of its connection."""
        assert isinstance(remote, tuple), f"not a remote of this transport: {remote!r}"
        _, host, port, *number = remote
        return unparse("tls", host, port) + "".join(f"#{each}" for each in number)

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send PDUs; all for one remote are written at once."""
        if self._closing:
            return
        finished: list[OutgoingTransfer] = []
        reasons: dict[Hashable, str] = {}
        touched: list[TlsConnection] = []
        remote: Hashable = None
        connection: TlsConnection | None = None
        full = False
        over_limit = self._is_over_unsent_limit()
        for transmit in transmits:
            if transmit.remote is not remote:
                remote = transmit.remote
                connection = self._up.get(remote)
                full = connection is not None and connection.is_full
            if connection is None:
                why = self._send_later(transmit)
                if why is not None and transmit.transfer is not None:
                    reasons[remote] = why
                    finished.append(transmit.transfer)
            elif full or (over_limit and transmit.transfer is None and connection.unsent):
                # Acks are dropped, as a network may drop them; the others are retried later.
                if transmit.transfer is not None:
                    finished.append(transmit.transfer)
            elif connection.add(transmit):
                touched.append(connection)
        for each in touched:
            finished += each.flush()
        for remote, why in reasons.items():
            if why:
                self._listener.handle_transient_error(remote, why)
        if finished:
            self._listener.handle_sent(finished)

    def diagnose(self, remote: Hashable) -> str:
        """Return "": `handle_transient_error` was called with all that is known."""
        return ""

    async def close(self) -> None:
        """Close all connections, once buffered data is sent or after one second."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = [route.task for route in self._routes.values() if route.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self._alive)
        for connection in connections:
            connection.close()
        ends = [connection.lost for connection in connections]
        if ends:
            _, left = await asyncio.wait(ends, timeout=_LINGER)
            if left:
                for connection in connections:
                    connection.abort()
                await asyncio.wait(left)
        if self._server is not None:
            await self._server.wait_closed()

    # Connections that this side opens

    def _send_later(self, transmit: Transmit) -> str | None:
        """Send a PDU once there is a connection (IPC-TCP-7).

        Return None if it waits, else why not; "" if the listener knows the reason already.
        """
        transfer = transmit.transfer
        if transfer is None or transfer.ended:
            return None  # no connection is opened for an ack or an abort
        remote = transmit.remote
        assert isinstance(remote, tuple), f"not a remote of this transport: {remote!r}"
        if len(remote) > 3:
            # Only the peer can open it again, and then it has another name (IPC-TCP-5).
            return "it disconnected, and may have connected again under another name"
        route = self._routes.get(remote)
        if route is None:
            if not self._make_room():
                return f"all {self._limits.max_connections} connections are in use"
            route = self._routes[remote] = _Route(remote)
        size = len(transmit.head) + len(transmit.data)
        if self._loop.time() < route.not_before or route.waiting_size + size > FULL:
            return ""
        route.waiting.append(transmit)
        route.waiting_size += size
        if route.task is None:
            route.task = self._loop.create_task(self._open(route))
        return None

    async def _open(self, route: _Route) -> None:
        """Try once to connect; `handle_up` continues when the handshake is done."""
        name = self.name(route.remote)
        error: TLSError | None = None
        try:
            await self._connect(route)
        except TimeoutError:
            reason = f"{name} did not answer within {self._limits.handshake_timeout:g} s"
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
            reason = f"{name} closed the connection during the handshake"
        except (ssl.SSLError, TLSError) as problem:
            error = refusal(name, problem)
        except socket.gaierror as problem:
            reason = f"cannot find {name}: {problem.strerror}"
        except (OSError, ValueError) as problem:
            reason = f"cannot reach {name}: {_reason(problem)}"
        else:
            return
        route.task = None
        route.not_before = self._loop.time() + _PAUSE
        self._sweep_later()
        waiting = route.take_waiting()
        if error is not None:
            self._listener.handle_unreachable(route.remote, error)
        else:
            self._listener.handle_transient_error(route.remote, reason)
        self._listener.handle_sent([each.transfer for each in waiting if each.transfer])

    async def _connect(self, route: _Route) -> None:
        """Connect TCP and TLS within ``handshake_timeout``."""
        assert isinstance(route.remote, tuple)
        _, host, port = route.remote
        session = TlsSession(self._client, host, self._pinned)
        connection = TlsConnection(self, session, self._largest, route.remote)
        up = self._connecting[connection] = self._loop.create_future()
        try:
            async with asyncio.timeout(self._limits.handshake_timeout):
                await self._loop.create_connection(lambda: connection, host, port)
                await up
        except BaseException:
            connection.abort()
            raise
        finally:
            self._connecting.pop(connection, None)

    def _make_room(self) -> bool:
        """Make room for one more opened connection; close the one idle for longest if needed."""
        if len(self._routes) < self._limits.max_connections:
            return True
        idle = [
            route
            for route in self._routes.values()
            if route.task is None and not (route.connection and route.connection.is_busy)
        ]
        if not idle:
            return False
        oldest = min(idle, key=lambda route: route.connection.used_at if route.connection else 0.0)
        del self._routes[oldest.remote]
        if oldest.connection is not None:
            self._drop(
                oldest.connection,
                "a connection to another remote replaced it: too many connections",
            )
        return True

    # Connections that others open

    def _accept(self) -> TlsConnection:
        assert self._server_context is not None, "only a listening socket accepts"
        return TlsConnection(self, TlsSession(self._server_context), self._largest, None)

    def _replace_accepted(self, host: str) -> bool:
        """Replace the least useful accepted connection; return False if all are in use.

        The order: connections that never advanced a message, then those of the address with the
        most, then the one that was useful least recently (IPC-TCP-6).
        """
        counts = self._per_address
        least = min(
            self._accepted, key=lambda each: (each.proven, -counts[each.peer[0]], each.used_at)
        )
        if (
            least.proven
            and counts[least.peer[0]] <= counts.get(host, 0) + 1
            and (least.is_busy or least.used_at + self._limits.idle_grace > self._loop.time())
        ):
            return False
        self._end(least, "a new connection replaced it: too many connections")
        return True

    # Calls of connections

    def buffers(self) -> tuple[memoryview, memoryview]:
        """Return the buffers for ciphertext and plaintext."""
        return self._buffers

    def handle_connected(self, connection: TlsConnection) -> bool:
        """Process that TCP is connected; return False if there are too many connections."""
        if self._closing:
            return False
        if connection not in self._connecting:
            if len(self._accepted) >= self._limits.max_connections and not self._replace_accepted(
                connection.peer[0]
            ):
                return False
            host = connection.peer[0]
            self._per_address[host] = self._per_address.get(host, 0) + 1
            connection.remote = ("tls", *connection.peer, next(self._numbers))  # IPC-TCP-5
            self._accepted[connection] = self._loop.call_later(
                self._limits.handshake_timeout, connection.abort
            )
        self._alive[connection] = None
        return True

    def handle_up(self, connection: TlsConnection) -> None:
        """Process that the TLS handshake is done and the peer is verified."""
        self._up[connection.remote] = connection
        self._sweep_later()
        timer = self._accepted.get(connection)
        if timer is not None:
            timer.cancel()
            return
        route = self._routes[connection.remote]
        route.connection = connection
        route.task = None
        up = self._connecting[connection]
        if not up.done():
            up.set_result(None)
        self.send(
            [each for each in route.take_waiting() if each.transfer and not each.transfer.ended]
        )

    def handle_pdus(self, connection: TlsConnection, pdus: list[bytes]) -> BatchResult:
        """Handle PDUs; return whether they were useful."""
        if self._closing:
            return BatchResult.USELESS
        return self._listener.handle_pdus(pdus, connection.remote)

    def handle_kept(self, more: int) -> None:
        """Account for ``more`` bytes of incomplete PDUs; negative when they are released."""
        self._partial += more
        if more > 0 and self._partial > self._limits.max_partial:
            keeping = [each for each in self._alive if each.kept and not each.is_closing]
            if keeping:
                least = min(keeping, key=lambda each: (each.proven, each.used_at))
                self._end(least, "too many bytes of incomplete PDUs")  # IPC-TCP-10

    def handle_sent(self, transfers: list[OutgoingTransfer]) -> None:
        """Process that PDUs were sent, or could not be."""
        if not self._closing:
            self._listener.handle_sent(transfers)

    def handle_unsent(self, more: int) -> None:
        """Account for ``more`` unsent bytes; negative when the kernel took them."""
        self._unsent += more

    def _is_over_unsent_limit(self) -> bool:
        """Return whether too much is unsent; recount only above the limit."""
        if self._unsent <= _MAX_UNSENT:
            return False
        return sum(connection.count_unsent() for connection in self._alive) > _MAX_UNSENT

    def handle_lost(self, connection: TlsConnection, error: Exception | None) -> None:
        """Process the end of a connection."""
        self._alive.pop(connection, None)
        self._leave(connection)
        up = self._connecting.get(connection)
        if up is not None and not up.done():
            up.set_exception(error or ConnectionResetError())
        if self._up.get(connection.remote) is connection:
            reason = _reason(error) if error else "closed by the other side"
            self._forget(connection, f"the connection was lost: {reason}")

    def _drop(self, connection: TlsConnection, why: str) -> None:
        """Close a connection that is idle."""
        if self._up.get(connection.remote) is connection:
            self._forget(connection, why)
        connection.close()

    def _end(self, connection: TlsConnection, why: str) -> None:
        """Close a connection immediately, to free its resources for others."""
        self._leave(connection)
        if self._up.get(connection.remote) is connection:
            self._forget(connection, why)
        connection.abort()

    def _leave(self, connection: TlsConnection) -> None:
        """Remove an accepted connection from the counts."""
        timer = self._accepted.pop(connection, None)
        if timer is not None:
            timer.cancel()
            host = connection.peer[0]
            left = self._per_address[host] - 1
            if left:
                self._per_address[host] = left
            else:
                del self._per_address[host]

    def _forget(self, connection: TlsConnection, why: str) -> None:
        del self._up[connection.remote]
        route = self._routes.get(connection.remote)
        if route is not None and route.connection is connection:
            route.connection = None
            # A connection that never carried a PDU may be lost again at once: pause.
            route.not_before = 0.0 if connection.received_any else self._loop.time() + _PAUSE
        if not self._closing:
            self._listener.handle_transient_error(connection.remote, why)  # IPC-TCP-8

    # Idle connections

    def _sweep_later(self) -> None:
        if self._sweeper is None and not self._closing:
            self._sweeper = self._loop.call_later(self._limits.idle_timeout / 4, self._sweep)

    def _sweep(self) -> None:
        """Close idle connections, and abort those that did not close since the last sweep."""
        self._sweeper = None
        now = self._loop.time()
        for connection in list(self._alive):
            if connection.is_closing:
                connection.abort()
            elif connection.is_up and connection.used_at + self._limits.idle_timeout <= now:
                self._drop(connection, f"idle for {self._limits.idle_timeout:g} s")
        for route in list(self._routes.values()):
            if route.task is None and route.connection is None and route.not_before <= now:
                del self._routes[route.remote]
        if self._alive or self._routes:
            self._sweep_later()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error)


def refusal(name: str, error: Exception) -> TLSError:
    """Return the error for a peer that failed the handshake, with advice."""
    if isinstance(error, TLSError):
        return TLSError(f"{name} is not trusted: {error}")
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"the certificate of {name} is not trusted: {error.verify_message}"
        if error.verify_code in _NOT_ITS_NAME:
            return TLSError(f"{what} Use a name that it holds, or trust it by its fingerprint.")
        if error.verify_code in _NOT_ITS_TIME:
            return TLSError(f"{what}; the server needs a new one, or a clock is wrong")
        return TLSError(f"{what}; trust the authority that signed it, or its fingerprint")
    reason = str(getattr(error, "reason", None) or error)
    if any(version in reason for version in _VERSIONS):
        return TLSError(f"{name} does not speak TLS 1.3 ({reason}); both sides need it")
    return TLSError(f"no TLS with {name} ({reason}); is it an endpoint with a tls:// address?")
