"""Between the protocol core and qh3: actions become stream writes, events become inputs.

No sockets and no clock: packets and the time come in as arguments, so that real QUIC runs in
virtual time too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from qh3.quic.connection import QuicConnectionError
from qh3.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    DatagramFrameReceived,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from aqueduct.errors import CloseCode
from aqueduct.protocol.actions import CloseConnection, ResetStream, SendDatagram, WriteStream
from aqueduct.protocol.connection import Connection
from aqueduct.quic.engine import Engine
from aqueduct.quic.udp import Address, Packet
from aqueduct.wire.ranges import RangeSet

IDLE_REASON = "Idle timeout"
"""How qh3 says that it is the one who gave up."""

_UNIDIRECTIONAL = 2

MAX_REASON = 512
"""Bytes of what a close says."""

_PIECES = 256
"""Writes QUIC gets before it is asked for packets: when it probes after a loss, it goes through all
it has not sent, once for each packet."""
_PIECES_IN_HASTE = 16
"""Frames of so many streams fit one packet, as far as qh3 is concerned."""

_LEAST_OVERHEAD = 25
"""Bytes of a packet that carries data, besides the data."""

ASK_AGAIN = 0.005
"""QUIC is asked in haste what it has to send, and in full at least so often; seconds."""

FAILED = "QUIC failed"
"""How a close begins, at either side, for which nobody but QUIC is to blame."""

FAULTS = (QuicConnectionError, ValueError, AssertionError)
"""What qh3 raises when it has a fault of its own; it cannot go on after that."""


class Tap(Protocol):
    """Hears all that passes between the core and QUIC; streams by QUIC's own numbers."""

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        """The core wrote to a stream."""

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        """Bytes of a stream arrived."""

    def datagram_written(self, data: bytes) -> None:
        """The core sent a datagram."""

    def datagram_read(self, data: bytes) -> None:
        """A datagram arrived."""

    def reset_written(self, stream: int, code: int) -> None:
        """The core reset a stream."""

    def reset_read(self, stream: int, code: int) -> None:
        """The peer reset a stream."""


class Write:
    """Data for a stream of the core, and how much of it QUIC has."""

    __slots__ = ("data", "fin", "sent", "stream")

    def __init__(self, stream: int, data: bytes, fin: bool) -> None:
        self.stream = stream
        self.data = data
        self.fin = fin
        self.sent = 0


