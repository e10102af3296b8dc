"""One QMux connection: turns the core's actions into records, and records into its inputs.

The engine has no socket, no encryption and no clock: plaintext and the time are arguments, so that
tests run it in virtual time. TCP delivers in order and TLS authenticates, so there is nothing to
acknowledge or to reassemble. The core's own windows bound what a peer can make this side hold;
records are always read (AQ-TCP-4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import Action, ResetStream, Room, SendDatagram, WriteStream
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.transport.address import Address, format_address
from aqueduct.transport.base import IMMEDIATE_CLOSE_CODES, shortened
from aqueduct.transport.liveness import NEVER, Liveness, Verdict
from aqueduct.transport.stream_credit import MAX_EARLY_STREAMS, StreamCredit
from aqueduct.transport.tcp.records import (
    MAX_INTEGER,
    MAX_RECORD,
    MIN_RECORD,
    Close,
    Datagram,
    Frame,
    Parameters,
    Ping,
    RecordReader,
    RecordWriter,
    StreamData,
    StreamLimit,
    StreamReset,
    datagram_head,
    decode_frame,
    encode_frame,
    stream_head,
)
from aqueduct.wire.chanid import Side

WINDOW: Final = 256 * 1024
"""Bytes that may wait for the socket, where nothing can overtake them."""
URGENT: Final = 64 * 1024
"""Bytes beyond that for datagrams and frames that carry no message."""
_QUANTUM: Final = 32 * 1024
"""Bytes of a sender's turn: the most that AQ-PRIO-3 allows."""
_PORTION: Final = MAX_RECORD - 64
"""Bytes that are taken from the core at once: with their heads they fill one record, and four
records of TLS."""
_PIECES: Final = 256
"""Maximum writes per flush; the rest waits for the next turn of the event loop."""
FRAMES: Final = 256
"""Maximum frames of the peer per turn of the event loop; the rest waits, so that a peer with tiny
frames does not delay other connections for longer than one with large ones."""

_DATAGRAM_HEAD = 3
MAX_DATAGRAM: Final = MIN_RECORD - _DATAGRAM_HEAD
"""Bytes of the largest datagram: one TLS record carries it."""
_STREAM_HEAD = 1 + 3 * 8
"""Bytes of the longest head of a STREAM frame."""
_STATED_DATAGRAM = 65_535
_UNIDIRECTIONAL = 2

PING_EVERY: Final = 0.05
"""Seconds between two pings while this side sends. Their answers measure the round-trip time; a
missing answer shows that data is delayed."""
_RETRANSMISSION = 0.2
"""The minimum retransmission timeout of TCP, in seconds."""


