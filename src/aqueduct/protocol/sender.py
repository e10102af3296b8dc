"""The sending half of a channel.

Theory of operation. A sender is OPEN until its application finishes or cancels it; either is said
once on the wire and cannot be taken back. It then waits for CLOSE_RECEIVER, which settles every
message: what was not acked by then is nacked. After that the wire knows the channel no more, but a
sender whose channel is still pending stays CLOSED until its lineage is known, since only then is an
acked message known to be delivered; and one whose handle is still on its way to the application
stays until the application got it.

`TRANSITIONS` is the whole of it. Nothing else assigns a sender's state.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from aqueduct.errors import (
    ChannelClosed,
    ReceiverClosed,
    RemoteProtocolError,
    StreamCode,
    WouldBlock,
)
from aqueduct.errors import CloseCode as Code
from aqueduct.protocol.events import Delivered, End, SenderEnded, Undelivered, Writable
from aqueduct.protocol.flow import check_message
from aqueduct.protocol.lineage import Node
from aqueduct.protocol.link import Link, Owner
from aqueduct.protocol.outgoing import OutgoingStream
from aqueduct.protocol.timers import NEVER
from aqueduct.protocol.unreliable import Outbox
from aqueduct.wire.chanid import describe, is_oneshot
from aqueduct.wire.frames import (
    Attachment,
    CancelSender,
    FinishSender,
    Message,
    SentUnreliable,
    message_head,
)
from aqueduct.wire.primitives import Headers
from aqueduct.wire.ranges import RangeSet


class Mode(Enum):
    """How a sender sends; its own choice (AQ-SEND-3)."""

    ORDERED = "ordered"
    UNORDERED = "unordered"
    UNRELIABLE = "unreliable"


class State(Enum):
    """Where a sender is in its life."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    CLOSED = "closed"
    GONE = "gone"


class Input(Enum):
    """What can happen to a sender."""

    __hash__ = object.__hash__

    SEND = "send"
    FINISH = "finish"
    CANCEL = "cancel"
    CLOSE_RECEIVER = "CLOSE_RECEIVER"
    SETTLE = "settled"
    DROP = "forgotten or lost"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.SEND): State.OPEN,
    (State.OPEN, Input.FINISH): State.FINISHED,
    (State.OPEN, Input.CANCEL): State.CANCELLED,
    (State.OPEN, Input.CLOSE_RECEIVER): State.CLOSED,
    (State.OPEN, Input.DROP): State.GONE,
    (State.FINISHED, Input.FINISH): State.FINISHED,
    (State.FINISHED, Input.CANCEL): State.FINISHED,
    (State.FINISHED, Input.CLOSE_RECEIVER): State.CLOSED,
    (State.FINISHED, Input.DROP): State.GONE,
    (State.CANCELLED, Input.FINISH): State.CANCELLED,
    (State.CANCELLED, Input.CANCEL): State.CANCELLED,
    (State.CANCELLED, Input.CLOSE_RECEIVER): State.CLOSED,
    (State.CANCELLED, Input.DROP): State.GONE,
    (State.CLOSED, Input.FINISH): State.CLOSED,
    (State.CLOSED, Input.CANCEL): State.CLOSED,
    (State.CLOSED, Input.SETTLE): State.GONE,
    (State.CLOSED, Input.DROP): State.GONE,
}
"""What each input does in each state; a missing entry is an error of whoever caused it."""

# For the hot path: a name of the module is found ten times faster than an enum's.
_OPEN: Final = State.OPEN
_ORDERED: Final = Mode.ORDERED


