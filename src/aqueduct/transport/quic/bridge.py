"""Translates between the protocol core and qh3: actions to stream writes, QUIC events to inputs.

It has no socket and no clock: packets and the time are arguments, so that tests run real QUIC in
virtual time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

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
from aqueduct.protocol.actions import CloseConnection, ResetStream, SendDatagram, WriteStream
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.transport.address import Address, format_address
from aqueduct.transport.base import IMMEDIATE_CLOSE_CODES
from aqueduct.transport.quic.costs import (
    COUNT_AFTER,
    RESET_OVERHEAD,
    Unacknowledged,
    Unseen,
    least_head,
)
from aqueduct.transport.quic.engine import MAX_WITHHELD, Engine, shortened
from aqueduct.transport.quic.liveness import NEVER, Liveness, Verdict
from aqueduct.transport.quic.write_queue import Write, WriteQueue
from aqueduct.transport.udp import Packet
from aqueduct.wire.ranges import RangeSet

_UNIDIRECTIONAL = 2

_PIECES = 256
"""Most writes handed to QUIC before it is polled for packets: when it probes after a loss, it goes
through all it has not sent, once for each packet."""
_PACKETS = 64
"""Packets after which a flush leaves the rest to the next turn of the event loop, so that other
connections get theirs. One system call sends about as many."""
_FAST_PATH_PIECES = 16
"""Streams whose frames fit one packet of qh3; the fast path of `_poll` relies on it."""

MAX_STREAM_RESERVE = 64
"""Most streams reserved for control; a quarter of the initial stream credit if that is less. With
the reserve, channels and their streams can end while messages wait for credit (AQ-STREAM-9)."""
_RESET_SIZE = 16
"""Bytes of a frame that resets a stream."""
_LEAST_FRAME = 4
"""Bytes of the shortest frame that makes QUIC hold something."""
_FRAME_HEAD = 8
"""Bytes of a frame of a stream besides its data."""
_LEAST_OVERHEAD = 25
"""Bytes of a packet that carries data, besides the data."""

FULL_POLL_INTERVAL = 0.005
"""Most seconds between a fast-path poll of QUIC and one that polls until it has nothing to send."""

MAX_EARLY_STREAMS = 1_024
"""Most streams a client opens before it has the server's headers (AQ-COST-1); more of them wait."""

