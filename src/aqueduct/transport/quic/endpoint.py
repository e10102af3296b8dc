"""One UDP socket for many QUIC connections: routing by connection id, and fair turns of reading."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from aqueduct.transport.address import Address
from aqueduct.transport.admission import neighbourhood
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.transport import QuicTransport
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.udp import UdpSocket

Received = tuple[bytes, int, Address]
"""Packets of one sender, joined, the size of each but the last, and its address."""

ID_LENGTH = 8
_RECEIVES_PER_TURN = 64
_TURN = 0.005
"""Seconds of reading after which packets are queued, so that a flood delays no other connection."""
_MAX_INBOX = 16 * 1024 * 1024
"""Bytes of packets that wait for one connection: more than its flow control lets it send."""
_MAX_WAITING = 64 * 1024 * 1024
"""The same for all connections of a socket. Packets above either limit are dropped."""
_MAX_NEWCOMERS = 256 * 1024
"""The same for all unknown connections of one address: 180 handshakes, which take 0.2 s."""
_COST_OF_WAITING = 256
"""Bytes of memory for each queue entry besides its packets."""
_HEADER_BITS, _SHORT_HEADER = 0xC0, 0x40


class PacketQueue:
    """Packets that wait for their connection's turn."""

    __slots__ = ("runs", "size")

    def __init__(self) -> None:
        self.runs: deque[tuple[Received, int]] = deque()
        self.size = 0

    def add(self, received: Received, size: int) -> None:
        """Append packets."""
        self.runs.append((received, size))
        self.size += size

    def take(self) -> tuple[Received, int]:
        """Remove and return the first packets and their size."""
        received, size = self.runs.popleft()
        self.size -= size
        return received, size


@dataclass(frozen=True)
class Newcomers:
    """Reads packets of unknown connections; those of one address wait in one queue."""

    endpoint: QuicEndpoint = field(compare=False)
    address: str

    def receive(self, data: bytes, segment: int, address: Address) -> None:
        """Read a packet that has waited: its connection may be known by now."""
        self.endpoint.admit(data, segment, address)


