"""Translates between the protocol core and qh3: actions to stream writes, QUIC events to inputs.

It has no socket and no clock: packets and the time are arguments, so that tests run real QUIC in
virtual time.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice

from qh3.quic.connection import QuicConnectionError
from qh3.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    DatagramFrameReceived,
    HandshakeCompleted,
    PingAcknowledged,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from aqueduct.errors import CloseCode
from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import (
    CloseConnection,
    ResetStream,
    Room,
    SendDatagram,
    WriteStream,
)
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.transport.address import Address, format_address
from aqueduct.transport.base import IMMEDIATE_CLOSE_CODES, shortened
from aqueduct.transport.liveness import NEVER, Liveness, Verdict
from aqueduct.transport.quic.costs import (
    COUNT_AFTER,
    RESET_OVERHEAD,
    Unacknowledged,
    Unseen,
    least_head,
)
from aqueduct.transport.quic.engine import MAX_WITHHELD, Engine
from aqueduct.transport.quic.room import PIECES, RoomMeter
from aqueduct.transport.udp import Packet
from aqueduct.wire.ranges import RangeSet

_UNIDIRECTIONAL = 2

_PACKETS = 64
"""Packets after which a flush leaves the rest to the next turn of the event loop, so that other
connections get theirs. One system call sends about as many."""
_FAST_PATH_PIECES = 16
"""Streams whose frames fit one packet of qh3; the fast path of `_poll` relies on it."""

_RESET_SIZE = 16
"""Bytes of a frame that resets a stream."""
_LEAST_FRAME = 4
"""Bytes of the shortest frame that makes QUIC hold something."""
_FRAME_HEAD = 8
"""Bytes of a frame of a stream besides its data."""
_LEAST_OVERHEAD = 25
"""Bytes of a packet that carries data, besides the data."""

_FEW = 128
"""Finished streams that are remembered however few are open."""

FULL_POLL_INTERVAL = 0.005
"""Most seconds between a fast-path poll of QUIC and one that polls until it has nothing to send."""

FAULTS = (QuicConnectionError, ValueError, AssertionError)
"""What qh3 raises for faults of its own; the connection cannot continue after one."""


class FinishedStreams:
    """Message streams that QUIC has whole, which a cancel resets while QUIC still sends them.

    QUIC does not tell when a stream was acknowledged to its end, only how many streams are open.
    So of more than twice as many, this forgets the oldest, except those of messages that the peer
    has not acked.
    """

    __slots__ = ("_limit", "_streams")

    def __init__(self) -> None:
        self._streams: OrderedDict[int, int] = OrderedDict()
        """QUIC's numbers of the streams of the core."""
        self._limit = _FEW

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: int, number: int, engine: Engine, unacked: set[int]) -> None:
        """Add a stream of the core with QUIC's number for it; those in ``unacked`` are kept."""
        streams = self._streams
        streams[stream] = number
        if len(streams) > self._limit:
            native = engine.core
            open_here = 0 if native is None else native.active_local_streams[1]
            newest = open_here + _FEW // 2
            oldest = islice(streams, max(0, len(streams) - newest))
            for each in [each for each in oldest if each not in unacked]:
                del streams[each]
            kept = max(0, len(streams) - newest)
            self._limit = 2 * (open_here + kept) + _FEW

    def pop(self, stream: int) -> int | None:
        """Remove a stream, and return QUIC's number for it."""
        return self._streams.pop(stream, None)

    def clear(self) -> None:
        """Forget all."""
        self._streams.clear()


