"""The sending half of a channel: numbers, streams, credit, and the fate of each message."""

from __future__ import annotations

from typing import Final

from aqueduct.errors import (
    CloseCode,
    LocalProtocolError,
    RemoteProtocolError,
    StreamCode,
    WouldBlock,
)
from aqueduct.protocol.events import Delivered, End, SenderEnded, Undelivered, Writable
from aqueduct.protocol.flow import check_message
from aqueduct.protocol.half import Context, Ownership
from aqueduct.protocol.lineage import Node
from aqueduct.protocol.modes import Mode, hinted_mode
from aqueduct.protocol.outgoing_stream import OutgoingStream, SenderFlow, remove_range
from aqueduct.protocol.sender_states import SenderInput, SenderState, SenderStateMachine
from aqueduct.protocol.timers import NEVER
from aqueduct.protocol.unreliable import SentDatagrams
from aqueduct.wire.chanid import describe, is_oneshot
from aqueduct.wire.frames import (
    Attachment,
    CancelSender,
    FinishSender,
    MessageFrame,
    SentUnreliable,
    message_head,
)
from aqueduct.wire.primitives import HeaderPairs
from aqueduct.wire.ranges import RangeSet

# For the hot path: Python finds a module's name ten times faster than an enum's member.
_OPEN: Final = SenderState.OPEN
_ORDERED: Final = Mode.ORDERED
_UNRELIABLE: Final = Mode.UNRELIABLE