class QuicEndpoint:
    """A UDP socket on the event loop, and the connections that share it."""

    def __init__(self, sock: socket.socket, options: QuicSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.options = options
        self.flushes_due = 0
        """Connections that wait for their flush."""
        self.udp = UdpSocket(sock)
        self.clock: Callable[[], float] = monotonic
        """The clock that bounds a turn; the loop's own may stand still meanwhile."""
        self.transports: dict[QuicTransport, None] = {}
        self._by_id: dict[bytes, QuicTransport] = {}
        self._inboxes: OrderedDict[QuicTransport | Newcomers, PacketQueue] = OrderedDict()
        """Queued packets; the connection whose turn is next comes first."""
        self._waiting = 0
        self._is_late = False
        self._turns_due = False
        self._writing = False
        self._error_due = False
        self._closed = False
        self.loop.add_reader(sock, self._readable)

    @property
    def local_address(self) -> Address:
        """The address that the socket is bound to."""
        name = self.udp.socket.getsockname()
        return name[0], name[1]

    def add(self, bridge: Bridge, peer: Address, *ids: bytes) -> QuicTransport:
        """Add a connection, and route packets with these ids to it."""
        transport = QuicTransport(self, bridge, peer)
        self.transports[transport] = None
        for one in ids:
            self._by_id[one] = transport
            transport.ids.add(one)
        return transport

    def reroute(self, transport: QuicTransport) -> None:
        """Route new connection ids to a connection, and retired ones no longer."""
        bridge = transport.bridge
        for one in bridge.new_ids:
            self._by_id[one] = transport
            transport.ids.add(one)
        for one in bridge.retired_ids:
            self._by_id.pop(one, None)
            transport.ids.discard(one)
        bridge.new_ids, bridge.retired_ids = [], []

    def forget(self, transport: QuicTransport) -> None:
        """Remove a connection that has ended."""
        transport.stop()
        transport.deliver_events()
        for one in transport.ids:
            self._by_id.pop(one, None)
        self.transports.pop(transport, None)
        inbox = self._inboxes.pop(transport, None)
        if inbox is not None:
            self._waiting -= inbox.size

    def send(self, packets: list[tuple[bytes, Address]]) -> None:
        """Send packets, or queue them until the socket is writable."""
        if self._closed:
            return
        if not self.udp.send(packets) and not self._writing:
            self._writing = True
            self.loop.add_writer(self.udp.socket, self._writable)
        if self.udp.error is not None:
            self._handle_error_soon()

    def close(self) -> None:
        """Close the socket and abandon the connections that are still open."""
        if self._closed:
            return
        self._closed = True
        self.loop.remove_reader(self.udp.socket)
        if self._writing:
            self.loop.remove_writer(self.udp.socket)
        for transport in list(self.transports):
            transport.abandon("the socket was closed")
            self.forget(transport)
        self.udp.close()

    def handle_unknown(self, data: bytes, address: Address) -> QuicTransport | None:
        """Handle a packet of no connection; a server may return a new connection."""
        return None

    def handle_closed(self, transport: QuicTransport) -> None:
        """Handle the end of a connection whose owner has closed it."""

    def handle_network_error(self, error: OSError) -> None:
        """Handle an ICMP error about a packet that was sent."""

    def _handle_error_soon(self) -> None:
        if not self._error_due:
            self._error_due = True
            self.loop.call_soon(self._handle_error)

    def _handle_error(self) -> None:
        """Handle an error of the socket, and register its reader again.

        uvloop removes the reader of a socket that has an error, and does not report it. Where the
        error is read it is too early to add the reader again: uvloop may process the error later
        in this turn.
        """
        self._error_due = False
        error, self.udp.error = self.udp.error, None
        if self._closed or error is None:
            return
        sock = self.udp.socket
        self.loop.remove_reader(sock)
        self.loop.add_reader(sock, self._readable)
        if self._writing:
            self.loop.remove_writer(sock)
            self.loop.add_writer(sock, self._writable)
        self.handle_network_error(error)

    def _writable(self) -> None:
        if self.udp.send_waiting():
            self._writing = False
            self.loop.remove_writer(self.udp.socket)

    def _readable(self) -> None:
        receive, clock = self.udp.receive, self.clock
        until = clock() + _TURN
        self._is_late = False
        is_alone = self.udp.gro and len(self.transports) == 1
        for _ in range(_RECEIVES_PER_TURN):
            received = receive()
            if received is None:
                if self.udp.error is not None:
                    self._handle_error_soon()
                break
            data, segment, address = received
            if len(data) <= segment:
                self._route(data, segment, address)
            else:
                self._route_many(data, segment, address)
            if self._closed or (is_alone and len(data) <= segment):
                break  # for a lone packet of a lone connection, another system call costs more
            if clock() > until:
                # Queue the rest, so that other connections do not wait behind a flood.
                self._is_late = True

    def _route(self, data: bytes, segment: int, address: Address) -> None:
        reader: QuicTransport | Newcomers | None = self._by_id.get(destination_id(data))
        most = _MAX_INBOX
        if reader is None:
            if not self._inboxes and not self._is_late:
                self.admit(data, segment, address)
                return
            # A handshake costs a millisecond: those of one address delay no other address.
            reader = Newcomers(self, neighbourhood(address[0]))
            most = _MAX_NEWCOMERS
        if self._is_late or reader in self._inboxes:
            self._postpone(reader, (data, segment, address), most)
        else:
            reader.receive(data, segment, address)

    def admit(self, data: bytes, segment: int, address: Address) -> None:
        """Read a packet of a client that may be new."""
        transport = self._by_id.get(destination_id(data))
        if transport is None:
            transport = self.handle_unknown(data[:segment], address)
        if transport is not None:
            transport.receive(data, segment, address)

    def _postpone(self, reader: QuicTransport | Newcomers, received: Received, most: int) -> None:
        """Queue packets until the connections before theirs had a turn."""
        size = len(received[0]) + _COST_OF_WAITING
        inbox = self._inboxes.get(reader)
        if inbox is None:
            if not self._turns_due:
                self._turns_due = True
                self.loop.call_soon(self._take_turns)
            inbox = self._inboxes[reader] = PacketQueue()
        if inbox.size + size <= most and self._waiting + size <= _MAX_WAITING:
            inbox.add(received, size)
            self._waiting += size

    def _take_turns(self) -> None:
        """Read queued packets: those of one system call for each connection in turn."""
        inboxes, clock = self._inboxes, self.clock
        until = clock() + _TURN
        while inboxes and not self._closed:
            reader, inbox = inboxes.popitem(last=False)
            if inbox.runs:
                received, size = inbox.take()
                self._waiting -= size
                reader.receive(*received)
            if inbox.runs:
                inboxes[reader] = inbox  # behind the others
            if clock() > until:
                break
        self._turns_due = bool(inboxes) and not self._closed
        if self._turns_due:
            self.loop.call_soon(self._take_turns)

    def _route_many(self, data: bytes, segment: int, address: Address) -> None:
        """Route joined packets of one sender, which are most often of one connection."""
        first = destination_id(data)
        for start in range(segment, len(data), segment):
            if destination_id(data, start) != first:
                for at in range(0, len(data), segment):
                    self._route(data[at : at + segment], segment, address)
                return
        self._route(data, segment, address)


def has_short_header(data: bytes) -> bool:
    """Return whether a packet has the header of an established connection."""
    return len(data) > ID_LENGTH and data[0] & _HEADER_BITS == _SHORT_HEADER


def destination_id(data: bytes, start: int = 0) -> bytes:
    """Return the destination connection id of a packet, or the bytes in its place."""
    if len(data) <= start:
        return b""
    if data[start] & 0x80:
        length = data[start + 5] if len(data) > start + 5 else 0
        return data[start + 6 : start + 6 + length]
    return data[start + 1 : start + 1 + ID_LENGTH]
