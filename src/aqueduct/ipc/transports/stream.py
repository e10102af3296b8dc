"""One TCP connection with TLS on asyncio: PDUs in, PDUs out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Hashable
from typing import Protocol, cast

from aqueduct.errors import ProtocolError, RemoteProtocolError, TLSError
from aqueduct.ipc.core.events import BatchResult, Transmit
from aqueduct.ipc.core.framing import Deframer, frame_head
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.transport.tls import SLICE, TlsSession

BUFFER = 256 * 1024
"""Bytes read at once, and decrypted at once; one buffer each for all connections."""
HIGH_WATER = 512 * 1024
"""Unsent bytes above which a PDU does not count as sent (IPC-TCP-9)."""
LOW_WATER = 128 * 1024
FULL = 8 * 1024 * 1024
"""Unsent bytes above which PDUs are dropped: the peer reads too slowly."""

_UNSENT = 256 * 1024
"""Bytes that the kernel buffers ahead of the network; more would only wait and be retried."""
_DEAD_AFTER = 2.5
"""Seconds without a TCP ack after which the kernel drops the connection, not minutes. Half of the
default ack timeout, so that a message has time left for another connection."""


class ConnectionOwner(Protocol):
    """What a connection calls: the transport."""

    def buffers(self) -> tuple[memoryview, memoryview]:
        """Return the buffers for ciphertext and plaintext, valid until the caller returns."""

    def handle_connected(self, connection: TlsConnection) -> bool:
        """Process that TCP is connected; return False to reject the connection."""

    def handle_up(self, connection: TlsConnection) -> None:
        """Process that the TLS handshake is done and the peer is verified."""

    def handle_pdus(self, connection: TlsConnection, pdus: list[bytes]) -> BatchResult:
        """Handle PDUs; return whether they were useful."""

    def handle_kept(self, more: int) -> None:
        """Account for ``more`` bytes of incomplete PDUs; negative when they are released."""

    def handle_sent(self, transfers: list[OutgoingTransfer]) -> None:
        """Process that PDUs were sent, or could not be."""

    def handle_unsent(self, more: int) -> None:
        """Account for ``more`` unsent bytes; negative when the kernel took them."""

    def handle_lost(self, connection: TlsConnection, error: Exception | None) -> None:
        """Process the end of a connection; ``error`` is None if the peer closed it."""


class TlsConnection(asyncio.BufferedProtocol):
    """A connection, accepted or opened; it starts the handshake itself."""

    def __init__(
        self, owner: ConnectionOwner, session: TlsSession, largest: int, remote: Hashable
    ) -> None:
        self.remote = remote
        self.peer = ("", 0)
        """The IP address and port of the peer."""
        self.used_at = 0.0
        """When it last advanced a message in either direction, or was opened."""
        self.proven = False
        """Whether it ever advanced a message."""
        self.kept = 0
        """Bytes of an incomplete PDU."""
        self.received_any = False
        """Whether a PDU ever arrived on it."""
        self.unsent = 0
        """Unsent bytes at the last count."""
        self.lost = asyncio.get_running_loop().create_future()
        """Done when the connection is closed."""
        self._owner = owner
        self._session = session
        self._frames = Deframer(largest)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes | memoryview] = []
        self._transfers: list[OutgoingTransfer] = []
        self._paused = False
        self._error: Exception | None = None

    @property
    def is_up(self) -> bool:
        """Whether PDUs can be sent."""
        return self._session.established and self._transport is not None

    @property
    def is_full(self) -> bool:
        """Whether PDUs are dropped now."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        return self._paused and transport.get_write_buffer_size() > FULL

    @property
    def is_closing(self) -> bool:
        """Whether it closes once everything is sent."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        """Whether writing is paused by back pressure."""
        return self._paused

    # Sending

    def add(self, transmit: Transmit) -> bool:
        """Add a PDU to the next `flush`; return whether it is the first."""
        _, head, data, transfer = transmit
        parts = self._parts
        first = not parts
        parts.append(frame_head(len(head) + len(data)) + head)
        if data:
            parts.append(data)
        if transfer is not None:
            self._transfers.append(transfer)
        return first

    def flush(self) -> list[OutgoingTransfer]:
        """Write what was added at once; return the transfers whose PDUs were sent."""
        data = b"".join(self._parts)
        self._parts.clear()
        transport = self._transport
        if transport is not None:
            try:
                pieces = self._session.encrypt(data)
            except ssl.SSLError as error:
                self._error = error
                transport.abort()
            else:
                for piece in pieces:
                    transport.write(piece)
            self.count_unsent()
        if self._paused:
            return []
        transfers = self._transfers
        if transfers:
            self._transfers = []
            self._use()
        return transfers

    def count_unsent(self) -> int:
        """Return the unsent bytes, and report the difference to the owner."""
        transport = self._transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent != self.unsent:
            self._owner.handle_unsent(unsent - self.unsent)
            self.unsent = unsent
        return unsent

    def close(self) -> None:
        """Close the connection after what was written."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if self._session.established:
                self._session.close()
                transport.write(self._session.poll_ciphertext())
            transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # Calls of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        name = stream.get_extra_info("peername")
        if name:  # the peer may have closed it already
            self.peer = name[:2]
        self.used_at = self._loop.time()
        if not self._owner.handle_connected(self):
            stream.abort()
            return
        _tune(stream.get_extra_info("socket"))
        stream.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._shake_hands(stream)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return self._owner.buffers()[0]

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt and process ciphertext."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        ciphertext, room = self._owner.buffers()
        closed = False
        try:
            for start in range(0, nbytes, SLICE):
                self._session.handle_ciphertext(ciphertext[start : min(start + SLICE, nbytes)])
                if self._session.established or self._shake_hands(transport):
                    closed = self._read(room)
                if closed or transport.is_closing():
                    break
        except (ssl.SSLError, ProtocolError) as error:
            self._error = error
            closed = True
        if not self._deliver() or closed:
            self._end(transport)

    def pause_writing(self) -> None:
        """Record back pressure: the peer reads too slowly."""
        self._paused = True

    def resume_writing(self) -> None:
        """Record the end of back pressure."""
        self._paused = False
        self._use()
        self._report()

    def connection_lost(self, exc: Exception | None) -> None:
        """Process the end of the connection."""
        self._transport = None
        self._paused = False
        self._parts.clear()
        self.count_unsent()
        self._keep(0)
        if not self.lost.done():
            self.lost.set_result(None)
        self._owner.handle_lost(self, self._error or exc)
        self._report()

    def _report(self) -> None:
        if self._transfers:
            transfers = self._transfers
            self._transfers = []
            self._owner.handle_sent(transfers)

    def _shake_hands(self, transport: asyncio.Transport) -> bool:
        try:
            done = self._session.shake_hands()
        except (ssl.SSLError, TLSError) as error:
            self._error = error
            transport.write(self._session.poll_ciphertext())  # the alert that tells the peer why
            transport.close()
            return False
        ciphertext = self._session.poll_ciphertext()
        if ciphertext:
            transport.write(ciphertext)
        if done:
            self._owner.handle_up(self)
        return done

    def _read(self, room: memoryview) -> bool:
        """Decrypt what arrived; return whether the peer has closed."""
        got = len(room)
        closed = False
        while got == len(room) and not closed:
            got, closed = self._session.read_into(room)
            self._frames.handle_data(room[:got])
        return closed

    def _deliver(self) -> bool:
        """Deliver complete PDUs; return False if one of them was malformed (IPC-TCP-2)."""
        if self._frames.held != self.kept:
            self._keep(self._frames.held)
        pdus = self._frames.poll_pdus()
        if pdus:
            self.received_any = True
            result = self._owner.handle_pdus(self, pdus)
            if result is BatchResult.USEFUL:
                self._use()
            elif result is BatchResult.MALFORMED:
                self._error = RemoteProtocolError("IPC-TCP-2", "a malformed PDU")
                return False
        return True

    def _use(self) -> None:
        """Record that the connection advanced a message."""
        self.proven = True
        self.used_at = self._loop.time()

    def _keep(self, size: int) -> None:
        more = size - self.kept
        self.kept = size
        if more:
            self._owner.handle_kept(more)

    def _end(self, transport: asyncio.Transport) -> None:
        """Close the connection without waiting for a peer that closed it or broke a rule."""
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            self.close()


def _tune(sock: socket.socket) -> None:
    """Disable Nagle, bound the kernel's send buffer, and detect dead peers early."""
    options = (
        ("TCP_NODELAY", 1),
        ("TCP_NOTSENT_LOWAT", _UNSENT),
        ("TCP_USER_TIMEOUT", int(_DEAD_AFTER * 1_000)),
    )
    for name, value in options:
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