class Bridge:
    """One connection: a protocol core and the QUIC connection below it."""

    def __init__(self, core: ConnectionCore, quic: Engine, keep_alive: float | None = None) -> None:
        self.core = core
        self.quic = quic
        self.connected = False
        self.ended = False
        self.new_ids: list[bytes] = []
        """Connection ids issued since the endpoint last routed them."""
        self.retired_ids: list[bytes] = []
        self.observer: Observer | None = None
        self.before_end: Callable[[], None] | None = None
        """Called before the core is notified that the connection is lost."""
        self.when_connected: Callable[[], None] | None = None
        """Called when the handshake is complete."""
        self._liveness = Liveness(quic, keep_alive, core.side)
        self._output = core.output
        self._output.holds_datagrams = True
        self._meter = RoomMeter(quic)
        self._sent = FinishedStreams()
        self._resets: deque[tuple[int, int]] = deque()
        """QUIC's numbers of streams to reset, with their error codes."""
        self._is_waiting = False
        """Whether the last `_feed` left something."""
        self._streams: dict[int, int] = {}
        """QUIC's number of each open stream of the core."""
        self._stopped: set[int] = set()
        """QUIC's numbers of streams for which the peer has sent STOP_SENDING."""
        self._finished = RangeSet()
        """Incoming streams that have ended, by their number among the peer's."""
        self._closing: CloseConnection | None = None
        self._closed = False
        self._needs_poll = True
        """Whether QUIC may have packets to send besides those for new writes."""
        self._was_polled_in_full = True
        """Whether the last poll continued until QUIC had nothing to send."""
        self._full_poll_at = 0.0
        self.paced_until = 0.0
        """When QUIC's pacer allows the data that it holds back; 0 if it holds back nothing."""
        self.has_more = False
        """Whether the last flush left data that QUIC has room for, so that another one is due."""
        self._continue_at = 0.0
        self._unacknowledged = Unacknowledged(core, quic)
        self._is_early = True
        """Whether the headers were not yet exchanged at the last flush."""
        self.unseen = Unseen(core, quic)
        self.when_ready: Callable[[], None] | None = None
        """Called when the headers were exchanged and the connection was accepted."""
        self._unsent = self._pieces = 0
        """Upper bounds of what QUIC has been given and has not sent: bytes, and writes and
        datagrams. qh3 would have to go through all its streams for exact numbers."""

    # -- inputs -------------------------------------------------------------------------------

    def receive(self, data: bytes, segment: int, address: Address, now: float) -> None:
        """Handle packets from the network."""
        if self.ended:
            return
        try:
            self.quic.receive_joined(data, segment, address, now)
        except FAULTS as fault:
            self._fail(fault, now)
            return
        self._needs_poll = True
        self._read_events(now)
        if self.quic.withheld:
            # The bytes may contain frames that QUIC must answer; assume the worst.
            self._unacknowledged.changes += len(data) // _LEAST_FRAME
        if self._is_early:
            held = self._unacknowledged.held
            self.unseen.add_input(len(data), segment, self.connected, held, now)

    def handle_timer(self, now: float) -> None:
        """Handle the timers of QUIC and of the core that are due."""
        if self.ended:
            return
        due = self.quic.get_timer()
        if due is not None and due <= now:
            try:
                self.quic.handle_timer(now)
            except FAULTS as fault:
                self._fail(fault, now)
                return
            self._needs_poll = True
            self._read_events(now)
        due = self.core.next_timer()
        if due is not None and due <= now:
            self.core.handle_timer(now)
        if self._liveness.due_at <= now:
            self._check_peer(now)

    def _check_peer(self, now: float) -> None:
        """Ping a silent peer, or end the connection with a dead one (AQ-IDLE-1, AQ-IDLE-2)."""
        if self.is_closed():
            self._liveness.stop()
            return
        verdict = self._liveness.check(now)
        if self.quic.black_hole.lasts(self._liveness.timeout()):
            reason = "packets over 1,200 bytes no longer arrive; the path may have changed"
            self._lose(CloseCode.TRANSPORT, reason, now)
            return
        if verdict is Verdict.PING:
            self._ping(now)
        elif verdict is Verdict.DEAD:
            peer, silence = format_address(self.quic.peer_address), self._liveness.silence(now)
            self._lose(CloseCode.IDLE, f"nothing came from {peer} for {silence:.1f} s", now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` and `flush` are due."""
        if self.has_more:
            return self._continue_at
        at = self._liveness.due_at
        quic = self.quic.get_timer()
        if quic is not None and quic < at:
            at = quic
        core = self.core.next_timer()
        if core is not None and core < at:
            at = core
        if not self._was_polled_in_full and self._full_poll_at < at:
            at = self._full_poll_at
        held = self._unacknowledged
        if held.is_full and self._has_output() and held.recount_at < at:
            at = held.recount_at
        return at if at < NEVER else None

    def flush(self, now: float) -> list[Packet]:
        """Hand the actions of the core to QUIC; return the packets to send."""
        packets: list[Packet] = []
        if self._is_early and self.core.is_ready:
            self._is_early = False
            self.quic.max_withheld = MAX_WITHHELD
            if self.when_ready is not None:
                self.when_ready()
        held = self._unacknowledged
        try:
            if held.is_full:
                held.recount(now)
            fed = self._feed()
            is_overdue = now >= self._full_poll_at and not self._was_polled_in_full
            if fed or self._needs_poll or is_overdue:
                packets = self._poll(now)
            while fed and self._is_waiting and len(packets) < _PACKETS:
                fed = self._feed()
                packets += self._poll(now)
            self.has_more = fed and self._is_waiting
            self._continue_at = now
            if self._closing is not None and not self._is_waiting and self._is_sent():
                # Poll in full: retransmissions do not count as unsent (AQ-EARLY-2).
                packets += self.quic.datagrams_to_send(now)
                self._close()
                packets += self.quic.datagrams_to_send(now)
            held.changes += len(packets)
            if held.changes >= COUNT_AFTER and held.add_packets(0, now):
                self._feed()
                packets += self._poll(now)
        except FAULTS as fault:
            self._fail(fault, now)
            with contextlib.suppress(*FAULTS):  # tell the peer, if QUIC can still build packets
                packets += self.quic.datagrams_to_send(now)
        return packets

    def request_poll(self) -> None:
        """Poll QUIC for packets with the next flush."""
        self._needs_poll = True

    def is_closed(self) -> bool:
        """Return whether the close was handed to QUIC, or the connection has ended."""
        return self.ended or self._closed

    def is_drained(self) -> bool:
        """Return whether the peer has acknowledged everything that the core has written."""
        native = self.quic.core
        if native is None or native.bytes_in_flight:
            return False
        return not self._has_output() and not self.quic.get_send_buffer_size()

    def release(self) -> None:
        """Free the memory of a connection that has ended.

        Connections are parts of reference cycles. Without this, a closed connection keeps megabytes
        until the garbage collector examines its oldest generation.
        """
        self._output.clear()
        self._resets.clear()
        self._sent.clear()
        self._closing = None
        self._unsent = self._pieces = 0
        self.before_end = self.when_connected = self.when_ready = None
        self.unseen.on_estimate = None
        self.quic.release()

    def statistics(self) -> dict[str, float]:
        """Return counters of this connection."""
        return {
            **self.quic.statistics(),
            "streams": len(self._streams),
            "send_buffer": self._output.size + self.quic.get_send_buffer_size(),
        }

    # -- inside -------------------------------------------------------------------------------

    def _poll(self, now: float) -> list[Packet]:
        """Return packets to send: on the fast path up to a short one, in full a little later."""
        fast_path = (
            self.connected
            and self._pieces <= _FAST_PATH_PIECES
            and not self.quic.has_lost
            and (self._was_polled_in_full or now < self._full_poll_at)
        )
        packets = self.quic.datagrams_to_send(now, until_short=fast_path)
        self._needs_poll = False
        if not fast_path:
            self._was_polled_in_full = True
        elif self._was_polled_in_full and packets:
            self._was_polled_in_full = False
            self._full_poll_at = now + FULL_POLL_INTERVAL
        if self._unsent:
            self.paced_until = 0.0
            sent = sum(len(data) for data, _ in packets)
            if sent >= self._unsent + _LEAST_OVERHEAD or not self._is_held_back(now):
                self._unsent = self._pieces = 0
            else:
                self._unsent = max(1, self._unsent - sent)
        return packets

    def _is_held_back(self, now: float) -> bool:
        """Return whether QUIC may hold data that it does not send yet."""
        self.paced_until = self.quic.paced_until(now, self._pieces > _FAST_PATH_PIECES)
        return bool(self.paced_until) or self.quic.is_window_full()

    def _fail(self, fault: Exception, now: float) -> None:
        """End the connection after a fault of QUIC, and tell the peer if possible (AQ-CODE-4)."""
        self._lose(CloseCode.TRANSPORT, f"QUIC failed: {fault}", now)

    def _lose(self, code: CloseCode, reason: str, now: float) -> None:
        """End the connection as lost, and tell the peer if possible."""
        if not self.ended:
            self.ended = self._needs_poll = True
            if self.before_end is not None:
                self.before_end()
            self.core.handle_connection_lost(code, reason, False, now)
            with contextlib.suppress(*FAULTS):
                self.quic.close(error_code=code, reason_phrase=shortened(reason))

    def _ping(self, now: float) -> None:
        """Send a ping, so that the peer answers."""
        self._needs_poll = True
        try:
            self.quic.send_ping(0)
        except FAULTS as fault:  # QUIC has ended the connection meanwhile
            self._fail(fault, now)

    def _feed(self) -> bool:
        """Hand QUIC what its congestion window has room for; return whether that was anything.

        qh3 could queue more, but its acks would wait behind its queue: two sides with full queues
        would deadlock. Nor could anything overtake what is in that queue.
        """
        output = self._output
        if self._closed or self.ended:
            output.clear()
            self._is_waiting = False
            return False
        closing = output.closing
        if closing is not None and closing.code in IMMEDIATE_CLOSE_CODES:
            output.clear()
        room = Room()
        if self._may_send():
            self._meter.measure(room, is_early=self._is_early)
        else:
            room.bytes = room.writes = 0
        before = room.bytes
        pieces = self._reset_now(room)
        largest = -1
        for action in self.core.poll_actions(room):
            if isinstance(action, WriteStream):
                self._send_stream(action)
                pieces += 1
            elif isinstance(action, SendDatagram):
                if largest < 0:
                    largest = self.quic.datagram_limit()
                    self.core.handle_datagram_limit(largest)
                if len(action.data) > largest:
                    before -= len(action.data)
                    continue  # AQ-SEND-8: it counts as lost, and QUIC has nothing of it to send
                self._send_datagram(action.data)
                pieces += 1
            elif isinstance(action, ResetStream):
                self._reset(action)
            else:
                self._closing = action
                if action.code in IMMEDIATE_CLOSE_CODES and not self._is_handshaking_early():
                    self._close()
        pieces += self._reset_now(room)
        self._meter.add_sent(before - room.bytes)
        self._unsent += before - room.bytes + pieces * _FRAME_HEAD
        # A datagram may need a packet of its own.
        self._pieces = PIECES if largest >= 0 else self._pieces + pieces
        self._unacknowledged.changes += pieces
        self._is_waiting = self._has_output()
        return pieces > 0

    def _has_output(self) -> bool:
        return self._output.is_waiting or bool(self._resets)

    def _may_send(self) -> bool:
        """Return whether QUIC is to be given anything: it holds nothing that it has not sent."""
        if self.quic.core is None or not (self.connected or self.quic.is_early):
            return False
        return not self._unsent and not self._unacknowledged.is_full

    def _is_sent(self) -> bool:
        return not self._is_handshaking_early() and not self.quic.get_send_buffer_size()

    def _is_handshaking_early(self) -> bool:
        """Return whether a close has to wait for the handshake (AQ-EARLY-5).

        qh3 may have to retransmit early data (AQ-EARLY-2), and the peer may not be able to read a
        close yet.
        """
        return not self.connected and self.quic.is_early

    def _send_stream(self, write: WriteStream) -> None:
        """Write to a stream of QUIC, and open it with its first data."""
        quic = self.quic
        stream = self._streams.get(write.stream)
        if stream is None:
            stream = quic.get_next_available_stream_id(is_unidirectional=True)
            self._streams[write.stream] = stream
            self._meter.credit.opened = (stream >> 2) + 1
        if stream not in self._stopped:
            quic.send_stream_data(stream, write.data, write.fin)
            if self.observer is not None:
                self.observer.stream_written(stream, write.data, write.fin)
        if write.fin:
            del self._streams[write.stream]
            self._stopped.discard(stream)
            if write.is_message:
                self._sent.add(write.stream, stream, quic, self.core.output.unacked)

    def _send_datagram(self, data: bytes) -> None:
        self.quic.send_datagram_frame(data)
        if self.observer is not None:
            self.observer.datagram_written(data)

    def _reset(self, action: ResetStream) -> None:
        """Reset a stream with the next `_feed` after the handshake.

        qh3 may have to restart before the handshake is complete, and then loses resets but keeps
        writes.
        """
        stream = self._streams.pop(action.stream, None) or self._sent.pop(action.stream)
        if stream is not None:
            self._resets.append((stream, action.code))

    def _reset_now(self, room: Room) -> int:
        """Reset streams that there is room for; return how many."""
        resets = self._resets
        count = 0
        while resets and self.connected and room.bytes + room.urgent > 0 and room.writes > 0:
            stream, code = resets.popleft()
            room.bytes -= _RESET_SIZE
            room.writes -= 1
            count += 1
            if stream in self._stopped:
                self._stopped.discard(stream)  # QUIC has reset it already
            elif self.quic.reset_if_open(stream, code):
                self._needs_poll = True
                if self.observer is not None:
                    self.observer.reset_written(stream, code)
        return count

    def _close(self) -> None:
        if self._closing is not None:
            closing, self._closing = self._closing, None
            self._closed = True
            self._needs_poll = True
            self.quic.close(error_code=closing.code, reason_phrase=shortened(closing.reason))

    def _read_events(self, now: float) -> None:
        quic, core, observer, finished = self.quic, self.core, self.observer, self._finished
        while (event := quic.next_event()) is not None:
            if type(event) is StreamDataReceived:
                stream = event.stream_id
                if stream & _UNIDIRECTIONAL:
                    if stream >> 2 in finished:
                        continue  # a retransmission of a stream that qh3 had forgotten
                    if event.end_stream:
                        finished.add(stream >> 2, (stream >> 2) + 1)
                        self._unacknowledged.changes += 1
                    if self._is_early:
                        self.unseen.seen += len(event.data) + least_head(stream)
                    if observer is not None:
                        observer.stream_read(stream, event.data, event.end_stream)
                    core.handle_stream_data(stream, event.data, event.end_stream, now)
                else:
                    core.handle_bidirectional_stream(now)
            elif type(event) is DatagramFrameReceived:
                if self._is_early:
                    self.unseen.seen += len(event.data) + 1
                if observer is not None:
                    observer.datagram_read(event.data)
                core.handle_datagram(event.data, now)
            else:
                self._handle_rare(event, now)
        if not (self._closed or self.ended) and (closed := quic.closed_with) is not None:
            # qh3 reports the end only when draining is over, and accepts nothing until then.
            self._handle_rare(closed, now)
        native = quic.core
        if native is not None and (rtt := native.smoothed_rtt) is not None:
            self._meter.add_round_trip(rtt, native.latest_rtt or rtt)
            core.handle_rtt(rtt, self._meter.least)

    def _handle_rare(self, event: QuicEvent, now: float) -> None:
        core = self.core
        if isinstance(event, StreamReset):
            index = event.stream_id >> 2
            self._unacknowledged.changes += 1
            if index in self._finished:
                return  # the whole stream had arrived
            self._finished.add(index, index + 1)
            if self._is_early:
                self.unseen.seen += least_head(event.stream_id) + RESET_OVERHEAD
            if self.observer is not None:
                self.observer.reset_read(event.stream_id, event.error_code)
            core.handle_stream_reset(event.stream_id, event.error_code, now)
        elif isinstance(event, StopSendingReceived):
            self._stopped.add(event.stream_id)
            if len(self._stopped) > 2 * (len(self._streams) + len(self._resets)) + 64:
                ending = {stream for stream, _ in self._resets}
                self._stopped.intersection_update(ending.union(self._streams.values()))
        elif isinstance(event, HandshakeCompleted):
            self.connected = True
            self._liveness.start(now)
            core.handle_datagram_limit(self.quic.datagram_limit())
            self._was_polled_in_full = False  # packets of several kinds are due now
            if not self.quic.is_early:
                self.unseen.reset()  # a handshake raises no events
            self._full_poll_at = now
            self.quic.keep_tickets()
            self._meter.credit.forget_limit()  # that for early data was another one
            self._output.holds_datagrams = False
            if self.when_connected is not None:
                self.when_connected()
            if not self.quic.peer_takes_datagrams:
                core.close_connection(
                    CloseCode.PROTOCOL_VIOLATION, "AQ-CONN-8: the peer takes no datagrams", now
                )
        elif isinstance(event, ConnectionIdIssued):
            self.new_ids.append(event.connection_id)
        elif isinstance(event, ConnectionIdRetired):
            self.retired_ids.append(event.connection_id)
        elif isinstance(event, PingAcknowledged):
            if not self.quic.handle_pong(event.uid, now):
                core.close_connection(
                    CloseCode.PROTOCOL_VIOLATION, "a packet was acked that was never sent", now
                )
        elif isinstance(event, ConnectionTerminated):
            self._end(event, now)

    def _end(self, event: ConnectionTerminated, now: float) -> None:
        if self.quic.was_reset and not self._closed:
            peer = format_address(self.quic.peer_address)  # AQ-IDLE-3
            reason = f"{peer} no longer knows this connection; it may have been restarted"
            self._lose(CloseCode.TRANSPORT, reason, now)
            return
        self.ended = True
        if self.before_end is not None:
            self.before_end()
        self.core.handle_connection_lost(event.error_code, event.reason_phrase, True, now)
