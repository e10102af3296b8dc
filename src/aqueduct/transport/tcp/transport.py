"""One TCP connection on the event loop: reads input, flushes once per turn, keeps one timer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import deque
from time import monotonic
from typing import Protocol

from aqueduct.errors import CloseCode, TLSError
from aqueduct.observe.base import Observer
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.security import CERTIFICATE_NEEDED
from aqueduct.transport.address import Address, unreachable
from aqueduct.transport.base import TransportOwner
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.tcp.engine import WINDOW, QmuxEngine
from aqueduct.transport.tls import SLICE, TlsSession
from aqueduct.wire.chanid import Side

ALPN = "aqueduct-qx01"
"""Aqueduct over QMux, draft 01 (AQ-TCP-2)."""

NOT_TRUSTED = 0x100 + 42
"""The code of a failure of trust: that of QUIC for the TLS alert bad_certificate."""
FOREIGN = 0x100 + 120
"""The code of a peer that speaks another protocol: that of QUIC for no_application_protocol."""

HELLO_SIZE = 43
"""Bytes of the ClientHello up to the end of its random number."""
_RANDOM_AT, _RANDOM_SIZE = 11, 8

_PENDING = (errno.EINPROGRESS, errno.EWOULDBLOCK)
_TIMER_GRAIN = 0.001
_NEVER = float("inf")
_CLOSING = 3.0
"""Seconds for the socket to take a close and the data that is queued before it."""
_LINGER = 1.0
"""Seconds after a close in which the peer may close, too. What it sends until then is read and
discarded: closing a socket with unread data resets the connection, and the peer would lose what it
has not read yet."""
_UNSENT = 128 * 1024
"""TCP_NOTSENT_LOWAT: unsent bytes that the kernel buffers, where nothing can overtake them."""
_FOREIGN_REASONS = (
    "ALERT_HANDSHAKE_FAILURE",
    "ALERT_NO_APPLICATION_PROTOCOL",
    "ALERT_PROTOCOL_VERSION",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "UNSUPPORTED_PROTOCOL",
    "WRONG_VERSION_NUMBER",
)
_TRUST_REASONS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_MISSING = "CERTIFICATE_REQUIRED"

_lingering: set[asyncio.Task[None]] = set()
_ciphertext = memoryview(bytearray(2 * SLICE))
_plaintext = memoryview(bytearray(3 * SLICE))
"""Buffers that all connections share: each read is processed before the next one."""
# glibc returns free memory beyond 128 KiB to the kernel, so that buffers cost page faults again and
# again. Once a block of this size was freed, it keeps 2 MiB (mallopt(3), M_MMAP_THRESHOLD).
bytes(1 << 20)


class TcpEndpoint(Protocol):
    """The listener or connector of a connection, which the connection calls back."""

    loop: asyncio.AbstractEventLoop
    options: QuicSettings
    flushes_due: int
    """Connections that wait for their flush."""

    def handle_established(self, transport: TcpTransport) -> None:
        """Handle the end of the TLS handshake."""

    def handle_ready(self, transport: TcpTransport) -> None:
        """Handle the acceptance of the connection."""

    def forget(self, transport: TcpTransport) -> None:
        """Remove a connection that has ended."""


class TcpTransport:
    """A `Transport` over TCP with TLS."""

    may_send_early = early_data_accepted = False

    def __init__(
        self,
        endpoint: TcpEndpoint,
        sock: socket.socket,
        session: TlsSession,
        core: ConnectionCore,
        peer: Address,
        hello: bytes,
    ) -> None:
        """``hello`` is what the client sends first, at least `HELLO_SIZE` bytes of it."""
        self.endpoint = endpoint
        self.loop = endpoint.loop
        self.core = core
        self.peer = peer
        self.trace_id = hello[_RANDOM_AT : _RANDOM_AT + _RANDOM_SIZE]
        """The first bytes of the random number in the ClientHello."""
        self.owner: TransportOwner | None = None
        options = endpoint.options
        self.engine = QmuxEngine(core, peer, options.idle_timeout, options.keep_alive)
        self.engine.before_end = self._handle_ending
        self.engine.when_ready = lambda: endpoint.handle_ready(self)
        self._socket = sock
        self._session = session
        self._hello = hello
        self._unsent: deque[memoryview] = deque()
        self._unsent_size = 0
        self._is_reading = self._is_writing = False
        self._has_input_ended = self._has_peer_closed = False
        self._is_behind = False
        """Whether input waits for the next turn, so that nothing is read."""
        self._has_alerted = False
        """Whether this side has ended the connection with a TLS alert."""
        self._is_released = False
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._close_by = _NEVER
        """When this side stops waiting for the socket to take its close."""
        self._bytes_sent = self._bytes_received = self._writes = self._reads = 0

    # -- the Protocol -----------------------------------------------------------------------------

    @property
    def client_certificate(self) -> bytes | None:
        """The verified certificate of the client in DER, at a server that asks for one."""
        return self._session.peer_certificate if self.core.side is Side.SERVER else None

    @property
    def is_established(self) -> bool:
        """Whether the TLS handshake is complete."""
        return self.engine.is_started

    @property
    def is_closed(self) -> bool:
        """Whether the kernel has taken all data and the close, or the connection is lost."""
        return self.engine.has_ended or (self.engine.has_closed and not self._unsent)

    def attach(self, owner: TransportOwner) -> None:
        """Set the owner."""
        self.owner = owner

    def detach(self) -> None:
        """Drop the owner."""
        self.owner = None

    def observe(self, observer: Observer) -> None:
        """Report all bytes of streams and datagrams to an observer."""
        self.engine.observer = observer

    def start(self) -> None:
        """Connect to the server."""
        error = self._socket.connect_ex(self.peer)
        if error in _PENDING:
            self._is_writing = True
            self.loop.add_writer(self._socket, self._connected)
        else:
            self.loop.call_soon(self._connect_ended, error)

    def now(self) -> float:
        """Return the monotonic time; some event loops keep only milliseconds."""
        return monotonic()

    def schedule_flush(self) -> int:
        """Deliver events, send and set the timer at the end of this turn of the loop."""
        if not self._flush_due and not self._is_released:
            self._flush_due = True
            self.endpoint.flushes_due += 1
            self.loop.call_soon(self._turn)
        return self.endpoint.flushes_due - self._flush_due

    def flush(self) -> None:
        """Send what the core has to send now."""
        if not self._is_released:
            self._flush(monotonic())

    def is_drained(self) -> bool:
        """Return whether the peer has received everything; if unknown, schedule a ping."""
        if self.engine.is_drained():
            return True
        if self.engine.wants_flush:
            self.schedule_flush()
        return False

    def is_trust_failure(self, code: int) -> bool:
        """Return whether TLS failed because one side does not trust the other."""
        return code == NOT_TRUSTED

    def is_foreign(self, code: int) -> bool:
        """Return whether the server speaks another protocol."""
        return code == FOREIGN

    def abandon(self, reason: str) -> None:
        """End the core without notifying the peer."""
        self.engine.has_ended = True
        self.core.handle_connection_lost(CloseCode.NO_ERROR, reason, False, monotonic())

    def close(self) -> None:
        """Close the socket, in the background if the peer has not closed its side yet."""
        if self._is_released:
            return
        self._is_released = True
        had_closed = (self.engine.has_closed or self._has_alerted) and not self._unsent
        self.engine.release()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_reading()
        self._stop_writing()
        self._unsent.clear()
        self.endpoint.forget(self)
        self._deliver_events()
        if had_closed and not self._has_input_ended and not self.loop.is_closed():
            self._linger()
        else:
            self._socket.close()

    def statistics(self) -> dict[str, float]:
        """Return counters; a write and a read of the socket count as packets."""
        statistics = self.engine.statistics()
        statistics["send_buffer"] += self._unsent_size
        return {
            "bytes_sent": self._bytes_sent,
            "bytes_received": self._bytes_received,
            "packets_sent": self._writes,
            "packets_received": self._reads,
            **statistics,
        }

    # -- the start --------------------------------------------------------------------------------

    def _connected(self) -> None:
        """Handle the end of the TCP handshake."""
        self._stop_writing()
        self._connect_ended(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _connect_ended(self, error: int) -> None:
        if self._is_released:
            return
        if error:
            if self.owner is not None:
                self.owner.handle_failure(unreachable(self.peer, error))
            return
        self.begin()

    def begin(self) -> None:
        """Begin the TLS handshake on a connected socket."""
        sock = self._socket
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self._start_reading()
        hello, self._hello = self._hello, b""
        if self.core.side is Side.CLIENT:
            self._send(hello)
        else:
            self._decrypt(hello, monotonic())

    def _shake_hands(self, now: float) -> bool:
        """Continue the TLS handshake (AQ-TCP-1); return whether it is complete."""
        try:
            if not self._session.shake_hands():
                return False
            if self._session.protocol == ALPN:
                self.engine.start(now)
                self.endpoint.handle_established(self)
                return True
            self.engine.lose(FOREIGN, "no common application protocol", now)
        except TLSError as error:
            self.engine.lose(NOT_TRUSTED, str(error), now)
        except ssl.SSLError as error:
            self._fail_tls(error, now)
        return False

    def _fail_tls(self, error: ssl.SSLError, now: float) -> None:
        reason = str(error.reason or error)
        if isinstance(error, ssl.SSLCertVerificationError):
            self._has_alerted = True
            self.engine.lose(NOT_TRUSTED, str(error.verify_message), now)
        elif reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            self._has_alerted = True
            self.engine.lose(NOT_TRUSTED, "the client has no certificate", now)
        elif any(each in reason for each in _FOREIGN_REASONS):
            self.engine.lose(FOREIGN, reason, now)
        elif any(each in reason for each in _TRUST_REASONS):
            if self.is_established:  # TLS 1.3: the client finishes before the server verifies
                wrong = f"the client's certificate is not accepted ({reason})"
                said = CERTIFICATE_NEEDED if _MISSING in reason else wrong
                self.engine.lose(CloseCode.UNAUTHENTICATED, said, now)
                return
            self.engine.lose(NOT_TRUSTED, f"the peer sent the TLS alert {reason}", now)
        else:
            self.engine.lose(CloseCode.TRANSPORT, f"TLS failed: {reason}", now)

    # -- reading ----------------------------------------------------------------------------------

    def _readable(self) -> None:
        now = monotonic()
        try:
            # During the handshake, `_decrypt` passes only the first `SLICE` bytes to TLS.
            most = 0 if self.engine.is_started else SLICE
            size = self._socket.recv_into(_ciphertext, most)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._input_ended(error.strerror or "", now)
            return
        if not size:
            self._input_ended("", now)
            return
        self._decrypt(_ciphertext[:size], now)

    def _decrypt(self, data: bytes | memoryview, now: float) -> None:
        session, engine = self._session, self.engine
        self._reads += 1
        self._bytes_received += len(data)
        session.handle_ciphertext(data[:SLICE])
        has_ended = False
        if not engine.is_started and not self._shake_hands(now):
            if self._bytes_received > self.core.config.max_handshake:
                reason = "AQ-COST-3: the handshake is too long"
                engine.lose(CloseCode.LIMIT_EXCEEDED, reason, now)
        elif not engine.has_ended:
            try:
                size, has_ended = session.read_into(_plaintext)
                for start in range(SLICE, len(data), SLICE):
                    session.handle_ciphertext(data[start : start + SLICE])
                    more, has_ended = session.read_into(_plaintext[size:])
                    size += more
            except ssl.SSLError as error:
                self._fail_tls(error, now)
            else:
                engine.receive(_plaintext[:size], now)
        if not session.established:
            self._send(session.poll_ciphertext())  # the peer waits for it, or it is an alert
        self._has_peer_closed = has_ended
        if engine.is_behind:
            self._is_behind = True
            self._stop_reading()
        elif has_ended:
            self._input_ended("", now)
            return
        # Tasks that this wakes run before the flush, so that their answers leave with it.
        self._deliver_events()
        self.schedule_flush()

    def _resume(self, now: float) -> None:
        """Process what the last turn has left, before anything else is read."""
        self.engine.resume(now)
        if self.engine.is_behind:
            return
        self._is_behind = False
        if self._has_peer_closed:
            self._input_ended("", now)
        else:
            self._start_reading()

    def _input_ended(self, cause: str, now: float) -> None:
        self._has_input_ended = True
        self._stop_reading()
        self.engine.handle_end_of_input(cause, now)
        self._deliver_events()
        self.schedule_flush()

    # -- writing ----------------------------------------------------------------------------------

    def _flush(self, now: float) -> None:
        records = self.engine.flush(now, self._unsent_size)
        for record in records:
            # `encrypt` also returns pending bytes of the handshake, before the record.
            for piece in self._session.encrypt(record):
                self._send(piece)
        if not records:
            self._send(self._session.poll_ciphertext())
        if self.engine.has_closed and self._close_by == _NEVER:
            self._close_by = now + _CLOSING

    def _send(self, data: bytes) -> None:
        """Send bytes, behind those that wait for the socket."""
        if not data or self._is_released:
            return
        self._bytes_sent += len(data)
        view = memoryview(data)
        if not self._unsent:
            view = view[self._write(view) :]
        if view:
            self._unsent.append(view)
            self._unsent_size += len(view)
            if not self._is_writing:
                self._is_writing = True
                self.loop.add_writer(self._socket, self._writable)

    def _write(self, data: memoryview) -> int:
        """Write to the socket; return how much it took, or everything if it is broken."""
        self._writes += 1
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return len(data)  # the next read reports the cause

    def _writable(self) -> None:
        unsent = self._unsent
        while unsent:
            size = self._write(unsent[0])
            self._unsent_size -= size
            if size < len(unsent[0]):
                unsent[0] = unsent[0][size:]
                break
            unsent.popleft()
        if not unsent:
            self._stop_writing()
        if self._unsent_size < WINDOW // 2:
            self.schedule_flush()

    # -- turns ------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._flush_due = False
        self.endpoint.flushes_due -= 1
        if self._is_released:
            return
        now = monotonic()
        engine = self.engine
        if self._is_behind:
            self._resume(now)
        self._deliver_events()
        self._flush(now)
        if engine.has_more or engine.is_behind:
            self.schedule_flush()
        if self.owner is not None:
            self.owner.handle_flushed(self.endpoint.flushes_due)
        if self.is_closed:
            self.close()
        else:
            self._rearm(now)

    def _deliver_events(self) -> None:
        events = self.core.poll_events()
        if events and self.owner is not None:
            self.owner.handle_events(events)

    def _handle_ending(self) -> None:
        if self.owner is not None:
            self.owner.handle_ending()

    def _rearm(self, now: float) -> None:
        at = self.engine.next_timer()
        at = min(self._close_by, _NEVER if at is None else at)
        if at >= self._timer_at:
            return  # one early expiry is cheaper than a new timer for each turn
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(_TIMER_GRAIN, at - now), self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        now = monotonic()
        if now >= self._close_by:
            self.engine.lose(CloseCode.TRANSPORT, "the close could not be sent", now)
        due = self.engine.next_timer()
        if due is not None and due > now and not self.engine.has_ended:
            self._rearm(now)  # the timer was postponed
            return
        self.engine.handle_timer(now)
        self._deliver_events()  # at once: tasks that run before the turn see a lost connection
        self.schedule_flush()

    # -- the end ----------------------------------------------------------------------------------

    def _linger(self) -> None:
        """Send close_notify and FIN, and close the socket when the peer has closed."""
        self._session.close()
        with contextlib.suppress(OSError):
            self._socket.send(self._session.poll_ciphertext())
            self._socket.shutdown(socket.SHUT_WR)
        task = self.loop.create_task(_read_to_end(self.loop, self._socket))
        _lingering.add(task)
        task.add_done_callback(_lingering.discard)

    def _start_reading(self) -> None:
        self._is_reading = True
        self.loop.add_reader(self._socket, self._readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.loop.remove_reader(self._socket)

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self.loop.remove_writer(self._socket)


async def _read_to_end(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Discard input until the peer closes, for `_LINGER` seconds at most; close the socket."""
    try:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_LINGER):
                while await loop.sock_recv(sock, SLICE):
                    pass
    finally:
        sock.close()
