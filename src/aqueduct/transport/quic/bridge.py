"""Between the protocol core and qh3: actions become stream writes, events become inputs.

No sockets and no clock: packets and the time come in as arguments, so that real QUIC runs in
virtual time too.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
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
from aqueduct.protocol.connection import Connection
from aqueduct.transport.quic.engine import MAX_WITHHELD, PACING_GRAIN, Engine
from aqueduct.transport.udp import Address, Packet
from aqueduct.wire.chanid import Side
from aqueduct.wire.ranges import RangeSet

IDLE_REASON = "Idle timeout"
"""How qh3 says that it is the one who gave up."""

_UNIDIRECTIONAL = 2

MAX_REASON = 512
"""Bytes of what a close says."""

_PIECES = 256
"""Writes QUIC gets before it is asked for packets: when it probes after a loss, it goes through all
it has not sent, once for each packet."""
_PACKETS = 64
"""Packets after which a flush feeds QUIC no more. The rest waits for the event loop's next turn, so
that other connections get theirs. One system call sends about so many."""
_PIECES_IN_HASTE = 16
"""Frames of so many streams fit one packet, as far as qh3 is concerned."""

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

ASK_AGAIN = 0.005
"""QUIC is asked in haste what it has to send, and in full at least so often; seconds."""

FAILED = "QUIC failed"
"""How a close begins, at either side, for which nobody but QUIC is to blame."""

MAX_EARLY_STREAMS = 1_024
"""Streams a client opens before it has the server's headers (AQ-COST-1); the next ones wait."""

_PACKET_OVERHEAD = 26
"""Bytes of a packet besides its frames, at least: flags, connection id, packet number and tag. The
least, since a client chooses the size of its packets: what counts for nothing is free of cost."""
_RESET_OVERHEAD = 2
"""Bytes of a frame that resets a stream besides its type and the number of the stream, at least."""
_COST_OF_UNSEEN = 220
_COST_OF_HANDSHAKE = 14
"""Bytes that QUIC holds for each byte that raises no event, after and before the handshake."""
_COST_OF_UNACKNOWLEDGED = 200
"""Bytes that QUIC holds for a packet or frame until it is acknowledged."""
_LOOK_AFTER = 1_024
"""Packets and frames after which the unacknowledged ones are counted, in linear time."""
_LOOK_EVERY = 0.1
"""Seconds between two counts while this side waits for acknowledgements."""

FAULTS = (QuicConnectionError, ValueError, AssertionError)
"""What qh3 raises when it has a fault of its own; it cannot go on after that."""