FAULTS = (QuicConnectionError, ValueError, AssertionError)
"""What qh3 raises for faults of its own; the connection cannot continue after one."""


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
        self._liveness = Liveness(quic, keep_alive)
        self._queue = WriteQueue()
        self._is_waiting = False
        """Whether the last `_feed` left something in the queue."""
        self._stream_limit = self._stream_reserve = 0
        """Streams that the peer allows in total, and those of them reserved for control."""
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
        self._opened = 0
        """Streams opened until then."""
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
        if held.is_full and self._queue and held.recount_at < at:
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
            self._collect(now)
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
                self._collect(now)
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
        return not self._queue.size and not self.quic.get_send_buffer_size()

    def release(self) -> None:
        """Free the memory of a connection that has ended.

        Connections are parts of reference cycles. Without this, a closed connection keeps megabytes
        until the garbage collector examines its oldest generation.
        """
        self._queue.clear()
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
            "send_buffer": self._queue.size + self.quic.get_send_buffer_size(),
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

    def _collect(self, now: float) -> None:
        """Queue the core's actions; resets and closes overtake waiting writes."""
        waiting = self._queue.waiting
        for action in self.core.poll_actions():
            if self.ended or self._closed:
                continue  # QUIC accepts nothing after a close
            if isinstance(action, WriteStream):
                waiting.append(Write(action.stream, action.data, action.fin, action.is_message))
            elif isinstance(action, SendDatagram):
                waiting.append(action.data)
            elif isinstance(action, ResetStream):
                self._reset(action)
            else:
                self._closing = action
                if action.code in IMMEDIATE_CLOSE_CODES:
                    self._queue.clear()
                    if not self._is_handshaking_early():
                        self._close()

    def _feed(self) -> bool:
        """Hand QUIC what its congestion window has room for; return whether that was anything.

        qh3 could queue more, but its acks would wait behind its queue: two sides with full queues
        would deadlock.
        """
        queue = self._queue
        waiting, resets, unopened = queue.waiting, queue.resets, queue.unopened
        if (
            not (waiting or resets or unopened[False] or unopened[True])
            or self._closed
            or self.ended
        ):
            self._is_waiting = False
            return False
        room = left = self._room()
        pieces = 0
        largest = -1
        while resets and left > 0 and pieces < _PIECES and self.connected:
            self._reset_now(*resets.popleft())
            left -= _RESET_SIZE
            pieces += 1
        if unopened[False] or unopened[True]:
            self._queue_unopened()
        while left > 0 and waiting and pieces < _PIECES:
            entry = waiting[0]
            if isinstance(entry, bytes):
                if not self.connected:
                    break  # AQ-EARLY-3: neither the datagram nor what is behind it
                queue.take()
                if largest < 0:
                    largest = self.quic.datagram_limit()
                    self.core.handle_datagram_limit(largest)
                if len(entry) > largest:
                    continue  # AQ-SEND-8: it counts as lost
                left -= len(entry)
                self.quic.send_datagram_frame(entry)
                if self.observer is not None:
                    self.observer.datagram_written(entry)
                self._pieces = _PIECES  # a datagram may not fit where other frames do
            elif queue.dropped and entry.stream in queue.dropped:
                queue.take()
                continue
            elif self._is_early and self._must_wait(entry):
                break
            else:
                left -= self._send_stream(entry, left)
            pieces += 1
        self._unsent += room - left + pieces * _FRAME_HEAD
        self._pieces += pieces
        self._unacknowledged.changes += pieces
        self._is_waiting = bool(waiting or resets or unopened[False] or unopened[True])
        return pieces > 0

    def _may_open(self, number: int, is_message: bool) -> bool:
        """Return whether there is credit for our stream of this number (AQ-STREAM-9)."""
        reserve = self._stream_reserve if is_message else 0
        if number + reserve < self._stream_limit:
            return True
        native = self.quic.core
        assert native is not None
        limit = native.stream_limits[1]
        if limit != self._stream_limit:
            if not self._stream_reserve or limit < self._stream_limit:  # keep the initial one
                self._stream_reserve = min(MAX_STREAM_RESERVE, limit // 4)
            self._stream_limit = limit
            reserve = self._stream_reserve if is_message else 0
        return number + reserve < limit

    def _queue_unopened(self) -> None:
        """Move writes that waited for stream credit to the front of the queue, control first.

        One stream more than the credit may be moved; it waits again.
        """
        number = self.quic.get_next_available_stream_id(is_unidirectional=True) >> 2
        first: list[Write] = []
        for is_message in (False, True):
            unopened = self._queue.unopened[is_message]
            while unopened and len(first) < _PIECES and self._may_open(number, is_message):
                first += unopened.popitem(last=False)[1]
                number += 1
        self._queue.put_first(first)

    def _room(self) -> int:
        native = self.quic.core
        if native is None or not (self.connected or self.quic.is_early):
            return 0
        if self._unsent or self._unacknowledged.is_full:
            return 0
        room: int = native.congestion_window - native.bytes_in_flight
        return room - self.quic.spare_room()

    def _must_wait(self, write: Write) -> bool:
        """Return whether a stream must not be opened before the headers came (AQ-COST-1)."""
        return self._opened >= MAX_EARLY_STREAMS and write.stream not in self._streams

    def _is_sent(self) -> bool:
        return not self._is_handshaking_early() and not self.quic.get_send_buffer_size()

    def _is_handshaking_early(self) -> bool:
        """Return whether a close has to wait for the handshake (AQ-EARLY-5).

        qh3 may have to retransmit early data (AQ-EARLY-2), and the peer may not be able to read a
        close yet.
        """
        return not self.connected and self.quic.is_early

    def _send_stream(self, write: Write, room: int) -> int:
        """Write to a stream as much as there is room for; return how much that was."""
        quic = self.quic
        stream = self._streams.get(write.stream)
        if stream is None:
            stream = quic.get_next_available_stream_id(is_unidirectional=True)
            unopened = self._queue.unopened[write.is_message]
            if write.stream in unopened or not self._may_open(stream >> 2, write.is_message):
                self._queue.postpone(write)
                return 0
            self._streams[write.stream] = stream
            if self._is_early:
                self._opened += 1
        size = len(write.data) - write.sent
        whole = size <= room
        if stream not in self._stopped:
            if whole and not write.sent:
                quic.send_stream_data(stream, write.data, write.fin)
            else:
                part = memoryview(write.data)[write.sent : write.sent + room]
                quic.send_stream_data(stream, part, whole and write.fin)
            if self.observer is not None and not write.sent:
                self.observer.stream_written(stream, write.data, write.fin)
        if not whole:
            write.sent += room
            return room
        self._queue.take()
        if write.fin:
            del self._streams[write.stream]
            self._stopped.discard(stream)
            if write.is_message:
                self._queue.finished.add(write.stream, stream, quic)
        return size or 1

    def _reset(self, action: ResetStream) -> None:
        """Reset a stream; its waiting writes are skipped when they are next in the queue."""
        self._queue.drop(action.stream)
        stream = self._streams.pop(action.stream, None) or self._queue.finished.pop(action.stream)
        if stream is not None:
            # qh3 may have to restart before the handshake is complete, and then loses resets but
            # keeps writes; so resets wait for the handshake.
            self._queue.resets.append((stream, action.code))

    def _reset_now(self, stream: int, code: int) -> None:
        if stream in self._stopped:
            self._stopped.discard(stream)  # QUIC has reset it already
        elif self.quic.reset_if_open(stream, code):
            self._needs_poll = True
            if self.observer is not None:
                self.observer.reset_written(stream, code)

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
        rtt = quic.core.smoothed_rtt if quic.core is not None else None
        if rtt is not None:
            core.handle_rtt(rtt)

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
            if len(self._stopped) > 2 * (len(self._streams) + len(self._queue.resets)) + 64:
                ending = {stream for stream, _ in self._queue.resets}
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
            self._stream_limit = self._stream_reserve = 0  # early data had others
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