class SendingHalf(SenderStateMachine):
    """The sending half of one channel."""

    __slots__ = (
        "_announce_at",
        "_answer_at",
        "_drop_at",
        "_reliable_acked",
        "_singles",
        "acks_from",
        "datagrams",
        "flow",
        "mode",
        "next_reliable",
        "node",
        "oneshot",
        "outstanding",
        "stream",
        "wanted",
    )

    def __init__(
        self, context: Context, channel: int, node: Node, owner: Ownership, mode: Mode
    ) -> None:
        super().__init__(context, channel, owner)
        self.state = _OPEN
        self.node = node
        self.mode = mode
        self.flow = SenderFlow()
        """What waits of its messages, with its priority."""
        self.oneshot = is_oneshot(channel)
        self.next_reliable = 0
        self.outstanding = 0
        self.wanted = -1
        """The smallest message that waits for room, or -1 if none does."""
        self.datagrams: SentDatagrams | None = None
        self.stream: OutgoingStream | None = None
        self.acks_from = -1
        """The incoming stream that carries the receiver's control frames."""
        self._singles: dict[int, OutgoingStream] | None = None
        """Streams of one message each, until it is acked: a cancel resets them."""
        self._reliable_acked: RangeSet | None = None
        self._announce_at = NEVER
        self._answer_at = NEVER
        self._drop_at = NEVER
        """When to stop waiting for the last acks, after FORGET_CHANNEL."""

    # -- commands --------------------------------------------------------------------------------

    def send(self, payload: bytes, now: float) -> int:
        """Send a message without headers and channels; the hot path."""
        size = len(payload)
        credit = self._credit
        limits = credit.peer_limits
        stream = self.stream
        if stream is None or self.state is not _OPEN or size > limits.max_message:
            return self._send_otherwise(payload, size, now)
        window = credit.send_window
        before = self.outstanding
        outstanding = before + size
        if outstanding > credit.growth.window and before:
            self._block(size)
        total = window.outstanding + size
        free = window.reserve - before
        if total > window.limit and not window.fits(size, window.spare(before, size)):
            self._block(size)
        window.outstanding = total
        if free > 0:
            window.reserved = reserved = window.reserved + (size if size < free else free)
            window.limit = window.base + (reserved if reserved < window.pool else window.pool)
        number = self.next_reliable
        self.next_reliable = number + 1
        self.outstanding = outstanding
        run = stream.run
        if run is None:
            run = self._context.out.begin_run(stream, number)
        run.append(payload)
        return number

    def _send_otherwise(self, payload: bytes, size: int, now: float) -> int:
        """Send the first message, one that cannot leave now, or one of another mode."""
        if (
            self.mode is _ORDERED
            or self.state is not _OPEN
            or self.oneshot
            or size > self._credit.peer_limits.max_message
        ):
            return self.send_message(payload, (), (), now)[0]
        if self._owes_too_many_acks():
            self._block(size)
        if self.mode is _UNRELIABLE:
            frame = message_head(self._next_number(), size) + payload
            if self._context.out.fits_datagram(self.channel, len(frame)):
                return self._send_unreliable(frame, size, now)
        if not self._credit.fits(self.outstanding, size):
            self._block(size)
        self.outstanding = self._credit.charge(self.outstanding, size)
        number = self.next_reliable
        self.next_reliable = number + 1
        self._send_apart(number, message_head(number, size) + payload)
        return number

    def send_message(
        self, payload: bytes, headers: HeaderPairs, attachments: tuple[Attachment, ...], now: float
    ) -> tuple[int, bool]:
        """Send any message; return its number and whether it was sent reliably."""
        self._check_open()
        message = MessageFrame(self._next_number(), headers, attachments, payload)
        size = message.size
        check_message(message, size, self._credit.peer_limits)
        if self._owes_too_many_acks():
            self._block(size)
        if self.mode is _UNRELIABLE:
            frame = message.encode()
            if self._context.out.fits_datagram(self.channel, len(frame)):
                number = self._send_unreliable(frame, size, now)
                if self.oneshot:
                    self.finish(now)
                return number, False
            message = MessageFrame(self.next_reliable, headers, attachments, payload)
        if not self._credit.fits(self.outstanding, size):
            self._block(size)
        self._move(SenderInput.SEND)
        self.outstanding = self._credit.charge(self.outstanding, size)
        number = self.next_reliable
        self.next_reliable = number + 1
        if self.oneshot:
            self._send_oneshot(message)
        elif self.mode is Mode.ORDERED:
            # AQ-STREAM-2: one stream for all.
            stream = self.stream or self._open_stream()
            self._context.out.write(stream, message.encode())
        else:
            self._send_apart(number, message.encode())
        return number, True

    def finish(self, now: float) -> None:
        """Announce the end (AQ-FINISH-1). No-op once finished, cancelled or closed."""
        if not self._changes(SenderInput.FINISH):
            return
        self._stop_waiting()
        out = self._context.out
        if self.datagrams is None and self.stream is not None:
            stream = self.stream
        else:
            # AQ-FINISH-2: announcements and the finish share the control stream.
            stream = self._control_stream()
            self._announce()
        frame = FinishSender(self.next_reliable).encode()
        announcement = b""
        if self.datagrams is not None and (unsent := self.datagrams.unannounced()):
            self.datagrams.announced += unsent
            announcement = SentUnreliable(unsent).encode()
        self._announce_at = NEVER
        out.finish_behind(stream, self.flow, self.channel, frame, announcement)

    def cancel(self, now: float) -> None:
        """Discard what has not arrived (AQ-CANCEL-1). No-op once finished, cancelled or closed."""
        if not self._changes(SenderInput.CANCEL):
            return
        self._stop_waiting()
        out = self._context.out
        self._reset_message_streams(StreamCode.CANCELLED)
        out.drop_datagrams(self.channel)
        if self.datagrams is not None:
            # AQ-CANCEL-2: the peer can ack what arrived only once it is announced. Send a frame
            # with the end of the stream in any case: some transports lose an end alone.
            self._announce(always=True)
            out.finish(self._control_stream())
        stream = self._open()  # AQ-STREAM-8
        out.write(stream, CancelSender().encode())
        out.finish(stream)

    # -- frames of the peer's receiver -----------------------------------------------------------

    def handle_acks(self, ranges: tuple[tuple[int, int], ...]) -> list[Node]:
        """Process ACK_RELIABLE; return the channels that became accessible."""
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
            if self._singles:
                remove_range(self._singles, start, stop, self._context.out.unacked)
            if self.node.waiting is not None:
                children = self.node.release_range(True, start, stop)
                accessible.extend(self.node.acked(children))
        if acked.range_count > self._context.config.max_ranges:
            raise RemoteProtocolError(
                "AQ-LIMIT-6",
                f"the acks on {describe(self.channel)} leave too many gaps",
                CloseCode.LIMIT_EXCEEDED,
            )
        if self.node.accessible and fresh:
            self._emit(Delivered(self.channel, True, tuple(fresh)))
        self.allow()
        return accessible

    def handle_decisions(self, lengths: tuple[int, ...]) -> tuple[list[Node], list[Node]]:
        """Process ACK_NACK_UNRELIABLE; return the channels that became accessible, and the lost."""
        if self.datagrams is None:
            raise RemoteProtocolError(
                "AQ-UNREL-5", f"nothing was sent unreliably on {describe(self.channel)}"
            )
        good, bad, nacked_bytes = self.datagrams.decide(lengths)
        if nacked_bytes > self.outstanding:
            raise RemoteProtocolError(
                "AQ-FLOW-5",
                f"bytes dequeued on {describe(self.channel)} were nacked too",
                CloseCode.FLOW_CONTROL,
            )
        accessible: list[Node] = []
        lost: list[Node] = []
        for start, stop in good:
            accessible.extend(self.node.acked(self.node.release_range(False, start, stop)))
        for start, stop in bad:
            lost.extend(self.node.release_range(False, start, stop))
        if good:
            if self.node.accessible:
                self._emit(Delivered(self.channel, False, good))
            else:
                self.datagrams.keep_acked(good)
        if bad:
            self._emit(Undelivered(self.channel, False, bad))
        self._release(nacked_bytes)  # AQ-FLOW-6
        return accessible, lost

    def handle_dequeued(self, size: int, now: float) -> None:
        """Process DEQUEUED: the peer's application took this many bytes."""
        if size > self.outstanding:
            raise RemoteProtocolError(
                "AQ-FLOW-5",
                f"{size} bytes dequeued of {self.outstanding} on {describe(self.channel)}",
                CloseCode.FLOW_CONTROL,
            )
        growth = self._credit.growth
        if growth.blocked is not None:
            growth.add(self.channel, size, now, self._context.path_rtt)
        self._release(size)

    def handle_close(self, now: float) -> list[Node]:
        """Process CLOSE_RECEIVER (AQ-CLOSE-5): nack everything open (AQ-NACK-1).

        Return the lost channels.
        """
        complete = self._complete()
        was = self.state
        self._move(SenderInput.CLOSE_RECEIVER)
        if was is SenderState.CANCELLED:
            self._end = End.CANCELLED
        elif was is SenderState.FINISHED and complete:
            self._end = End.FINISHED
        else:
            self._end = End.RECEIVER_CLOSED
        self._report_open_as_undelivered()
        if self._answer_at < NEVER:
            self._answer()
        self._stop(StreamCode.CANCELLED)
        return self.node.release_all()

    def handle_forget(self, now: float) -> None:
        """Process FORGET_CHANNEL for a sender that cannot be lost: its receiver has ended.

        Send nothing more, but wait a while for acks that it has overtaken (AQ-FORGET-5).
        """
        if self._drop_at < NEVER:
            return
        self._move(SenderInput.FORGET_CHANNEL)
        self._stop_waiting()
        self._stop_sending(StreamCode.FORGOTTEN)
        self._drop_at = now + self._context.config.forgotten_timeout
        self._wake()

    # -- calls of the connection -----------------------------------------------------------------

    def route_back(self, at: float) -> None:
        """Answer the ROUTE_TO that created this half, by the given time (AQ-ROUTE-2)."""
        self._answer_at = at
        self._context.timers.wake(self, at)

    def is_overdue(self, now: float) -> bool:
        """Return whether the last acks of a forgotten channel were waited for long enough."""
        return self._drop_at <= now

    def handle_timer(self, now: float) -> None:
        """Announce datagrams, or answer a ROUTE_TO, when due."""
        if self._announce_at <= now:
            self._announce()
            if self.datagrams is not None and self.datagrams.unannounced():
                self._announce_soon(now)
        if self._answer_at <= now:
            self._answer()
        self._wake()

    def make_accessible(self) -> None:
        """Report what was acked as delivered, now that the channel is accessible (AQ-LIN-6)."""
        if self._reliable_acked:
            self._emit(Delivered(self.channel, True, tuple(self._reliable_acked.ranges())))
        if self.datagrams is not None:
            kept = self.datagrams.take_acked()
            if kept:
                self._emit(Delivered(self.channel, False, kept))

    @property
    def end(self) -> End | None:
        """How this half ended on the wire, if it did."""
        return self._end

    def settle(self) -> bool:
        """Release an ended half if nothing needs it any more; return whether that is so.

        The application learns the end here, also with nothing outstanding (AQ-CLOSE-6).
        """
        if (
            self.state is not SenderState.CLOSED
            or not self.node.accessible
            or self.owner == Ownership.UNCLAIMED
        ):
            return False
        assert self._end is not None
        self._emit(SenderEnded(self.channel, self._end))
        self.owner = Ownership.RELEASED
        self._move(SenderInput.SETTLE)
        return True

    def drop(self, how: End, lineage: tuple[int, ...], now: float) -> list[Node]:
        """End at once: forgotten, lost or disconnected. Return the channels in open messages."""
        self._move(SenderInput.DROP)
        if how is End.LOST and self.node.known and self.outstanding:
            self._credit.write_off(self.outstanding, now + self._context.config.forget_interval)
            self.outstanding = 0
        if how is not End.CONNECTION:
            self._stop(StreamCode.FORGOTTEN)
        self._emit(SenderEnded(self.channel, how, lineage))
        self.owner = Ownership.RELEASED
        return self.node.release_all()

    def check_control(self, stream: int) -> None:
        """Require that the receiver's frames come on one stream, in order (AQ-STREAM-5)."""
        if self.acks_from == -1:
            self.acks_from = stream
        elif self.acks_from != stream:
            raise RemoteProtocolError(
                "AQ-STREAM-5", f"receiver frames of {describe(self.channel)} on a second stream"
            )

    def claim(self, headers: HeaderPairs) -> None:
        """Give the handle to the application, which gets the events of this half from now on.

        ``headers`` are those of the channel.
        """
        self.owner = Ownership.APPLICATION
        if headers:
            self.mode = hinted_mode(headers)

    def check_room(self, size: int) -> None:
        """Raise WouldBlock if a message has to wait for credit, or displaces unreliable ones."""
        if not self._credit.fits(self.outstanding, size):
            self._block(size)

    def set_mode(self, mode: Mode) -> None:
        """Choose how to send, before the first message (AQ-SEND-3)."""
        if self.next_reliable or self.datagrams is not None:
            raise LocalProtocolError(
                f"AQ-SEND-3: messages were sent on {describe(self.channel)} already; "
                "set the mode before the first one"
            )
        self.mode = mode

    def allow(self) -> None:
        """Queue a waiting message for the connection window if it fits the channel window now."""
        if self.wanted >= 0 and self._fits_channel(self.wanted):
            self._wait_for_connection()

    def admit(self) -> None:
        """Wake the application: its message fits the connection window."""
        self._context.blocked.leave(self.channel)
        if self._fits_channel(self.wanted):  # else another message was sent since
            self.wanted = -1
            self._emit(Writable(self.channel))

    def give_up(self) -> bool:
        """Cancel the wait for room; return whether there was one."""
        if self.wanted < 0:
            return False
        self._stop_waiting()
        return True

    # -- inside ----------------------------------------------------------------------------------

    def _next_number(self) -> int:
        if self.mode is _UNRELIABLE:
            return self.datagrams.next_number if self.datagrams is not None else 0
        return self.next_reliable

    def _fits_channel(self, size: int) -> bool:
        return not self._owes_too_many_acks() and self._credit.fits_channel(self.outstanding, size)

    def _owes_too_many_acks(self) -> bool:
        """Return whether the peer owes more acks than this side may remember (AQ-LIMIT-6)."""
        limit = self._context.config.max_ranges
        return (
            (self.datagrams is not None and len(self.datagrams.sizes) >= limit)
            or (self._singles is not None and len(self._singles) >= limit)
            or self.node.size() >= limit
        )

    def _block(self, size: int) -> None:
        # Several tasks may wait: wake for the smallest message, then all try again.
        self.wanted = size if self.wanted < 0 else min(size, self.wanted)
        if self._fits_channel(size):
            self._wait_for_connection()
            raise WouldBlock("the connection window is full; wait until the peer takes messages")
        self._credit.growth.wait(self.channel)
        raise WouldBlock(
            f"the window of {describe(self.channel)} is full; wait until the peer takes messages"
        )

    def _wait_for_connection(self) -> None:
        spare = self._credit.send_window.spare(self.outstanding, self.wanted)  # AQ-FLOW-10
        self._context.blocked.wait(self.channel, self.wanted, spare)

    def _release(self, size: int) -> None:
        self.outstanding = self._credit.release(self.outstanding, size)
        self.allow()

    def _open(self, flow: SenderFlow | None = None) -> OutgoingStream:
        self.node.known = True
        return self._context.out.open(self.channel, flow)

    def _open_stream(self) -> OutgoingStream:
        self.stream = self._open(self.flow)
        return self.stream

    def _control_stream(self) -> OutgoingStream:
        if self.control is None:
            self.control = self._open()
        return self.control

    def _send_apart(self, number: int, frame: bytes) -> None:
        """Send a message on a stream of its own (AQ-STREAM-3)."""
        stream = self._open(self.flow)
        if self._singles is None:
            self._singles = {}
        self._singles[number] = stream
        self._context.out.write_alone(stream, frame)

    def _send_oneshot(self, message: MessageFrame) -> None:
        # AQ-SEND-5: the message and the finish, in one stream.
        self._move(SenderInput.FINISH)
        self._stop_waiting()
        stream = self._open_stream()
        out = self._context.out
        out.write(stream, message.encode() + FinishSender(1).encode())
        out.finish(stream)

    def _send_unreliable(self, frame: bytes, size: int, now: float) -> int:
        if self.state is not _OPEN:
            self._move(SenderInput.SEND)
        if self.datagrams is None:
            self.datagrams = SentDatagrams()
        out = self._context.out
        while not self._credit.fits(self.outstanding, size):
            # AQ-UNREL-6: the oldest unsent goes first; its number is announced all the same.
            dropped = out.drop_oldest_datagram(self.channel)
            if dropped is None:
                number = self.datagrams.add(0)
                self._announce_soon(now)
                return number
            for number in range(*dropped):
                self._release(self.datagrams.forgo(number))
        number = self.datagrams.add(size)
        self.outstanding = self._credit.charge(self.outstanding, size)
        self.node.known = True
        out.add_to_datagram(self.channel, number, frame)
        self._announce_soon(now)
        return number

    def _answer(self) -> None:
        self._answer_at = NEVER
        if not self.node.known:
            self._context.out.finish(self._open())

    def _announce_soon(self, now: float) -> None:
        if self._announce_at == NEVER:
            self._announce_at = now + self._context.config.announce_delay
            self._wake()

    def _announce(self, *, always: bool = False) -> None:
        """Announce what has left in datagrams, or was dropped (AQ-UNREL-1, AQ-PRIO-6)."""
        self._announce_at = NEVER
        datagrams = self.datagrams
        if datagrams is None:
            return
        unsent = self._context.out.first_unsent(self.channel)
        count = unsent - datagrams.announced if unsent >= 0 else datagrams.unannounced()
        if count or always:
            datagrams.announced += count
            self._context.out.write(self._control_stream(), SentUnreliable(count).encode())

    def _wake(self) -> None:
        at = min(self._announce_at, self._answer_at, self._drop_at)
        if at < NEVER:
            self._context.timers.wake(self, at)

    def _complete(self) -> bool:
        acked = self._reliable_acked.count if self._reliable_acked is not None else 0
        decided = self.datagrams is None or self.datagrams.decided == self.datagrams.next_number
        return acked == self.next_reliable and decided

    def _report_open_as_undelivered(self) -> None:
        acked = self._reliable_acked or RangeSet()
        open_reliable = tuple(acked.missing(0, self.next_reliable))
        if open_reliable:
            self._emit(Undelivered(self.channel, True, open_reliable))
        if self.datagrams is not None and self.datagrams.decided < self.datagrams.next_number:
            open_unreliable = ((self.datagrams.decided, self.datagrams.next_number),)
            self._emit(Undelivered(self.channel, False, open_unreliable))

    def _reset_message_streams(self, code: StreamCode) -> None:
        out = self._context.out
        if self.stream is not None:
            out.reset(self.stream, code)
        if self._singles:
            for stream in self._singles.values():
                out.reset(stream, code)
            self._singles = None

    def _stop(self, code: StreamCode) -> None:
        """Reset the streams, drop the datagrams and return the credit of this channel."""
        if self.state is not SenderState.CLOSED or self._end is not End.FINISHED:
            self._stop_sending(code)
        if self.datagrams is not None:
            self._context.out.drop_datagrams(self.channel)
        self.wake_at = self._announce_at = self._answer_at = self._drop_at = NEVER
        self.outstanding = self._credit.release(self.outstanding, self.outstanding)
        self._stop_waiting()

    def _stop_sending(self, code: StreamCode) -> None:
        """Reset the streams, and drop what waits to be sent."""
        self._reset_message_streams(code)
        if self.control is not None:
            self._context.out.reset(self.control, code)
        if self.datagrams is not None:
            self._context.out.drop_datagrams(self.channel)
        self.wake_at = self._announce_at = self._answer_at = NEVER

    def _stop_waiting(self) -> None:
        if self.wanted >= 0:
            self.wanted = -1
            self._context.blocked.leave(self.channel)
