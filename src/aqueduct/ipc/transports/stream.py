"""One TCP connection under TLS, as the event loop drives it: PDUs in, PDUs out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Hashable
from typing import Protocol, cast

from aqueduct.errors import ProtocolError, RemoteProtocolError, TLSError
from aqueduct.ipc.core.events import Heard, Transmit
from aqueduct.ipc.core.framing import Deframer, frame_head
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.transports.secure import SLICE, TlsSession

BUFFER = 256 * 1024
"""What is read at once, and kept of a plaintext; one for all connections of a transport."""
HIGH_WATER = 512 * 1024
"""Bytes not yet taken by the kernel, past which a PDU does not count as gone (IPC-TCP-9)."""
LOW_WATER = 128 * 1024
FULL = 8 * 1024 * 1024
"""Bytes not yet taken by the kernel, past which PDUs are lost: the peer reads too little."""

_UNSENT = 256 * 1024
"""What the kernel takes ahead of the network; more would only wait there, and be sent again."""
_DEAD_AFTER = 2.5
"""A host that confirms nothing for so many seconds is gone; else the kernel tries for minutes. Half
of the usual ack timeout, so that a message has time left for another connection."""


class ConnectionOwner(Protocol):
    """Who is told what happens to a connection."""

    def buffers(self) -> tuple[memoryview, memoryview]:
        """Room for ciphertext and for plaintext, used until the call that asked returns."""

    def handle_made(self, connection: TlsConnection) -> bool:
        """TCP is up; False to have none of it."""

    def handle_up(self, connection: TlsConnection) -> None:
        """TLS is up, and the peer is who it should be."""

    def handle_pdus(self, connection: TlsConnection, pdus: list[bytes]) -> Heard:
        """Handle PDUs; return whether they were useful."""

    def handle_kept(self, more: int) -> None:
        """Account for ``more`` bytes of incomplete PDUs; negative when they are released."""

    def handle_sent(self, transfers: list[OutgoingTransfer]) -> None:
        """PDUs have gone, or could not go."""

    def handle_unsent(self, more: int) -> None:
        """So many more bytes, or fewer, are not yet taken by the kernel."""

    def handle_lost(self, connection: TlsConnection, error: Exception | None) -> None:
        """It is over; None if the peer closed it."""


class TlsConnection(asyncio.BufferedProtocol):
    """A connection, accepted or opened; the handshake begins by itself."""

    def __init__(
        self, owner: ConnectionOwner, session: TlsSession, largest: int, remote: Hashable
    ) -> None:
        self.remote = remote
        self.peer = ("", 0)
        """Where it comes from or goes to."""
        self.used_at = 0.0
        """When it last advanced a message in either direction, or when it began."""
        self.proven = False
        """Whether it ever advanced a message."""
        self.kept = 0
        """Bytes of an incomplete PDU."""
        self.heard = False
        """Whether a PDU ever came over it."""
        self.unsent = 0
        """Bytes that the kernel had not yet taken when it was last looked at."""
        self.lost = asyncio.get_running_loop().create_future()
        """Done when nothing is left of it."""
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
        """Whether PDUs may go."""
        return self._session.established and self._transport is not None

    @property
    def is_full(self) -> bool:
        """Whether what it is given now is lost."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        return self._paused and transport.get_write_buffer_size() > FULL

    @property
    def is_closing(self) -> bool:
        """Whether it ends once everything has gone."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        """Whether something waits to go out."""
        return self._paused

    # Sending

    def add(self, transmit: Transmit) -> bool:
        """Take a PDU for the next `flush`; whether it is the first."""
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
        """Write what was added, in one go; returns those whose PDUs have gone."""
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
        """How many bytes the kernel has not yet taken; the difference is told to the owner."""
        transport = self._transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent != self.unsent:
            self._owner.handle_unsent(unsent - self.unsent)
            self.unsent = unsent
        return unsent

    def close(self) -> None:
        """End it after what was written."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if self._session.established:
                self._session.close()
                transport.write(self._session.poll_ciphertext())
            transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TCP is up: begin the handshake."""
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        name = stream.get_extra_info("peername")
        if name:  # it may have gone before it was looked at
            self.peer = name[:2]
        self.used_at = self._loop.time()
        if not self._owner.handle_made(self):
            stream.abort()
            return
        _tune(stream.get_extra_info("socket"))
        stream.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._shake_hands(stream)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to."""
        return self._owner.buffers()[0]

    def buffer_updated(self, nbytes: int) -> None:
        """Ciphertext came."""
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
        """The peer reads less than is sent."""
        self._paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._paused = False
        self._use()
        self._report()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
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
        """Decrypt what is there; whether the peer has closed."""
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
            self.heard = True
            heard = self._owner.handle_pdus(self, pdus)
            if heard is Heard.USEFUL:
                self._use()
            elif heard is Heard.MALFORMED:
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
        """Close it for a peer that has closed or broken a rule, and need not be waited for."""
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            self.close()


def _tune(sock: socket.socket) -> None:
    """Send small things at once, let little wait where it cannot be counted, notice the dead."""
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