class Bridge:
    """One connection: a core, and the QUIC connection it runs over."""

    def __init__(self, core: Connection, quic: Engine) -> None:
        self.core = core
        self.quic = quic
        self.connected = False
        self.ended = False
        self.fresh_ids: list[bytes] = []
        """Connection ids to be routed here, since the last look."""
        self.retired_ids: list[bytes] = []
        self.tap: Tap | None = None
        self.before_end: Callable[[], None] | None = None
        """Called just before the core learns that the peer is gone."""
        self.when_connected: Callable[[], None] | None = None
        """Called when the handshake is done."""
        self._waiting: deque[Write | bytes] = deque()
        """Writes and datagrams that QUIC has no room for yet."""
        self._streams: dict[int, int] = {}
        """QUIC's number of each open stream of the core."""
        self._unwanted: set[int] = set()
        """QUIC's numbers of streams that the peer wants no more of."""
        self._finished = RangeSet()
        """Incoming streams that are over, by their number among the peer's."""
        self._late_resets: list[tuple[int, int]] = []
        """Streams that were reset before the handshake was done, and the codes."""
        self._closing: CloseConnection | None = None
        self._closed = False
        self._stirred = True
        """Whether QUIC may have something to send besides what it is fed."""
        self._asked_in_full = True
        """Whether QUIC said itself that it has nothing more to send."""
        self._ask_again = 0.0
        self.paced_until = 0.0
        """When QUIC's pacer lets go of what it holds back, if it does."""
        self._unsent = self._pieces = 0
        """Bytes, and writes and datagrams, that QUIC was fed and may not have sent; qh3 would have
        to go through all its streams to tell."""

    # -- inputs -------------------------------------------------------------------------------

    def receive(self, data: bytes, segment: int, address: Address, now: float) -> None:
        """Packets from the network."""
        if self.ended:
            return
        try:
            self.quic.receive_joined(data, segment, address, now)
        except FAULTS as fault:
            self._break(fault, now)
            return
        self._stirred = True
        self._read_events(now)

    def handle_timer(self, now: float) -> None:
        """Time has passed."""
        if self.ended:
            return
        due = self.quic.get_timer()
        if due is not None and due <= now:
            try:
                self.quic.handle_timer(now)
            except FAULTS as fault:
                self._break(fault, now)
                return
            self._stirred = True
            self._read_events(now)
        due = self.core.next_timer()
        if due is not None and due <= now:
            self.core.handle_timer(now)

    def next_timer(self) -> float | None:
        """When `handle_timer` and `flush` want to be called."""
        at = self.quic.get_timer()
        core = self.core.next_timer()
        if core is not None and (at is None or core < at):
            at = core
        if not self._asked_in_full and (at is None or self._ask_again < at):
            at = self._ask_again
        return at

    def flush(self, now: float) -> list[Packet]:
        """Hand what the core has to say to QUIC; returns the packets to send."""
        packets: list[Packet] = []
        try:
            self._collect(now)
            fed = self._feed()
            if fed or self._stirred or (now >= self._ask_again and not self._asked_in_full):
                packets = self._ask(now)
            while fed and self._waiting:
                fed = self._feed()
                packets += self._ask(now)
            if self._closing is not None and not self._waiting and self._is_sent():
                # In full: what has to be sent again counts nowhere (AQ-EARLY-2).
                packets += self.quic.datagrams_to_send(now)
                self._close()
                packets += self.quic.datagrams_to_send(now)
        except FAULTS as fault:
            self._break(fault, now)
            packets += self._last_words(now)
        return packets

    def stir(self) -> None:
        """QUIC was told to send something."""
        self._stirred = True

    def ping(self, now: float) -> None:
        """Have the peer show that it is there."""
        if not self.connected or self.is_closed():
            return
        try:
            self.quic.send_ping(0)
        except FAULTS as fault:  # QUIC has given the peer up in the same moment, or before
            self._break(fault, now)
        self._stirred = True

    def is_closed(self) -> bool:
        """Whether the connection was closed on the wire, behind what was sent before."""
        return self.ended or self._closed

    def statistics(self) -> dict[str, float]:
        """Counters of this connection."""
        waiting = sum(
            len(e) if isinstance(e, bytes) else len(e.data) - e.sent for e in self._waiting
        )
        return {
            "streams": len(self._streams),
            "send_buffer": waiting + self.quic.get_send_buffer_size(),
        }

    # -- inside -------------------------------------------------------------------------------

    def _ask(self, now: float) -> list[Packet]:
        """The packets QUIC wants to send; in haste at first, in full a little later."""
        hasty = (
            self.connected
            and self._pieces <= _PIECES_IN_HASTE
            and not self.quic.has_lost
            and (self._asked_in_full or now < self._ask_again)
        )
        packets = self.quic.datagrams_to_send(now, until_short=hasty)
        self._stirred = False
        if not hasty:
            self._asked_in_full = True
        elif self._asked_in_full and packets:
            self._asked_in_full = False
            self._ask_again = now + ASK_AGAIN
        if self._unsent:
            self.paced_until = 0.0
            sent = sum(len(data) for data, _ in packets)
            if sent >= self._unsent + _LEAST_OVERHEAD or not self._is_held_back(now):
                self._unsent = self._pieces = 0
            else:
                self._unsent = max(1, self._unsent - sent)
        return packets

    def _is_held_back(self, now: float) -> bool:
        """Whether QUIC may have data that it does not send yet."""
        native = self.quic.core
        assert native is not None
        timer = native.get_timer()
        if timer is not None and timer[0] == "pacing" and timer[1] > now:
            self.paced_until = timer[1]
            return True
        return self.quic.is_window_full()

    def _break(self, fault: Exception, now: float) -> None:
        """QUIC failed: end the connection rather than leave one that looks alive."""
        if not self.ended:
            self.ended = self._stirred = True
            reason = f"{FAILED}: {fault}"
            if self.before_end is not None:
                self.before_end()
            self.core.handle_connection_lost(CloseCode.INTERNAL, reason, False, now)
            with contextlib.suppress(*FAULTS):
                self.quic.close(error_code=CloseCode.INTERNAL, reason_phrase=shortened(reason))

    def _last_words(self, now: float) -> list[Packet]:
        """Tell the peer, if QUIC still can; else it will hear nothing more."""
        with contextlib.suppress(*FAULTS):
            return self.quic.datagrams_to_send(now)
        return []

    def _collect(self, now: float) -> None:
        """Take the core's actions; resets and closes overtake what waits."""
        for action in self.core.poll_actions():
            if self.is_closed():
                continue  # QUIC takes nothing any more
            if isinstance(action, WriteStream):
                self._waiting.append(Write(action.stream, action.data, action.fin))
            elif isinstance(action, SendDatagram):
                self._waiting.append(action.data)
            elif isinstance(action, ResetStream):
                self._reset(action)
            else:
                self._closing = action
                if action.code in AT_ONCE:
                    self._waiting.clear()
                    if not self._is_handshaking_early():
                        self._close()

    def _feed(self) -> bool:
        """Give QUIC as much as its congestion window takes now; whether that was anything.

        qh3 could queue more, but then its acks wait behind that: two sides that both have a full
        queue can wait for each other for ever.
        """
        if not self._waiting or self.is_closed():
            return False
        room = left = self._room()
        pieces = 0
        while left > 0 and self._waiting and pieces < _PIECES:
            entry = self._waiting[0]
            if isinstance(entry, bytes):
                if not self.connected:
                    break  # AQ-EARLY-3: neither it nor what is behind it
                self._waiting.popleft()
                left -= len(entry)
                self._send_datagram(entry)
                self._pieces = _PIECES  # it may not fit where other frames do
            else:
                left -= self._send_stream(entry, left)
            pieces += 1
        self._unsent += room - left
        self._pieces += pieces
        return pieces > 0

    def _room(self) -> int:
        native = self.quic.core
        if native is None or not (self.connected or self.quic.is_early):
            return 0
        if self._unsent:
            return 0
        return native.congestion_window - native.bytes_in_flight

    def _is_sent(self) -> bool:
        return not self._is_handshaking_early() and not self.quic.get_send_buffer_size()

    def _is_handshaking_early(self) -> bool:
        """Whether a close has to wait for the handshake (AQ-EARLY-5).

        What was sent early may have to be sent again (AQ-EARLY-2), which qh3 does by itself, and
        the peer may not be able to read a close yet.
        """
        return not self.connected and self.quic.is_early

    def _send_stream(self, write: Write, room: int) -> int:
        """Write to a stream, as much as there is room for; returns how much that was."""
        quic = self.quic
        stream = self._streams.get(write.stream)
        if stream is None:
            stream = quic.get_next_available_stream_id(is_unidirectional=True)
            self._streams[write.stream] = stream
        size = len(write.data) - write.sent
        whole = size <= room
        if stream not in self._unwanted:
            if whole and not write.sent:
                quic.send_stream_data(stream, write.data, write.fin)
            else:
                part = memoryview(write.data)[write.sent : write.sent + room]
                quic.send_stream_data(stream, part, whole and write.fin)
            if self.tap is not None and not write.sent:
                self.tap.stream_written(stream, write.data, write.fin)
        if not whole:
            write.sent += room
            return room
        self._waiting.popleft()
        if write.fin:
            # qh3 forgets a finished stream once it is acked, and objects to a reset then.
            del self._streams[write.stream]
            self._unwanted.discard(stream)
        return size or 1

    def _send_datagram(self, data: bytes) -> None:
        if self.connected:
            self.quic.send_datagram_frame(data)
            if self.tap is not None:
                self.tap.datagram_written(data)

    def _reset(self, action: ResetStream) -> None:
        self._waiting = deque(
            entry
            for entry in self._waiting
            if isinstance(entry, bytes) or entry.stream != action.stream
        )
        stream = self._streams.pop(action.stream, None)
        if stream in self._unwanted:
            self._unwanted.discard(stream)
        elif stream is not None:
            if self.connected:
                self.quic.reset_stream(stream, action.code)
                self._stirred = True
            else:
                # qh3 may have to begin anew, and then forgets resets but not what was written.
                self._late_resets.append((stream, action.code))
            if self.tap is not None:
                self.tap.reset_written(stream, action.code)

    def _close(self) -> None:
        if self._closing is not None:
            closing, self._closing = self._closing, None
            self._closed = True
            self._stirred = True
            self.quic.close(error_code=closing.code, reason_phrase=shortened(closing.reason))

    def _read_events(self, now: float) -> None:
        quic, core, tap, finished = self.quic, self.core, self.tap, self._finished
        while (event := quic.next_event()) is not None:
            if type(event) is StreamDataReceived:
                stream = event.stream_id
                if stream & _UNIDIRECTIONAL:
                    if stream >> 2 in finished:
                        continue  # sent again, and qh3 had forgotten it
                    if event.end_stream:
                        finished.add(stream >> 2, (stream >> 2) + 1)
                    if tap is not None:
                        tap.stream_read(stream, event.data, event.end_stream)
                    core.handle_stream_data(stream, event.data, event.end_stream, now)
                else:
                    core.handle_bidirectional_stream(now)
            elif type(event) is DatagramFrameReceived:
                if tap is not None:
                    tap.datagram_read(event.data)
                core.handle_datagram(event.data, now)
            else:
                self._handle_rare(event, now)
        if not self.is_closed() and (closed := quic.closed_with) is not None:
            # qh3 itself tells of it when draining is over, and takes nothing until then.
            self._handle_rare(closed, now)
        rtt = quic.core.smoothed_rtt if quic.core is not None else None
        if rtt is not None:
            core.handle_rtt(rtt)

    def _handle_rare(self, event: QuicEvent, now: float) -> None:
        core = self.core
        if isinstance(event, StreamReset):
            index = event.stream_id >> 2
            self._finished.add(index, index + 1)
            if self.tap is not None:
                self.tap.reset_read(event.stream_id, event.error_code)
            core.handle_stream_reset(event.stream_id, event.error_code, now)
        elif isinstance(event, StopSendingReceived):
            self._unwanted.add(event.stream_id)
            if len(self._unwanted) > 2 * len(self._streams) + 64:
                self._unwanted.intersection_update(self._streams.values())
            self._late_resets = [one for one in self._late_resets if one[0] != event.stream_id]
        elif isinstance(event, HandshakeCompleted):
            self.connected = True
            self._asked_in_full = False  # several kinds of packets are due now
            self._ask_again = now
            self.quic.keep_tickets()
            for stream, code in self._late_resets:
                self.quic.reset_stream(stream, code)
            self._late_resets.clear()
            if self.when_connected is not None:
                self.when_connected()
            if not self.quic.peer_takes_datagrams:
                core.close_connection(
                    CloseCode.PROTOCOL_VIOLATION, "AQ-CONN-8: the peer takes no datagrams", now
                )
        elif isinstance(event, ConnectionIdIssued):
            self.fresh_ids.append(event.connection_id)
        elif isinstance(event, ConnectionIdRetired):
            self.retired_ids.append(event.connection_id)
        elif isinstance(event, ConnectionTerminated):
            self._end(event, now)

    def _end(self, event: ConnectionTerminated, now: float) -> None:
        self.ended = True
        if self.before_end is not None:
            self.before_end()
        if event.reason_phrase == IDLE_REASON:
            reason = "nothing was heard from the peer for too long"
            self.core.handle_connection_lost(CloseCode.IDLE, reason, False, now)
        else:
            self.core.handle_connection_lost(event.error_code, event.reason_phrase, True, now)


AT_ONCE = frozenset(CloseCode) - {CloseCode.NO_ERROR, CloseCode.GOING_AWAY}
"""What a connection is closed with without waiting for what was sent to leave."""


def shortened(reason: str) -> str:
    """As much of a reason as surely fits the packet that closes a connection."""
    encoded = reason.encode()
    if len(encoded) <= MAX_REASON:
        return reason
    return encoded[: MAX_REASON - 3].decode(errors="ignore") + "…"