class Sender:
    """One sending half: numbers, streams, credit and the fates of what it sent."""

    __slots__ = (
        "_announce_at",
        "_answer_at",
        "_end",
        "_link",
        "_reliable_acked",
        "_singles",
        "acks_from",
        "attached",
        "channel",
        "control",
        "lingers",
        "mode",
        "next_reliable",
        "node",
        "oneshot",
        "outbox",
        "outstanding",
        "owner",
        "state",
        "stream",
        "wake_at",
        "wanted",
    )

    def __init__(self, link: Link, channel: int, node: Node, owner: Owner, mode: Mode) -> None:
        self._link = link
        self.channel = channel
        self.node = node
        self.owner = owner
        self.mode = mode
        self.oneshot = is_oneshot(channel)
        self.state = State.OPEN
        self.attached = owner is not Owner.NOBODY
        self.lingers = False
        """Whether the peer has done with it, and counts it no more."""
        self.wake_at = NEVER
        self.next_reliable = 0
        self.outstanding = 0
        self.wanted = -1
        """The least size of a message that met a full window and was not given up, or -1."""
        self.outbox: Outbox | None = None
        self.stream: OutgoingStream | None = None
        self.control: OutgoingStream | None = None
        self.acks_from = -1
        """The incoming stream that carries the receiver's control frames."""
        self._singles: dict[int, OutgoingStream] | None = None
        """Streams of one message each, until it is acked: what a cancel has to reset."""
        self._reliable_acked: RangeSet | None = None
        self._announce_at = NEVER
        self._answer_at = NEVER
        self._end: End | None = None

    # -- commands --------------------------------------------------------------------------------

    def send(self, payload: bytes, now: float) -> int:
        """Send a message that is nothing but a payload; the hot path."""
        size = len(payload)
        link = self._link
        limits = link.peer_limits
        stream = self.stream
        if stream is None or self.state is not _OPEN or size > limits.max_message:
            return self._send_otherwise(payload, size, now)
        window = link.send_window
        before = self.outstanding
        outstanding = before + size
        if outstanding > limits.channel_window and before:
            self._block(size)
        if before < window.reserve:
            spare = window.spare(before, size)
            if not window.fits(size, spare):
                self._block(size)
            window.add(size, spare)
        else:
            if (
                window.outstanding + size > window.limit
                and window.outstanding > window.limit - window.base
            ):
                self._block(size)
            window.outstanding += size
        number = self.next_reliable
        self.next_reliable = number + 1
        self.outstanding = outstanding
        run = stream.run
        if run is None:
            run = link.out.begin_run(stream, number)
        run.append(payload)
        return number

    def _send_otherwise(self, payload: bytes, size: int, now: float) -> int:
        """The first message, one that cannot go, or one of another mode."""
        if (
            self.mode is _ORDERED
            or self.state is not _OPEN
            or self.oneshot
            or size > self._link.peer_limits.max_message
        ):
            return self.send_message(payload, (), (), now)[0]
        if self._is_crowded():
            self._block(size)
        if self.mode is Mode.UNRELIABLE:
            frame = message_head(self._next_number(), size) + payload
            if self._link.out.fits_datagram(self.channel, len(frame)):
                return self._send_unreliable(frame, size, now)
        if not self._has_credit(size):
            self._block(size)
        self._charge(size)
        number = self.next_reliable
        self.next_reliable = number + 1
        self._send_apart(number, message_head(number, size) + payload)
        return number

    def send_message(
        self, payload: bytes, headers: Headers, attachments: tuple[Attachment, ...], now: float
    ) -> tuple[int, bool]:
        """Send any message; returns its number and whether it went reliably."""
        self._check_open()
        message = Message(self._next_number(), headers, attachments, payload)
        size = message.size
        check_message(message, size, self._link.peer_limits)
        if self._is_crowded():
            self._block(size)
        if self.mode is Mode.UNRELIABLE:
            frame = message.encode()
            if self._link.out.fits_datagram(self.channel, len(frame)):
                number = self._send_unreliable(frame, size, now)
                if self.oneshot:
                    self.finish(now)
                return number, False
            message = Message(self.next_reliable, headers, attachments, payload)
        if not self._fits(size):
            self._block(size)
        self._move(Input.SEND)
        self._charge(size)
        number = self.next_reliable
        self.next_reliable = number + 1
        if self.oneshot:
            self._send_oneshot(message)
        elif self.mode is Mode.ORDERED:
            # AQ-STREAM-2: one stream for all.
            stream = self.stream or self._open_stream()
            self._link.out.write(stream, message.encode())
        else:
            self._send_apart(number, message.encode())
        return number, True

    def finish(self, now: float) -> None:
        """Say that nothing more comes (AQ-FINISH-1). A no-op once finished, cancelled or closed."""
        if not self._changes(Input.FINISH):
            return
        self._stop_waiting()
        link = self._link
        if self.outbox is None and self.stream is not None:
            stream = self.stream
        else:
            # AQ-FINISH-2: announcements and the finish share the control stream.
            stream = self._control_stream()
            self._announce()
        link.out.write(stream, FinishSender(self.next_reliable).encode())
        link.out.finish(stream)

    def cancel(self, now: float) -> None:
        """Give up as fast as the wire can say it (AQ-CANCEL-1). A no-op once finished or closed."""
        if not self._changes(Input.CANCEL):
            return
        self._stop_waiting()
        out = self._link.out
        self._reset_message_streams(StreamCode.CANCELLED)
        out.drop_datagrams(self.channel)
        if self.outbox is not None:
            # AQ-CANCEL-2: what did arrive can only be acked once it is announced. A frame goes
            # with the end of the stream in any case: an end alone is what transports mislay.
            self._announce(always=True)
            out.finish(self._control_stream())
        stream = self._open()  # AQ-STREAM-8
        out.write(stream, CancelSender().encode())
        out.finish(stream)

    # -- what the peer's receiver says -----------------------------------------------------------

    def handle_acks(self, ranges: tuple[tuple[int, int], ...]) -> list[Node]:
        """ACK_RELIABLE: these arrived. Returns the channels that became accessible."""
        if ranges[-1][1] > self.next_reliable:
            raise RemoteProtocolError(
                "AQ-ACK-2",
                f"message {ranges[-1][1] - 1} acked on {describe(self.channel)}, "
                f"but only {self.next_reliable} were sent",
            )
        acked = self._reliable_acked
        if acked is None:
            acked = self._reliable_acked = RangeSet()
        fresh = [piece for start, stop in ranges for piece in acked.missing(start, stop)]
        accessible: list[Node] = []
        for start, stop in fresh:
            acked.add(start, stop)
            self._forget_singles(start, stop)
            if self.node.waiting is not None:
                children = self.node.release_range(True, start, stop)
                accessible.extend(self.node.acked(children))
        if acked.range_count > self._link.config.max_ranges:
            raise RemoteProtocolError(
                "AQ-LIMIT-6",
                f"the acks on {describe(self.channel)} leave too many gaps",
                Code.LIMIT_EXCEEDED,
            )
        if self.node.accessible and fresh:
            self._emit(Delivered(self.channel, True, tuple(fresh)))
        self.allow()
        return accessible

    def handle_decisions(self, lengths: tuple[int, ...]) -> tuple[list[Node], list[Node]]:
        """ACK_NACK_UNRELIABLE. Returns the channels that became accessible, and the lost ones."""
        if self.outbox is None:
            raise RemoteProtocolError(
                "AQ-UNREL-5", f"nothing was sent unreliably on {describe(self.channel)}"
            )
        pieces, nacked_bytes = self.outbox.decide(lengths)
        if nacked_bytes > self.outstanding:
            raise RemoteProtocolError(
                "AQ-FLOW-5",
                f"bytes dequeued on {describe(self.channel)} were nacked too",
                Code.FLOW_CONTROL,
            )
        accessible: list[Node] = []
        lost: list[Node] = []
        for start, stop, acked in pieces:
            children = self.node.release_range(False, start, stop)
            if acked:
                accessible.extend(self.node.acked(children))
            else:
                lost.extend(children)
        good = tuple((start, stop) for start, stop, acked in pieces if acked)
        bad = tuple((start, stop) for start, stop, acked in pieces if not acked)
        if good:
            if self.node.accessible:
                self._emit(Delivered(self.channel, False, good))
            else:
                self.outbox.keep_acked(good)
        if bad:
            self._emit(Undelivered(self.channel, False, bad))
        self._release(nacked_bytes)  # AQ-FLOW-6
        return accessible, lost

    def handle_dequeued(self, size: int) -> None:
        """DEQUEUED: the peer's application took this many bytes."""
        if size > self.outstanding:
            raise RemoteProtocolError(
                "AQ-FLOW-5",
                f"{size} bytes dequeued of {self.outstanding} on {describe(self.channel)}",
                Code.FLOW_CONTROL,
            )
        self._release(size)

    def handle_close(self, now: float) -> list[Node]:
        """CLOSE_RECEIVER, the end (AQ-CLOSE-5): all open is nacked (AQ-NACK-1).

        Returns the lost channels.
        """
        complete = self._complete()
        was = self.state
        self._move(Input.CLOSE_RECEIVER)
        if was is State.CANCELLED:
            self._end = End.CANCELLED
        elif was is State.FINISHED and complete:
            self._end = End.FINISHED
        else:
            self._end = End.RECEIVER_CLOSED
        self._report_open_as_undelivered()
        if self._answer_at < NEVER:
            self._answer()
        self._stop(StreamCode.CANCELLED)
        return self.node.release_all()

    # -- what the connection says ----------------------------------------------------------------

    def route_back(self, at: float) -> None:
        """Answer the ROUTE_TO that created this half, by the given time (AQ-ROUTE-2)."""
        self._answer_at = at
        self._link.timers.wake(self, at)

    def handle_timer(self, now: float) -> None:
        """Announce datagrams, or answer a ROUTE_TO, as due."""
        if self._announce_at <= now:
            self._announce()
        if self._answer_at <= now:
            self._answer()
        self._wake()

    def make_accessible(self) -> None:
        """The channel is accessible: what was acked on it is delivered (AQ-LIN-6)."""
        if self._reliable_acked:
            self._emit(Delivered(self.channel, True, tuple(self._reliable_acked.ranges())))
        if self.outbox is not None:
            kept = self.outbox.take_acked()
            if kept:
                self._emit(Delivered(self.channel, False, kept))

    def is_open(self) -> bool:
        """Whether nothing has begun to end this half."""
        return self.state is _OPEN

    def is_over(self) -> bool:
        """Whether the wire knows this half no more."""
        return self.state is State.CLOSED or self.state is State.GONE

    @property
    def end(self) -> End | None:
        """How the wire ended this half, if it did."""
        return self._end

    def settle(self) -> bool:
        """After the end on the wire: whether nothing holds this half any more."""
        if self.state is not State.CLOSED or not self.node.accessible or self.owner == Owner.NOBODY:
            return False
        assert self._end is not None
        self._emit(SenderEnded(self.channel, self._end))
        self.owner = Owner.GONE
        self._move(Input.SETTLE)
        return True

    def drop(self, how: End, lineage: tuple[int, ...], now: float) -> list[Node]:
        """Forgotten, lost, or without connection: end at once. Returns the channels below."""
        self._move(Input.DROP)
        if how is End.LOST and self.node.known and self.outstanding:
            link = self._link
            spare = link.send_window.spare(0, self.outstanding)
            link.written_off.add(self.outstanding, now + link.config.forget_interval, spare)
            self.outstanding = 0
        if how is not End.CONNECTION:
            self._stop(StreamCode.FORGOTTEN)
        self._emit(SenderEnded(self.channel, how, lineage))
        self.owner = Owner.GONE
        return self.node.release_all()

    def check_control(self, stream: int) -> None:
        """AQ-STREAM-5: the receiver's frames come on one stream, in order."""
        if self.acks_from == -1:
            self.acks_from = stream
        elif self.acks_from != stream:
            raise RemoteProtocolError(
                "AQ-STREAM-5", f"receiver frames of {describe(self.channel)} on a second stream"
            )

    def room(self) -> int:
        """How many bytes could be sent now."""
        if self.state is not State.OPEN:
            return 0
        room = max(self._link.peer_limits.channel_window - self.outstanding, 0)
        return min(room, self._link.send_window.room(self.outstanding))

    def claim(self) -> None:
        """The application got the handle; it hears of this half from now on."""
        self.owner = Owner.APPLICATION

    def allow(self) -> None:
        """The channel's window may have grown: a message that waits stands in line for room."""
        if self.wanted >= 0 and self._fits_channel(self.wanted):
            self._stand_in_line()

    def admit(self) -> None:
        """It is this sender's turn: tell an application that waits."""
        self._link.turns.leave(self.channel)
        if self._fits_channel(self.wanted):  # else something else was sent since
            self.wanted = -1
            self._emit(Writable(self.channel))

    def give_up(self) -> bool:
        """Nobody waits for room any more; returns whether somebody did."""
        if self.wanted < 0:
            return False
        self._stop_waiting()
        return True

    # -- inside ----------------------------------------------------------------------------------

    def _move(self, event: Input) -> None:
        new = TRANSITIONS.get((self.state, event))
        if new is None:
            raise ChannelClosed(
                f"AQ-SEND-1: {describe(self.channel)} is {self.state.value}: no {event.value}",
                channel=self.channel,
            )
        self.state = new

    def _changes(self, event: Input) -> bool:
        was = self.state
        self._move(event)
        return self.state is not was

    def _check_open(self) -> None:
        if self._end is End.RECEIVER_CLOSED:
            raise ReceiverClosed(
                f"the receiver of {describe(self.channel)} was closed", channel=self.channel
            )
        if (self.state, Input.SEND) not in TRANSITIONS:
            self._move(Input.SEND)

    def _next_number(self) -> int:
        if self.mode is Mode.UNRELIABLE:
            return self.outbox.next_number if self.outbox is not None else 0
        return self.next_reliable

    def _fits(self, size: int) -> bool:
        return self._fits_channel(size) and self._fits_connection(size)

    def _fits_connection(self, size: int) -> bool:
        window = self._link.send_window
        return window.fits(size, window.spare(self.outstanding, size))

    def _fits_channel(self, size: int) -> bool:
        if self._is_crowded():
            return False
        limit = self._link.peer_limits.channel_window
        return self.outstanding + size <= limit or self.outstanding == 0  # AQ-FLOW-3

    def _has_credit(self, size: int) -> bool:
        """`_fits` of a sender that is not crowded."""
        outstanding = self.outstanding
        limit = self._link.peer_limits.channel_window
        if outstanding + size > limit and outstanding:
            return False
        return self._fits_connection(size)

    def _is_crowded(self) -> bool:
        """Whether the peer owes so many acks that remembering more would be a leak (AQ-LIMIT-6)."""
        undecided = len(self.outbox.sizes) if self.outbox is not None else 0
        unacked = len(self._singles) if self._singles is not None else 0
        return max(undecided, unacked, self.node.size()) >= self._link.config.max_ranges

    def _block(self, size: int) -> None:
        # Several may wait: the least is told first, and then all try again.
        self.wanted = size if self.wanted < 0 else min(size, self.wanted)
        if self._fits_channel(size):
            self._stand_in_line()
            raise WouldBlock("the connection window is full; wait until the peer takes messages")
        raise WouldBlock(
            f"the window of {describe(self.channel)} is full; wait until the peer takes messages"
        )

    def _stand_in_line(self) -> None:
        window = self._link.send_window
        spare = window.spare(self.outstanding, self.wanted)  # AQ-FLOW-10
        self._link.turns.wait(self.channel, self.wanted, spare)

    def _charge(self, size: int) -> None:
        window = self._link.send_window
        window.add(size, window.spare(self.outstanding, size))
        self.outstanding += size

    def _release(self, size: int) -> None:
        window = self._link.send_window
        self.outstanding -= size
        window.remove(size, window.spare(self.outstanding, size))
        self.allow()

    def _open(self, *, is_message: bool = False) -> OutgoingStream:
        self.node.known = True
        return self._link.out.open(self.channel, is_message=is_message)

    def _open_stream(self) -> OutgoingStream:
        self.stream = self._open(is_message=True)
        return self.stream

    def _control_stream(self) -> OutgoingStream:
        if self.control is None:
            self.control = self._open()
        return self.control

    def _send_apart(self, number: int, frame: bytes) -> None:
        """AQ-STREAM-3: a stream of its own."""
        stream = self._open(is_message=True)
        if self._singles is None:
            self._singles = {}
        self._singles[number] = stream
        self._link.out.write(stream, frame)
        self._link.out.finish(stream)

    def _send_oneshot(self, message: Message) -> None:
        # AQ-SEND-5: the message and the finish, in one stream.
        self._move(Input.FINISH)
        self._stop_waiting()
        stream = self._open_stream()
        out = self._link.out
        out.write(stream, message.encode() + FinishSender(1).encode())
        out.finish(stream)

    def _send_unreliable(self, frame: bytes, size: int, now: float) -> int:
        self._move(Input.SEND)
        if self.outbox is None:
            self.outbox = Outbox()
        out = self._link.out
        while not self._has_credit(size):
            # AQ-UNREL-6: the oldest unsent goes first; its number is announced all the same.
            dropped = out.drop_oldest_datagram(self.channel)
            if dropped is None:
                number = self.outbox.add(0)
                self._link.dropped += 1
                self._announce_soon(now)
                return number
            self._link.dropped += dropped[1] - dropped[0]
            # A peer may decide what was announced and has not left.
            for number in range(max(dropped[0], self.outbox.decided), dropped[1]):
                self._release(self.outbox.forgo(number))
        number = self.outbox.add(size)
        self._charge(size)
        self.node.known = True
        out.add_to_datagram(self.channel, number, frame)
        self._announce_soon(now)
        return number

    def _answer(self) -> None:
        self._answer_at = NEVER
        if not self.node.known:
            self._link.out.finish(self._open())

    def _announce_soon(self, now: float) -> None:
        if self._announce_at == NEVER:
            self._announce_at = now + self._link.config.announce_delay
            self._wake()

    def _announce(self, *, always: bool = False) -> None:
        # AQ-UNREL-1
        self._announce_at = NEVER
        if self.outbox is None:
            return
        count = self.outbox.unannounced()
        if count or always:
            self.outbox.announced += count
            self._link.out.write(self._control_stream(), SentUnreliable(count).encode())

    def _wake(self) -> None:
        at = min(self._announce_at, self._answer_at)
        if at < NEVER:
            self._link.timers.wake(self, at)

    def _forget_singles(self, start: int, stop: int) -> None:
        if not self._singles:
            return
        if stop - start <= len(self._singles):
            for number in range(start, stop):
                self._singles.pop(number, None)
        else:
            for number in [n for n in self._singles if start <= n < stop]:
                del self._singles[number]

    def _complete(self) -> bool:
        acked = self._reliable_acked.count if self._reliable_acked is not None else 0
        decided = self.outbox is None or self.outbox.decided == self.outbox.next_number
        return acked == self.next_reliable and decided

    def _report_open_as_undelivered(self) -> None:
        acked = self._reliable_acked or RangeSet()
        open_reliable = tuple(acked.missing(0, self.next_reliable))
        if open_reliable:
            self._emit(Undelivered(self.channel, True, open_reliable))
        if self.outbox is not None and self.outbox.decided < self.outbox.next_number:
            open_unreliable = ((self.outbox.decided, self.outbox.next_number),)
            self._emit(Undelivered(self.channel, False, open_unreliable))

    def _reset_message_streams(self, code: StreamCode) -> None:
        out = self._link.out
        if self.stream is not None:
            out.reset(self.stream, code)
        if self._singles:
            for stream in self._singles.values():
                out.reset(stream, code)
            self._singles = None

    def _stop(self, code: StreamCode) -> None:
        """End everything that is under way for this channel."""
        link = self._link
        if self.state is not State.CLOSED or self._end is not End.FINISHED:
            self._reset_message_streams(code)
            if self.control is not None:
                link.out.reset(self.control, code)
        if self.outbox is not None:
            link.out.drop_datagrams(self.channel)
        self.wake_at = self._announce_at = self._answer_at = NEVER
        window = link.send_window
        window.remove(self.outstanding, window.spare(0, self.outstanding))
        self.outstanding = 0
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self.wanted >= 0:
            self.wanted = -1
            self._link.turns.leave(self.channel)

    def _emit(self, event: Delivered | Undelivered | SenderEnded | Writable) -> None:
        if self.owner is Owner.APPLICATION:
            self._link.events.append(event)