class Write:
    """Data for a stream of the core, and how much of it QUIC has."""

    __slots__ = ("data", "fin", "is_message", "sent", "stream")

    def __init__(self, stream: int, data: bytes, fin: bool, is_message: bool) -> None:
        self.stream = stream
        self.data = data
        self.fin = fin
        self.is_message = is_message
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
        self.observer: Observer | None = None
        self.before_end: Callable[[], None] | None = None
        """Called just before the core learns that the peer is gone."""
        self.when_connected: Callable[[], None] | None = None
        """Called when the handshake is done."""
        self._waiting: deque[Write | bytes] = deque()
        """Writes and datagrams that QUIC has no room for yet."""
        self._taken = 0
        """The number of writes that have left that queue."""
        self._dropped: OrderedDict[int, int] = OrderedDict()
        """Streams that were reset with writes in the queue, each with the value of ``_taken`` at
        which its last write has left."""
        self._unopened: tuple[OrderedDict[int, list[Write]], OrderedDict[int, list[Write]]] = (
            OrderedDict(),
            OrderedDict(),
        )
        """Writes that wait for stream credit: control, messages."""
        self._stream_limit = self._stream_reserve = 0
        """Streams that the peer allows in total, and those of them reserved for control."""
        self._resets: deque[tuple[int, int]] = deque()
        """Streams to reset, with their error codes."""
        self._streams: dict[int, int] = {}
        """QUIC's number of each open stream of the core."""
        self._unwanted: set[int] = set()
        """QUIC's numbers of streams that the peer wants no more of."""
        self._finished = RangeSet()
        """Incoming streams that are over, by their number among the peer's."""
        self._closing: CloseConnection | None = None
        self._closed = False
        self._stirred = True
        """Whether QUIC may have something to send besides what it is fed."""
        self._asked_in_full = True
        """Whether QUIC said itself that it has nothing more to send."""
        self._ask_again = 0.0
        self.paced_until = 0.0
        """When QUIC's pacer lets go of what it holds back, if it does."""
        self.has_cut = False
        """Whether the last flush left something that QUIC has room for: flush again."""
        self._cut_at = 0.0
        self._debts = Debts(core, quic)
        self._is_early = True
        """Whether the headers were not exchanged at the last check."""
        self._opened = 0
        """Streams opened until then."""
        self._seen = self._unseen = 0
        """Bytes received until then that raised an event, and those that did not."""
        self.when_ready: Callable[[], None] | None = None
        """Called when the headers were exchanged and the connection accepted."""
        self.when_hidden: Callable[[int], None] | None = None
        """Called before that with an estimate of the bytes that QUIC holds and does not report."""
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
        if self.quic.withheld:
            # The bytes may contain frames that QUIC must answer; assume the worst.
            self._debts.news += len(data) // _LEAST_FRAME
        if self._is_early:
            self._watch(len(data), segment, now)

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
        if self.has_cut:
            return self._cut_at
        at = self.quic.get_timer()
        core = self.core.next_timer()
        if core is not None and (at is None or core < at):
            at = core
        if not self._asked_in_full and (at is None or self._ask_again < at):
            at = self._ask_again
        if self._debts.is_full and self._has_more() and (at is None or self._debts.look_at < at):
            at = self._debts.look_at
        return at

    def flush(self, now: float) -> list[Packet]:
        """Hand what the core has to say to QUIC; returns the packets to send."""
        packets: list[Packet] = []
        if self._is_early and self.core.is_ready:
            self._is_early = False
            self.quic.max_withheld = MAX_WITHHELD
            if self.when_ready is not None:
                self.when_ready()
        try:
            if self._debts.is_full:
                self._debts.look_again(now)
            self._collect(now)
            fed = self._feed()
            if fed or self._stirred or (now >= self._ask_again and not self._asked_in_full):
                packets = self._ask(now)
            while fed and len(packets) < _PACKETS and self._has_more():
                fed = self._feed()
                packets += self._ask(now)
            self.has_cut = fed and len(packets) >= _PACKETS and self._has_more()
            self._cut_at = now
            if self._closing is not None and not self._has_more() and self._is_sent():
                # In full: what has to be sent again counts nowhere (AQ-EARLY-2).
                packets += self.quic.datagrams_to_send(now)
                self._close()
                packets += self.quic.datagrams_to_send(now)
            if self._debts.look(len(packets), now):
                self._collect(now)
                packets += self._ask(now)
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

    def release(self) -> None:
        """Free the memory of a connection that has ended.

        Connections are parts of reference cycles. Without this, a closed connection keeps megabytes
        until the garbage collector examines its oldest generation.
        """
        self._forget_waiting()
        self._closing = None
        self._unsent = self._pieces = 0
        self.quic.release()

    def statistics(self) -> dict[str, float]:
        """Counters of this connection."""
        waiting = sum(
            len(e) if isinstance(e, bytes) else len(e.data) - e.sent for e in self._waiting
        )
        for unopened in self._unopened:
            waiting += sum(len(write.data) for writes in unopened.values() for write in writes)
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
        if timer is not None and timer[1] > now:
            if timer[0] == "pacing":
                self.paced_until = timer[1]
                return True
            # QUIC tells of one timer only: that of an ack may hide the pacer's.
            if (
                self._pieces > _PIECES_IN_HASTE
                and timer[0] == "ack_application"
                and native.get_send_buffer_size()
            ):
                self.paced_until = now + PACING_GRAIN
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
                self._waiting.append(
                    Write(action.stream, action.data, action.fin, action.is_message)
                )
            elif isinstance(action, SendDatagram):
                self._waiting.append(action.data)
            elif isinstance(action, ResetStream):
                self._reset(action)
            else:
                self._closing = action
                if action.code in AT_ONCE:
                    self._forget_waiting()
                    if not self._is_handshaking_early():
                        self._close()

    def _feed(self) -> bool:
        """Give QUIC as much as its congestion window takes now; whether that was anything.

        qh3 could queue more, but then its acks wait behind that: two sides that both have a full
        queue can wait for each other for ever.
        """
        if not self._has_more() or self.is_closed():
            return False
        room = left = self._room()
        pieces = 0
        while self._resets and left > 0 and pieces < _PIECES and self.connected:
            self._reset_now(*self._resets.popleft())
            left -= _RESET_SIZE
            pieces += 1
        if self._unopened[False] or self._unopened[True]:
            self._queue_unopened()
        while left > 0 and self._waiting and pieces < _PIECES:
            entry = self._waiting[0]
            if isinstance(entry, bytes):
                if not self.connected:
                    break  # AQ-EARLY-3: neither it nor what is behind it
                self._take()
                left -= len(entry)
                self._send_datagram(entry)
                self._pieces = _PIECES  # it may not fit where other frames do
            elif self._dropped and entry.stream in self._dropped:
                self._take()
                continue
            elif self._is_early and self._must_wait(entry):
                break
            else:
                left -= self._send_stream(entry, left)
            pieces += 1
        self._unsent += room - left + pieces * _FRAME_HEAD
        self._pieces += pieces
        self._debts.news += pieces
        return pieces > 0

    def _has_more(self) -> bool:
        return bool(self._waiting or self._resets or self._unopened[False] or self._unopened[True])

    def _take(self) -> None:
        """Remove the first write of the queue."""
        self._waiting.popleft()
        self._taken += 1
        dropped = self._dropped
        while dropped and next(iter(dropped.values())) <= self._taken:
            dropped.popitem(last=False)

    def _forget_waiting(self) -> None:
        """Drop all waiting writes."""
        self._taken += len(self._waiting)
        self._waiting.clear()
        self._dropped.clear()
        self._resets.clear()
        for unopened in self._unopened:
            unopened.clear()

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
            unopened = self._unopened[is_message]
            while unopened and len(first) < _PIECES and self._may_open(number, is_message):
                first += unopened.popitem(last=False)[1]
                number += 1
        self._waiting.extendleft(reversed(first))
        self._taken -= len(first)

    def _room(self) -> int:
        native = self.quic.core
        if native is None or not (self.connected or self.quic.is_early):
            return 0
        if self._unsent or self._debts.is_full:
            return 0
        room: int = native.congestion_window - native.bytes_in_flight
        return room - self.quic.spare_room()

    def _must_wait(self, write: Write) -> bool:
        """AQ-COST-1: whether a stream is one too many before the headers."""
        return self._opened >= MAX_EARLY_STREAMS and write.stream not in self._streams

    def _watch(self, size: int, segment: int, now: float) -> None:
        """Bound the bytes that a server reads from a client before acceptance (AQ-COST-3).

        QUIC holds state for frames that raise no event: a stream without data takes five bytes on
        the wire and more than a kilobyte of memory.
        """
        core = self.core
        if core.side is not Side.SERVER:
            return
        packets = 1 if size <= segment else -(-size // segment)
        self._unseen += size - packets * _PACKET_OVERHEAD
        if self.quic.has_news:
            return  # the bytes may have raised these events
        self._unseen = max(0, self._unseen - self._seen)
        self._seen = 0
        config = core.config
        if self.quic.is_early:
            allowed = config.max_early_unseen
        else:
            allowed = config.max_unseen if self.connected else config.max_handshake
        if self._unseen > allowed:
            core.handle_excess("AQ-COST-3", "too many bytes without an event before headers", now)
        elif self.when_hidden is not None:
            each = _COST_OF_UNSEEN if self.connected or self.quic.is_early else _COST_OF_HANDSHAKE
            self.when_hidden(each * self._unseen + _COST_OF_UNACKNOWLEDGED * self._debts.held)

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
            unopened = self._unopened[write.is_message]
            if write.stream in unopened or not self._may_open(stream >> 2, write.is_message):
                self._take()
                unopened.setdefault(write.stream, []).append(write)
                return 0
            self._streams[write.stream] = stream
            if self._is_early:
                self._opened += 1
        size = len(write.data) - write.sent
        whole = size <= room
        if stream not in self._unwanted:
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
        self._take()
        if write.fin:
            # qh3 forgets a finished stream once it is acked, and objects to a reset then.
            del self._streams[write.stream]
            self._unwanted.discard(stream)
        return size or 1

    def _send_datagram(self, data: bytes) -> None:
        if self.connected:
            self.quic.send_datagram_frame(data)
            if self.observer is not None:
                self.observer.datagram_written(data)

    def _reset(self, action: ResetStream) -> None:
        """Reset a stream; its waiting writes are skipped when they are next in the queue."""
        number = action.stream
        for unopened in self._unopened:
            unopened.pop(number, None)
        if self._waiting:
            self._dropped[number] = self._taken + len(self._waiting)
        stream = self._streams.pop(number, None)
        if stream is not None:
            # Before the handshake is done qh3 may have to restart, and then loses resets but keeps
            # writes; so resets wait for the handshake.
            self._resets.append((stream, action.code))
            if self.observer is not None and stream not in self._unwanted:
                self.observer.reset_written(stream, action.code)

    def _reset_now(self, stream: int, code: int) -> None:
        if stream in self._unwanted:
            self._unwanted.discard(stream)  # QUIC has reset it already
        else:
            self.quic.reset_stream(stream, code)
            self._stirred = True

    def _close(self) -> None:
        if self._closing is not None:
            closing, self._closing = self._closing, None
            self._closed = True
            self._stirred = True
            self.quic.close(error_code=closing.code, reason_phrase=shortened(closing.reason))

    def _read_events(self, now: float) -> None:
        quic, core, observer, finished = self.quic, self.core, self.observer, self._finished
        while (event := quic.next_event()) is not None:
            if type(event) is StreamDataReceived:
                stream = event.stream_id
                if stream & _UNIDIRECTIONAL:
                    if stream >> 2 in finished:
                        continue  # sent again, and qh3 had forgotten it
                    if event.end_stream:
                        finished.add(stream >> 2, (stream >> 2) + 1)
                        self._debts.news += 1
                    if self._is_early:
                        self._seen += len(event.data) + least_head(stream)
                    if observer is not None:
                        observer.stream_read(stream, event.data, event.end_stream)
                    core.handle_stream_data(stream, event.data, event.end_stream, now)
                else:
                    core.handle_bidirectional_stream(now)
            elif type(event) is DatagramFrameReceived:
                if self._is_early:
                    self._seen += len(event.data) + 1
                if observer is not None:
                    observer.datagram_read(event.data)
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
            self._debts.news += 1
            if self._is_early:
                self._seen += least_head(event.stream_id) + _RESET_OVERHEAD
            if self.observer is not None:
                self.observer.reset_read(event.stream_id, event.error_code)
            core.handle_stream_reset(event.stream_id, event.error_code, now)
        elif isinstance(event, StopSendingReceived):
            self._unwanted.add(event.stream_id)
            if len(self._unwanted) > 2 * (len(self._streams) + len(self._resets)) + 64:
                ending = {stream for stream, _ in self._resets}
                self._unwanted.intersection_update(ending.union(self._streams.values()))
        elif isinstance(event, HandshakeCompleted):
            self.connected = True
            self._asked_in_full = False  # several kinds of packets are due now
            if not self.quic.is_early:
                self._seen = self._unseen = 0  # a handshake raises no events
            self._ask_again = now
            self.quic.keep_tickets()
            self._stream_limit = self._stream_reserve = 0  # early data had others
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
        elif isinstance(event, PingAcknowledged):
            if not self.quic.handle_pong(event.uid, now):
                core.close_connection(
                    CloseCode.PROTOCOL_VIOLATION, "a packet was acked that was never sent", now
                )
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


class Debts:
    """The packets and frames that QUIC holds until the peer acknowledges them (AQ-COST-2).

    Most of them carry data that this side sends within the congestion window. But a peer can
    provoke packets that ignore the congestion window, acknowledge none of them, and so make QUIC
    hold many times what the peer sent. This side therefore stops sending new data at half of the
    limit, and closes a peer that provokes more than the other half. At a quarter of the limit it
    sends a ping: a peer that gets only acks need not acknowledge them.
    """

    __slots__ = ("_asked", "_core", "_enough", "_quic", "held", "is_full", "look_at", "news")

    def __init__(self, core: Connection, quic: Engine) -> None:
        self._core = core
        self._quic = quic
        self.news = 0
        """Packets and frames since the last count."""
        self.held = 0
        """Packets and frames that were held at the last count."""
        self.is_full = False
        """Whether this side must not send new data, as of the last count."""
        self.look_at = 0.0
        """When to count again at the latest, if so."""
        self._enough = 0
        """Bytes in flight below which an earlier count is worth while."""
        self._asked = False

    def look(self, packets: int, now: float) -> bool:
        """Count after ``packets`` were built; return whether there is something new to send."""
        self.news += packets
        if self.news < _LOOK_AFTER:
            return False
        held = self._count(now)
        if self._core.has_ended:
            return True
        if held < self._limit() // 4:
            self._asked = False
        elif not self._asked:
            self._asked = True
            self._quic.send_ping(0)
            return True
        return False

    def look_again(self, now: float) -> None:
        """Count again if this side must not send new data, to see whether it may now."""
        if now >= self.look_at or self._quic.bytes_in_flight < self._enough:
            self._count(now)

    def _count(self, now: float) -> int:
        """Count what QUIC holds, and close the connection of a peer over the limit."""
        self.news = 0
        held = self.held = self._quic.unacknowledged()
        limit = self._limit()
        self.is_full = held >= limit // 2
        self.look_at = now + _LOOK_EVERY
        in_flight = self._quic.bytes_in_flight
        self._enough = in_flight - in_flight // 8
        if held > limit:
            self._core.handle_excess("AQ-COST-2", "too much that was not acknowledged", now)
        return held

    def _limit(self) -> int:
        config = self._core.config
        ready = self._core.is_ready or self._core.side is Side.CLIENT
        return config.max_unacknowledged if ready else config.max_early_unacknowledged


AT_ONCE = frozenset(CloseCode) - {CloseCode.NO_ERROR, CloseCode.GOING_AWAY}
"""What a connection is closed with without waiting for what was sent to leave."""


def least_head(stream: int) -> int:
    """Return the least bytes of a frame of a stream besides its data: its type and the number."""
    return 2 if stream < 1 << 6 else 3 if stream < 1 << 14 else 5 if stream < 1 << 30 else 9


def shortened(reason: str) -> str:
    """As much of a reason as surely fits the packet that closes a connection."""
    encoded = reason.encode()
    if len(encoded) <= MAX_REASON:
        return reason
    return encoded[: MAX_REASON - 3].decode(errors="ignore") + "…"
