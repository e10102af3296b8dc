"""The receiving half of a channel.

Theory of operation. A receiver is OPEN until the peer finishes or cancels the channel or the
application closes it. After a finish it is FINISHING until every reliable message has arrived and
every unreliable one has been decided. CLOSE_RECEIVER, behind the last acks in one stream, ends it
on the wire. CLOSING is the short wait before that in which datagrams that arrived, and so can have
been seen by the application, have yet to be announced: only an announced number can be acked, and a
message must not be delivered and nacked both. DRAINING means that the wire knows the channel no
more while its queue is still to be taken, or its handle is still on its way to the application.

`TRANSITIONS` is the whole of it. Nothing else assigns a receiver's state.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from aqueduct.errors import CloseCode as Code
from aqueduct.errors import RemoteProtocolError, StreamCode
from aqueduct.protocol.events import End, Readable, ReceiverEnded
from aqueduct.protocol.lineage import Node
from aqueduct.protocol.link import Link, Owner
from aqueduct.protocol.outgoing import OutgoingStream
from aqueduct.protocol.queue import Queue
from aqueduct.protocol.timers import NEVER
from aqueduct.protocol.unreliable import Inbox
from aqueduct.wire.chanid import describe, is_oneshot
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    CloseReceiver,
    Dequeued,
    Message,
    MessageRun,
)
from aqueduct.wire.ranges import MAX_RANGE_VARINTS, MAX_RANGES_PER_ACK, RangeSet


class State(Enum):
    """Where a receiver is in its life."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    OPEN = "open"
    FINISHING = "finishing"
    CLOSING = "closing"
    DRAINING = "draining"
    GONE = "gone"


class Input(Enum):
    """What can happen to a receiver."""

    __hash__ = object.__hash__

    MESSAGE = "MESSAGE"
    SENT_UNRELIABLE = "SENT_UNRELIABLE"
    FINISH_SENDER = "FINISH_SENDER"
    CANCEL_SENDER = "CANCEL_SENDER"
    CLOSE = "close"
    COMPLETE = "complete"
    SETTLE = "settled"
    DROP = "forgotten or lost"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.MESSAGE): State.OPEN,
    (State.OPEN, Input.SENT_UNRELIABLE): State.OPEN,
    (State.OPEN, Input.FINISH_SENDER): State.FINISHING,
    (State.OPEN, Input.CANCEL_SENDER): State.CLOSING,
    (State.OPEN, Input.CLOSE): State.CLOSING,
    (State.OPEN, Input.DROP): State.GONE,
    (State.FINISHING, Input.MESSAGE): State.FINISHING,
    (State.FINISHING, Input.CLOSE): State.CLOSING,
    (State.FINISHING, Input.COMPLETE): State.DRAINING,
    (State.FINISHING, Input.DROP): State.GONE,
    (State.CLOSING, Input.MESSAGE): State.CLOSING,
    (State.CLOSING, Input.SENT_UNRELIABLE): State.CLOSING,
    (State.CLOSING, Input.FINISH_SENDER): State.CLOSING,
    (State.CLOSING, Input.CANCEL_SENDER): State.CLOSING,
    (State.CLOSING, Input.CLOSE): State.CLOSING,
    (State.CLOSING, Input.COMPLETE): State.DRAINING,
    (State.CLOSING, Input.DROP): State.GONE,
    (State.DRAINING, Input.CLOSE): State.DRAINING,
    (State.DRAINING, Input.SETTLE): State.GONE,
    (State.DRAINING, Input.DROP): State.GONE,
}
"""What each input does in each state; a missing entry is the peer's violation of a rule below."""

RULES: dict[Input, str] = {
    Input.SENT_UNRELIABLE: "AQ-FINISH-3",
    Input.FINISH_SENDER: "AQ-FINISH-3",
    Input.CANCEL_SENDER: "AQ-CANCEL-3",
}