class QmuxEngine:
    """One connection: a protocol core, and the records of its peer."""

    def __init__(
        self, core: ConnectionCore, peer: Address, idle_timeout: float, keep_alive: float | None
    ) -> None:
        self.core = core
        self.observer: Observer | None = None
        self.before_end: Callable[[], None] | None = None
        """Called before the core is notified that the connection is lost."""
        self.when_ready: Callable[[], None] | None = None
        """Called when the headers were exchanged and the connection was accepted."""
        self.is_started = False
        self.has_ended = False
        """Whether the connection is over, for either side."""
        self.has_closed = False
        """Whether the close of this side was written."""
        self.has_more = False
        """Whether the last flush stopped at its limits, with data left that there is room for."""
        self.heard_at = 0.0
        """When bytes of the peer last arrived."""
        self.idle_timeout = idle_timeout
        self.peer_idle_timeout: float | None = None
        self.round_trip = 0.0
        """The smoothed round-trip time; 0 while it is unknown."""
        self._peer = peer
        self._liveness = Liveness(self, keep_alive, core.side)
        self._output = core.output
        self._reader = RecordReader()
        self._rest: tuple[bytes, int, int] | None = None
        """The unprocessed rest of a record: its bytes, the position and the end."""
        self._is_behind = self._was_behind = False
        self._writer = RecordWriter()
        self._is_early = True
        """Whether the headers were not exchanged yet."""
        self._has_parameters = False
        self._has_failed = False
        """Whether the peer broke a rule, so that the rest of its input is not processed."""
        self._unseen = 0
        """Bytes of an unaccepted client's frames without data (AQ-COST-3)."""
        self._credit = StreamCredit()
        self._credit.set_limit(MAX_EARLY_STREAMS)  # AQ-TCP-8
        self._sent: dict[int, tuple[int, int]] = {}
        """The open streams of the core: QMux's number of each, and its bytes so far."""
        self._received: dict[int, int] = {}
        """The open streams of the peer by QMux's number: the bytes of each so far."""
        self._opened_by_peer = self._ended_by_peer = 0
        self._most_streams = self._stated_streams = core.config.max_streams
        """How many streams the peer may have open, and how many it may open in total."""
        self._states_streams = False
        """Whether that total has grown and was not sent yet."""
        self._ping = 0
        """The number of the last ping."""
        self._pinged_at = -1.0
        """When the last ping was written; -1 once it is answered."""
        self._ping_due_at = 0.0
        self._wants_ping = False
        self._to_answer = -1
        """The number of the peer's last ping, until it is answered."""
        self._least_round_trip = NEVER
        self._written = self._written_at_ping = self._arrived = 0
        """The number of actions of the core that were written, that were written before the last
        ping, and that the peer has received, as the answer to a ping proves."""

    # -- inputs -----------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Write this side's parameters (AQ-TCP-4). Called once TLS is established."""
        self.is_started = True
        self._writer.add(
            encode_frame(
                Parameters(
                    idle_timeout=max(1, round(1_000 * self.idle_timeout)),
                    max_data=MAX_INTEGER,
                    max_stream_data=MAX_INTEGER,
                    max_streams=self._stated_streams,
                    max_datagram=_STATED_DATAGRAM,
                    max_record=MAX_RECORD,
                )
            )
        )
        self._wants_ping = True
        self._liveness.start(now)
        self.core.handle_datagram_limit(MAX_DATAGRAM)

    def receive(self, data: bytes | memoryview, now: float) -> None:
        """Handle decrypted bytes of the peer."""
        if self.has_ended or self._has_failed:
            return
        self.heard_at = now
        self._reader.feed(data)
        self.resume(now)

    def resume(self, now: float) -> None:
        """Process up to `FRAMES` of the received frames."""
        if self._is_behind:
            self.heard_at = now  # what is processed now came before, and the socket is not read
            self._is_behind = False
        left = FRAMES
        try:
            while not (self.has_ended or self._has_failed):
                record = self._rest or self._reader.next()
                if record is None:
                    return
                if not left:
                    self._rest = record
                    self._is_behind = self._was_behind = True
                    return
                self._rest = None
                left = self._read(*record, now, left)
        except RemoteProtocolError as error:
            self._has_failed = True
            self._fail(error, now)

    def handle_timer(self, now: float) -> None:
        """Handle the timers of the core and of this connection that are due."""
        if self.has_ended:
            return
        due = self.core.next_timer()
        if due is not None and due <= now:
            self.core.handle_timer(now)
        if self._liveness.due_at <= now:
            self._check_peer(now)

    def handle_end_of_input(self, cause: str, now: float) -> None:
        """End the connection: TCP has ended without a close (AQ-TCP-11)."""
        peer = format_address(self._peer)
        why = f" ({cause})" if cause else ""
        self.lose(CloseCode.IDLE, f"{peer} disconnected without a close{why}", now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` is due."""
        at = self._liveness.due_at
        core = self.core.next_timer()
        if core is not None and core < at:
            at = core
        return at if at < NEVER else None

    # -- outputs ----------------------------------------------------------------------------------

    def flush(self, now: float, backlog: int) -> list[bytes]:
        """Return the records to send; ``backlog`` bytes wait for the socket already."""
        self.has_more = False
        if self._is_early and self.core.is_ready:
            self._is_early = False
            if self.when_ready is not None:
                self.when_ready()
        if self.has_ended or self.has_closed:
            self._output.clear()
        elif self.is_started:
            self._write_actions(now, backlog)
            if backlog < WINDOW + URGENT:  # bounds the queue for a peer that does not read
                self._write_news(now)
        elif self.core.has_ended:
            self.has_closed = True  # the peer cannot read a close yet
        return self._writer.take()

    def is_drained(self) -> bool:
        """Return whether the peer has received all that the core wrote; if unknown, ping it."""
        if self._output.is_waiting or not self.is_started:
            return False
        if self._arrived < self._written:
            self._wants_ping = True
            return False
        return True

    @property
    def is_behind(self) -> bool:
        """Whether frames wait for `resume`; until then the caller must not read more input."""
        return self._is_behind and not (self.has_ended or self._has_failed)

    @property
    def wants_flush(self) -> bool:
        """Whether a ping or its answer has to be sent."""
        return self._to_answer >= 0 or (self._wants_ping and self._pinged_at < 0.0)

    def release(self) -> None:
        """Free the memory of a connection that has ended."""
        self.has_ended = True
        self._output.clear()
        self._sent.clear()
        self._received.clear()
        self._rest = None
        self._reader = RecordReader()
        self.before_end = self.when_ready = None
        self._liveness.stop()

    def probe_timeout(self) -> float:
        """Return the seconds to wait for the answer to a ping, including one retransmission."""
        return 3 * self.round_trip + _RETRANSMISSION

    def statistics(self) -> dict[str, float]:
        """Return counters of this connection; 0 for those that the kernel does not report."""
        return {
            "rtt": self.round_trip,
            "lost_packets": 0,
            "congestion_window": 0,
            "bytes_in_flight": 0,
            "streams": len(self._sent),
            "send_buffer": self._output.size,
        }

    # -- writing ----------------------------------------------------------------------------------

    def _write_actions(self, now: float, backlog: int) -> None:
        output = self._output
        closing = output.closing
        if closing is not None and closing.code in IMMEDIATE_CLOSE_CODES:
            output.clear()
        room = Room()
        left = WINDOW - backlog
        room.urgent = max(0, min(left, 0) + URGENT)
        room.quantum, room.writes = _QUANTUM, _PIECES
        self._credit.measure(room, is_early=self._is_early)
        left = max(0, left)
        count = 0
        while True:
            room.bytes = portion = min(left, _PORTION)
            actions = self.core.poll_actions(room)
            count += len(actions)
            for action in actions:
                self._write_action(action, now)
            left -= portion - room.bytes
            if room.bytes > 0 or room.writes <= 0 or left < _PORTION:
                break
        self._written += count
        self.has_more = bool(count) and output.is_waiting and not self.has_closed
        if count and now >= self._ping_due_at:
            self._wants_ping = True

    def _write_action(self, action: Action, now: float) -> None:
        if isinstance(action, WriteStream):
            self._write_stream(action)
        elif isinstance(action, SendDatagram):
            if not self._is_late(now):  # AQ-TCP-10: else it counts as lost
                self._writer.add(datagram_head(len(action.data)), action.data)
                if self.observer is not None:
                    self.observer.datagram_written(action.data)
        elif isinstance(action, ResetStream):
            self._reset_stream(action)
        else:
            self.has_closed = True
            self._writer.add(encode_frame(Close(action.code, shortened(action.reason))))

    def _write_stream(self, write: WriteStream) -> None:
        sent = self._sent.get(write.stream)
        if sent is None:
            number = self._credit.opened
            self._credit.opened = number + 1
            sent = number << 2 | _UNIDIRECTIONAL | self.core.side, 0
        stream, offset = sent
        data = write.data
        if self.observer is not None:
            self.observer.stream_written(stream, data, write.fin)
        size = len(data)
        most = self._writer.largest - _STREAM_HEAD
        if size <= most:
            self._writer.add(stream_head(stream, offset, size, write.fin), data)
        else:
            view = memoryview(data)  # no copies: a frame that opens a channel may be large
            for at in range(0, size, most):
                piece = view[at : at + most]
                fin = write.fin and at + most >= size
                self._writer.add(stream_head(stream, offset + at, len(piece), fin), piece)
        if write.fin:
            self._sent.pop(write.stream, None)
        else:
            self._sent[write.stream] = stream, offset + size

    def _reset_stream(self, action: ResetStream) -> None:
        sent = self._sent.pop(action.stream, None)
        if sent is None:
            return  # the stream is finished: all its data was written
        stream, size = sent
        self._writer.add(encode_frame(StreamReset(stream, action.code, size)))
        if self.observer is not None:
            self.observer.reset_written(stream, action.code)

    def _write_news(self, now: float) -> None:
        """Write a due stream limit, the answer to a ping, and a ping unless one is unanswered."""
        if self.has_closed:
            return
        if self._states_streams:
            self._states_streams = False
            self._writer.add(encode_frame(StreamLimit(self._stated_streams)))
        if self._to_answer >= 0:
            self._writer.add(encode_frame(Ping(self._to_answer, is_answer=True)))
            self._to_answer = -1
        if self._wants_ping and self._pinged_at < 0.0:
            self._wants_ping = False
            self._ping += 1
            self._pinged_at = now
            self._was_behind = self._is_behind
            self._ping_due_at = now + PING_EVERY
            self._written_at_ping = self._written
            self._writer.add(encode_frame(Ping(self._ping, is_answer=False)))

    def _is_late(self, now: float) -> bool:
        """Return whether a datagram written now would miss the receipt deadline (AQ-TCP-10)."""
        if self._pinged_at < 0.0 or self._was_behind:
            return False  # the answer may wait in the input of this side
        config = self.core.config
        deadline = config.receipt_deadline_max
        if self._least_round_trip < NEVER:
            twice = max(config.receipt_deadline_min, 2 * self._least_round_trip)
            deadline = min(deadline, twice) + self._least_round_trip
        return now - self._pinged_at > deadline

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, data: bytes, at: int, end: int, now: float, left: int) -> int:
        """Process up to ``left`` frames of a record; return how many the turn has left."""
        core, observer = self.core, self.observer
        while at < end and not (self.has_ended or self._has_failed):
            if not left:
                self._rest = data, at, end
                break
            left -= 1
            start = at
            frame, at = decode_frame(data, at, end)
            if type(frame) is StreamData and self._has_parameters:
                if self._is_early and not frame.data:
                    self._count_unseen(at - start)
                self._read_stream(frame, now)
            elif type(frame) is Datagram and self._has_parameters:
                if observer is not None:
                    observer.datagram_read(frame.data)
                core.handle_datagram(frame.data, now)
            else:
                if self._is_early:
                    self._count_unseen(at - start)
                self._read_rare(frame, now)
        return left

    def _count_unseen(self, size: int) -> None:
        """Limit frames without data before acceptance: reading them costs time (AQ-COST-3)."""
        self._unseen += size
        if self._unseen > self.core.config.max_unseen and self.core.side is Side.SERVER:
            raise RemoteProtocolError(
                "AQ-COST-3", "too many bytes without data before headers", CloseCode.LIMIT_EXCEEDED
            )

    def _read_stream(self, frame: StreamData, now: float) -> None:
        stream = frame.stream
        if not stream & _UNIDIRECTIONAL:
            self._has_failed = True
            self.core.handle_bidirectional_stream(now)
            return
        offset = self._received.get(stream)
        if offset is None:
            offset = self._open(stream)
        if frame.offset != offset:
            raise RemoteProtocolError(
                "AQ-TCP-7", f"stream {stream} continues at {frame.offset} and not at {offset}"
            )
        if frame.fin:
            self._end_stream(stream)
        else:
            self._received[stream] = offset + len(frame.data)
        if self.observer is not None:
            self.observer.stream_read(stream, frame.data, frame.fin)
        self.core.handle_stream_data(stream, frame.data, frame.fin, now)

    def _open(self, stream: int) -> int:
        """Open a stream of the peer, which has to be its next one; return its offset."""
        if stream != self._opened_by_peer << 2 | _UNIDIRECTIONAL | self.core.side.other:
            raise RemoteProtocolError("AQ-TCP-7", f"stream {stream} is not the next one")
        if self._opened_by_peer >= self._stated_streams:
            raise RemoteProtocolError(
                "AQ-TCP-8", "too many streams at once", CloseCode.LIMIT_EXCEEDED
            )
        self._opened_by_peer += 1
        self._received[stream] = 0
        return 0

    def _end_stream(self, stream: int) -> None:
        """Count a stream of the peer that has ended, and allow another one (AQ-TCP-8)."""
        del self._received[stream]
        self._ended_by_peer += 1
        limit = self._ended_by_peer + self._most_streams
        if limit - self._stated_streams >= max(1, self._most_streams // 4):
            self._stated_streams = limit
            self._states_streams = True

    def _read_rare(self, frame: Frame, now: float) -> None:
        if isinstance(frame, Close):
            self._end(
                frame.code if frame.by_application else CloseCode.TRANSPORT, frame.reason, True, now
            )
        elif isinstance(frame, Parameters):
            self._read_parameters(frame, now)
        elif not self._has_parameters:
            raise RemoteProtocolError("AQ-TCP-4", "the first frame does not state the parameters")
        elif isinstance(frame, Ping):
            if frame.is_answer:
                self._read_answer(frame.number, now)
            else:
                self._to_answer = max(frame.number, self._to_answer)
        elif isinstance(frame, StreamReset):
            self._read_reset(frame, now)
        elif isinstance(frame, StreamLimit):
            self._credit.set_limit(max(frame.streams, self._credit.limit))

    def _read_parameters(self, stated: Parameters, now: float) -> None:
        if self._has_parameters:
            raise RemoteProtocolError("AQ-TCP-4", "the parameters were stated twice")
        self._has_parameters = True
        if stated.max_record < MIN_RECORD:
            raise RemoteProtocolError("AQ-TCP-3", f"max_record_size is below {MIN_RECORD}")
        if stated.max_data < MAX_INTEGER or stated.max_stream_data < MAX_INTEGER:
            raise RemoteProtocolError("AQ-TCP-4", "the peer limits the bytes of streams")
        self._writer.set_limit(stated.max_record)
        self._credit.set_limit(max(stated.max_streams, MAX_EARLY_STREAMS))
        if stated.idle_timeout:
            self.peer_idle_timeout = stated.idle_timeout / 1_000
        largest = min(MAX_DATAGRAM, stated.max_datagram - _DATAGRAM_HEAD)
        if largest <= 0:
            raise RemoteProtocolError("AQ-CONN-8", "the peer takes no datagrams")
        self.core.handle_datagram_limit(largest)
        self._liveness.start(now)  # the idle timeout may be shorter now

    def _read_answer(self, number: int, now: float) -> None:
        if number != self._ping or self._pinged_at < 0.0:
            raise RemoteProtocolError("AQ-TCP-9", f"ping {number} is not outstanding")
        took = max(now - self._pinged_at, 0.0)
        self._pinged_at = -1.0
        self._arrived = self._written_at_ping
        if self._was_behind and self.round_trip:
            return  # it took longer to process than to arrive
        self._least_round_trip = min(self._least_round_trip, took)
        self.round_trip = self.round_trip * 7 / 8 + took / 8 if self.round_trip else took
        self.core.handle_rtt(self.round_trip, self._least_round_trip)

    def _read_reset(self, frame: StreamReset, now: float) -> None:
        stream = frame.stream
        if stream not in self._received:
            self._open(stream)
        self._end_stream(stream)
        if self.observer is not None:
            self.observer.reset_read(stream, frame.code)
        self.core.handle_stream_reset(stream, frame.code, now)

    # -- the end ----------------------------------------------------------------------------------

    def _check_peer(self, now: float) -> None:
        """Ping a silent peer, or end the connection with a dead one (AQ-IDLE-1, AQ-IDLE-2)."""
        verdict = self._liveness.check(now)
        if verdict is Verdict.PING:
            self._wants_ping = True
        elif verdict is Verdict.DEAD:
            peer, silence = format_address(self._peer), self._liveness.silence(now)
            self._writer.add(encode_frame(Close(CloseCode.IDLE, "idle timeout")))
            self.lose(CloseCode.IDLE, f"nothing came from {peer} for {silence:.1f} s", now)

    def _fail(self, error: RemoteProtocolError, now: float) -> None:
        """Close the connection with a peer that broke a rule (AQ-CODE-3)."""
        if self.core.has_ended:
            self._output.clear()  # the close that is queued behind this output must leave
        else:
            self.core.close_connection(error.code, str(error), now)

    def lose(self, code: int, reason: str, now: float) -> None:
        """End the connection because TCP or TLS failed."""
        self._end(code, reason, False, now)

    def _end(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._liveness.stop()
        if self.before_end is not None and not self.core.has_ended:
            self.before_end()
        self.core.handle_connection_lost(code, reason, by_peer, now)