class Receiver:
    """One receiving half: what arrived, what is owed to the sender, and what waits to be taken."""

    __slots__ = (
        "_ack_count",
        "_acks",
        "_arrived",
        "_end",
        "_flush_at",
        "_is_waiting",
        "_link",
        "_queue",
        "_reliable",
        "_total",
        "all_announced",
        "attached",
        "channel",
        "control",
        "inbox",
        "lingers",
        "node",
        "owner",
        "reserved",
        "sender_control",
        "state",
        "unreported",
        "wake_at",
    )

    def __init__(self, link: Link, channel: int, node: Node | None, owner: Owner) -> None:
        self._link = link
        self.channel = channel
        self.node = node
        """The lineage of a channel of our creation; the peer keeps that of its own."""
        self.owner = owner
        self.attached = owner is not Owner.NOBODY
        """Whether the message that carries the other half's handle has arrived."""
        self.state = State.OPEN
        self.lingers = False
        """Whether the peer has done with it, and counts it no more."""
        self.wake_at = NEVER
        self.control: OutgoingStream | None = None
        self.sender_control = -1
        """The incoming stream that announces datagrams and the finish, once known."""
        self.all_announced = False
        """Whether that stream is over."""
        self.inbox: Inbox | None = None
        self.unreported = 0
        """Bytes taken and not yet reported DEQUEUED."""
        self.reserved = 0
        """Bytes in the reserve for which the sender has not got credit back yet."""
        self._queue: Queue | None = None
        self._reliable: RangeSet | None = None
        self._acks: RangeSet | None = None
        self._ack_count = 0
        self._arrived = 0
        self._total = -1
        """How many reliable messages there will ever be, once the peer has finished."""
        self._is_waiting = False
        """Whether CLOSE_RECEIVER waits until the queue was taken."""
        self._flush_at = NEVER
        self._end: End | None = None

    # -- what the peer's sender says -------------------------------------------------------------

    def handle_run(self, run: MessageRun, reliable: bool, now: float) -> None:
        """Messages that are nothing but payloads; the hot path."""
        first = run.first
        count = len(run.payloads)
        if not reliable:
            trimmed = self._trim(run)
            if trimmed is None or not self._arrive(trimmed.first, len(trimmed.payloads)):
                return
            run, first, count = trimmed, trimmed.first, len(trimmed.payloads)
        elif not self._accept(first, count):
            return
        size = run.size
        window = self._link.receive_window
        held = self._held() + size
        if held > self._link.receive_channel_window or window.outstanding + size > window.limit:
            self._check_each(run)
        window.outstanding += size
        if self.reserved < window.reserve:
            self._reserve(held)
        queue = self._open_queue()
        link = self._link
        before = queue.count
        pack = link.waiting > link.config.max_unpacked
        if not queue.add_run(run, pack=pack, max_stretches=link.config.max_ranges):
            raise self._violation("AQ-LIMIT-6", "too many empty messages", Code.LIMIT_EXCEEDED)
        link.waiting += queue.count - before
        self._received(first, count, reliable, now)

    def handle_message(self, message: Message, reliable: bool, now: float) -> bool:
        """A message with headers or channels; returns whether it was accepted."""
        number = message.number
        if reliable:
            if not self._accept(number, 1):
                return False
        elif (self.inbox and number < self.inbox.decided) or not self._arrive(number, 1):
            return False
        size = message.size
        held = self._held()
        self._check_credit(held, size, 0)
        link = self._link
        link.receive_window.outstanding += size
        self._reserve(held + size)
        queue = self._open_queue()
        before = queue.count
        queue.add_message(message, size, pack=link.waiting > link.config.max_unpacked)
        link.waiting += queue.count - before
        self._received(number, 1, reliable, now)
        return True

    def handle_announcement(self, count: int, stream: int, now: float) -> None:
        """SENT_UNRELIABLE."""
        self._check_control(stream)
        self._move(Input.SENT_UNRELIABLE)
        if self.inbox is None:
            self.inbox = Inbox()
        config = self._link.config
        wait = min(
            max(2 * self._link.rtt, config.receipt_deadline_min), config.receipt_deadline_max
        )
        self.inbox.announce(count, now + wait, config.deadline_grain)  # AQ-UNREL-2
        if self.state is State.OPEN:
            self._flush_soon(now)
        self._wake()

    def handle_finish(self, total: int, stream: int, now: float) -> None:
        """FINISH_SENDER: there are ``total`` reliable messages, and no more announcements."""
        self._check_control(stream)
        self._move(Input.FINISH_SENDER)
        self.all_announced = True
        arrived = self._reliable.max if self._reliable is not None else 0
        if arrived > total:
            raise self._violation("AQ-FINISH-4", f"finished at {total}, but {arrived - 1} arrived")
        if self.inbox is not None and self.inbox.overtaken():
            raise self._violation("AQ-FINISH-4", "more datagrams arrived than were announced")
        announced = self.inbox.announced if self.inbox is not None else 0
        if is_oneshot(self.channel) and total + announced > 1:
            raise self._violation("AQ-SEND-6", "a oneshot channel with more than one message")
        self._total = total

    def handle_cancel(self) -> list[Message]:
        """CANCEL_SENDER: what is queued is dropped (AQ-CANCEL-4) and returned."""
        was = self.state
        self._move(Input.CANCEL_SENDER)
        if was is not State.OPEN:
            return []
        self._end = End.CANCELLED
        self._tell(End.CANCELLED)
        return self._drop_queue()

    def handle_sender_control_over(self) -> None:
        """The stream that announces datagrams ended: no more announcements come."""
        self.all_announced = True

    # -- commands --------------------------------------------------------------------------------

    def take(self, limit: int, now: float) -> list[Message | MessageRun]:
        """Hand up to ``limit`` messages to the application."""
        queue = self._queue
        if queue is None:
            return []
        link = self._link
        size, waiting = queue.size, queue.count
        batch = queue.take(limit, link.parser_limits)
        link.waiting -= waiting - queue.count
        if not queue:
            self._queue = None
        self._account_taken(size - queue.size, now)
        return batch

    def close(self) -> list[Message]:
        """The application is done with it; the queue is dropped (AQ-CLOSE-1) and returned."""
        self._move(Input.CLOSE)
        self.owner = Owner.GONE
        return self._drop_queue()

    # -- what the connection says ----------------------------------------------------------------

    def complete(self, now: float) -> bool:
        """Whether the half ended on the wire just now: the conditions of its state are met."""
        inbox = self.inbox
        if self.state is State.FINISHING:
            # AQ-FINISH-5
            if self._arrived != self._total or (inbox is not None and not inbox.settled()):
                return False
            if self._must_wait_for_taking():
                return False
            self._end = End.FINISHED
        elif self.state is State.CLOSING:
            # AQ-CLOSE-3: what arrived may have been seen; wait until it can be acked.
            if inbox is not None and inbox.overtaken() and not self.all_announced:
                return False
            if self._must_wait_for_taking():
                return False
        else:
            return False
        self._send_close(now)
        return True

    @property
    def queued_objects(self) -> int:
        """Messages in the queue that are kept as objects."""
        return self._queue.count if self._queue is not None else 0

    def is_open(self) -> bool:
        """Whether nothing has begun to end this half."""
        return self.state is _OPEN

    def is_over(self) -> bool:
        """Whether the wire knows this half no more."""
        return self.state is State.DRAINING or self.state is State.GONE

    def settle(self) -> bool:
        """After the end on the wire: whether nothing holds this half any more."""
        if (
            self.state is not State.DRAINING
            or self.owner == Owner.NOBODY
            or self._queue is not None
        ):
            return False
        if self._end is not None:
            self._tell(self._end)
        self._move(Input.SETTLE)
        return True

    def drop(self, how: End, lineage: tuple[int, ...]) -> list[Message]:
        """Forgotten, lost, or without connection: end at once. Returns what was queued."""
        queue = self._drop_queue()
        over = self.is_over() or how is End.CONNECTION
        if self.control is not None and not over:
            self._link.out.reset(self.control, StreamCode.FORGOTTEN)
        self._move(Input.DROP)
        self.wake_at = self._flush_at = NEVER
        self._emit(ReceiverEnded(self.channel, how, lineage))
        self.owner = Owner.GONE
        return queue

    def claim(self) -> None:
        """The application got the handle; it hears of this half from now on."""
        self.owner = Owner.APPLICATION
        if self._queue is not None:
            self._emit(Readable(self.channel))

    def route_back(self, at: float) -> None:
        """Answer the ROUTE_TO that created this half, by the given time (AQ-ROUTE-2)."""
        self._flush_at = min(self._flush_at, at)
        self._wake()

    def handle_timer(self, now: float) -> None:
        """Send the acks, decisions and reports that are due."""
        if self._flush_at <= now or (self.inbox and self.inbox.due(now)):
            self.flush(now)
        self._wake()

    def flush(self, now: float) -> None:
        """Say everything that is owed to the sender (AQ-ACK-1)."""
        self._flush_at = NEVER
        if self.state not in _AWAKE:
            return
        self._control_stream()
        self._say_acks(self.inbox.decide(now) if self.inbox is not None else ())
        self.report()

    def report(self) -> None:
        """Give the sender credit for what was taken (AQ-FLOW-4)."""
        if self.unreported:
            link = self._link
            link.out.write(self._control_stream(), Dequeued(self.unreported).encode())
            link.receive_window.outstanding -= self.unreported
            link.unreported -= self.unreported
            self.unreported = 0
            self._reserve(self._held())
        self._link.reporters.pop(self.channel, None)

    # -- inside ----------------------------------------------------------------------------------

    def _move(self, event: Input) -> None:
        new = TRANSITIONS.get((self.state, event))
        if new is None:
            rule = RULES[event]
            raise self._violation(rule, f"{event.value} on a channel that is {self.state.value}")
        self.state = new

    def _violation(
        self, rule: str, reason: str, code: Code = Code.PROTOCOL_VIOLATION
    ) -> RemoteProtocolError:
        return RemoteProtocolError(rule, f"{reason} ({describe(self.channel)})", code)

    def _check_control(self, stream: int) -> None:
        """AQ-STREAM-4: announcements and the finish come on one stream, in order."""
        if self.sender_control == -1:
            self.sender_control = stream
        elif self.sender_control != stream:
            raise self._violation("AQ-STREAM-4", "announcements or finish on a second stream")

    def _accept(self, first: int, count: int) -> bool:
        """Whether reliable messages are to be processed; a violation if they cannot be."""
        if self.state is State.CLOSING:
            return False
        received = self._reliable
        if received is None:
            received = self._reliable = RangeSet()
        if not received.add_new(first, first + count):
            raise self._violation("AQ-SEND-2", f"message number {first} was used twice")
        if 0 <= self._total < first + count:
            raise self._violation("AQ-FINISH-4", f"message {first} after a finish at {self._total}")
        if received.range_count > self._link.config.max_ranges:
            raise self._violation("AQ-LIMIT-6", "too many gaps in numbers", Code.LIMIT_EXCEEDED)
        if is_oneshot(self.channel):
            self._check_oneshot()
        return True

    def _check_oneshot(self) -> None:
        count = self._reliable.count if self._reliable is not None else 0
        if self.inbox is not None:
            count += self.inbox.decided + self.inbox.arrived.count
        if count > 1:
            raise self._violation("AQ-SEND-6", "a second message on a oneshot channel")

    def _trim(self, run: MessageRun) -> MessageRun | None:
        """What of a run of datagram messages is not decided yet (AQ-UNREL-3)."""
        decided = self.inbox.decided if self.inbox is not None else 0
        late = decided - run.first
        if late <= 0:
            return run
        payloads = run.payloads[late:]
        if not payloads:
            return None
        return MessageRun(decided, payloads, sum(map(len, payloads)))

    def _arrive(self, first: int, count: int) -> bool:
        """Whether datagram messages are to be processed."""
        if self.state is State.CLOSING:
            return False
        if self.inbox is None:
            self.inbox = Inbox()
        if self._total >= 0 and first + count > self.inbox.announced:
            raise self._violation("AQ-FINISH-4", f"datagram message {first} was never announced")
        if not self.inbox.arrive(first, first + count, self._link.config.max_ranges):
            return False
        if is_oneshot(self.channel):
            self._check_oneshot()
        return True

    def _held(self) -> int:
        """Bytes the sender has no credit for yet."""
        queued = self._queue.size if self._queue is not None else 0
        return queued + self.unreported

    def _check_credit(self, held: int, size: int, more: int) -> None:
        """AQ-FLOW-2; ``more`` bytes came before, in the same run. What is empty always fits."""
        if not size:
            return
        if held and held + size > self._link.receive_channel_window:
            raise self._violation("AQ-FLOW-2", "the channel window is exceeded", Code.FLOW_CONTROL)
        window = self._link.receive_window
        outstanding = window.outstanding + more
        # AQ-FLOW-10: bytes in the reserves, before this message and with it.
        others = window.reserved - self.reserved
        before = min(others + window.spare(0, held), window.pool)
        after = min(others + window.spare(0, held + size), window.pool)
        shared = size - (after - before)
        if shared and outstanding > before and outstanding + size > window.base + after:
            raise self._violation(
                "AQ-FLOW-2", "the connection window is exceeded", Code.FLOW_CONTROL
            )

    def _reserve(self, held: int) -> None:
        """Update the bytes in the reserve, with ``held`` bytes not yet credited to the sender."""
        window = self._link.receive_window
        reserved = min(held, window.reserve)
        if reserved != self.reserved:
            window.add(0, reserved - self.reserved)
            self.reserved = reserved

    def _check_each(self, run: MessageRun) -> None:
        """A run that does not fit as a whole may begin with one large message (AQ-FLOW-3)."""
        held = self._held()
        before = 0
        for payload in run.payloads:
            self._check_credit(held + before, len(payload), before)
            before += len(payload)

    def _open_queue(self) -> Queue:
        if self._queue is None:
            self._queue = Queue()
            self._emit(Readable(self.channel))
        return self._queue

    def _received(self, first: int, count: int, reliable: bool, now: float) -> None:
        if reliable:
            self._arrived += count
            if self._acks is None:
                self._acks = RangeSet()
            self._acks.add(first, first + count)
        self._ack_count += count
        if self._ack_count >= self._link.config.ack_every:
            self._ack_count = 0
            self._link.overdue[self.channel] = now
        elif self._flush_at == NEVER:
            self._flush_soon(now)

    def _flush_soon(self, now: float) -> None:
        if self._flush_at == NEVER:
            self._flush_at = now + self._link.config.ack_delay
            self._wake()

    def _wake(self) -> None:
        at = self._flush_at
        if self.inbox is not None and self.inbox.deadlines:
            at = min(at, self.inbox.deadlines[0][0])
        if at < NEVER and self.state in _AWAKE:
            self._link.timers.wake(self, at)

    def _account_taken(self, size: int, now: float) -> None:
        link = self._link
        if self.state is State.DRAINING:
            link.drained_later -= size
            return
        self.unreported += size
        link.unreported += size
        link.reporters[self.channel] = None
        if self.unreported * 4 >= link.config.limits.channel_window:
            self.report()
        elif self._queue is None:
            self._flush_soon(now)

    def _must_wait_for_taking(self) -> bool:
        """AQ-FLOW-7, AQ-LIMIT-4: what the peer no longer counts is bounded too."""
        link = self._link
        would_linger = self._queue is not None or (self.owner is Owner.NOBODY and self.attached)
        if would_linger and self.node is None:
            if link.lingering >= link.config.limits.max_channels:
                return True
        if self._queue is None:
            return False
        self._is_waiting = (
            self._is_waiting
            or link.drained_later + self._queue.size > link.config.limits.connection_window
        )
        return self._is_waiting

    def _control_stream(self) -> OutgoingStream:
        if self.control is None:
            self.control = self._link.out.open(self.channel)
            if self.node is not None:
                self.node.known = True
        return self.control

    def _say_acks(self, lengths: tuple[int, ...]) -> None:
        """Ack what arrived reliably, and say what was decided of the rest."""
        out = self._link.out
        if self._acks:
            ranges = tuple(self._acks.ranges())
            for at in range(0, len(ranges), MAX_RANGES_PER_ACK):
                part = ranges[at : at + MAX_RANGES_PER_ACK]
                out.write(self._control_stream(), AckReliable(part).encode())
            self._acks = None
            self._ack_count = 0
        for at in range(0, len(lengths), MAX_RANGE_VARINTS):
            # An even number of lengths a frame: each begins with an ack again (AQ-RANGE-3).
            part_of_lengths = lengths[at : at + MAX_RANGE_VARINTS]
            out.write(self._control_stream(), AckNackUnreliable(part_of_lengths).encode())

    def _send_close(self, now: float) -> None:
        """The last acks and CLOSE_RECEIVER, in the one stream (AQ-CLOSE-2)."""
        link = self._link
        inbox = self.inbox
        self._say_acks(inbox.decide(now, everything=True) if inbox is not None else ())
        control = self._control_stream()
        link.out.write(control, CloseReceiver().encode())
        link.out.finish(control)
        self._move(Input.COMPLETE)
        self._forget_reports()
        if self._queue is not None:
            link.receive_window.outstanding -= self._queue.size
            link.drained_later += self._queue.size
        self._reserve(0)
        self._acks = self._reliable = self.inbox = None
        self.wake_at = self._flush_at = NEVER

    def _forget_reports(self) -> None:
        link = self._link
        link.receive_window.outstanding -= self.unreported
        link.unreported -= self.unreported
        link.reporters.pop(self.channel, None)
        self.unreported = 0

    def _drop_queue(self) -> list[Message]:
        """Release what is queued; returns the messages with channels, which must be abandoned."""
        link = self._link
        queue, self._queue = self._queue or Queue(), None
        if self.state is State.DRAINING:
            link.drained_later -= queue.size
        else:
            link.receive_window.outstanding -= queue.size
            self._forget_reports()
            self._reserve(0)
        link.waiting -= queue.count
        return queue.drop(link.parser_limits)

    def _tell(self, how: End) -> None:
        """The last word to the application, if it has the handle."""
        if self.owner is Owner.APPLICATION:
            self._emit(ReceiverEnded(self.channel, how))
            self.owner = Owner.GONE

    def _emit(self, event: Readable | ReceiverEnded) -> None:
        if self.owner is Owner.APPLICATION:
            self._link.events.append(event)


_AWAKE = (State.OPEN, State.FINISHING, State.CLOSING)
_OPEN: Final = State.OPEN
