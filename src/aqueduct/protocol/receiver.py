"""The receiving half of a channel: what arrived, what it owes the sender, and its queue."""

from __future__ import annotations

from aqueduct.errors import CloseCode, StreamCode
from aqueduct.protocol.events import End, Readable, ReceiverEnded
from aqueduct.protocol.half import Context, Ownership
from aqueduct.protocol.lineage import Node
from aqueduct.protocol.outgoing_stream import OutgoingStream
from aqueduct.protocol.queue import Queue
from aqueduct.protocol.receiver_states import ReceiverInput, ReceiverState, ReceiverStateMachine
from aqueduct.protocol.timers import NEVER
from aqueduct.protocol.unreliable import ReceivedDatagrams
from aqueduct.wire.chanid import is_oneshot
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    CloseReceiver,
    Dequeued,
    MessageFrame,
    MessageRun,
)
from aqueduct.wire.primitives import HeaderPairs
from aqueduct.wire.ranges import MAX_RANGE_VARINTS, MAX_RANGES_PER_ACK, RangeSet


class ReceivingHalf(ReceiverStateMachine):
    """The receiving half of one channel."""

    __slots__ = (
        "_ack_count",
        "_acks",
        "_arrived",
        "_close_at",
        "_flush_at",
        "_is_cancelled",
        "_is_waiting",
        "_queue",
        "_reliable",
        "_total",
        "all_announced",
        "datagrams",
        "node",
        "reserved",
        "sender_control",
        "unreported",
    )

    def __init__(self, context: Context, channel: int, node: Node | None, owner: Ownership) -> None:
        super().__init__(context, channel, owner)
        self.state = ReceiverState.OPEN
        self.node = node
        """The lineage of a channel of our creation; the peer keeps that of its own."""
        self.sender_control = -1
        """The incoming stream that announces datagrams and the finish, once known."""
        self.all_announced = False
        """Whether that stream has ended."""
        self.datagrams: ReceivedDatagrams | None = None
        self.unreported = 0
        """Bytes taken and not yet reported DEQUEUED."""
        self.reserved = 0
        """Bytes in the channel's reserve whose credit was not returned yet."""
        self._queue: Queue | None = None
        self._reliable: RangeSet | None = None
        self._acks: RangeSet | None = None
        self._ack_count = 0
        self._arrived = 0
        self._total = -1
        """The total number of reliable messages, once the peer has finished; -1 before."""
        self._is_waiting = False
        """Whether CLOSE_RECEIVER waits until the application has taken the queue."""
        self._flush_at = NEVER
        self._close_at = NEVER
        """When to stop waiting for announcements, in CLOSING."""
        self._is_cancelled = False

    # -- frames of the peer's sender -------------------------------------------------------------

    def handle_run(self, run: MessageRun, reliable: bool, now: float) -> None:
        """Process messages without headers and channels; the hot path."""
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
        credit = self._credit
        queued = self._queue.size if self._queue is not None else 0
        held = queued + self.unreported + size
        reserved = credit.hold(size, held, self.reserved)
        if reserved < 0:
            self._check_each(run)
            reserved = credit.hold(size, held, self.reserved, is_checked=True)
        self.reserved = reserved
        queue = self._open_queue()
        context = self._context
        before = queue.count
        pack = context.queued_objects > context.config.max_unpacked
        if not queue.add_run(run, pack=pack, max_stretches=context.config.max_ranges):
            raise self._violation("AQ-LIMIT-6", "too many empty messages", CloseCode.LIMIT_EXCEEDED)
        context.queued_objects += queue.count - before
        self._received(first, count, reliable, now)

    def handle_message(self, message: MessageFrame, reliable: bool, now: float) -> bool:
        """Process a message with headers or channels; return whether it was accepted."""
        number = message.number
        if reliable:
            if not self._accept(number, 1):
                return False
        elif (self.datagrams and number < self.datagrams.decided) or not self._arrive(number, 1):
            return False
        size = message.size
        held = self._held()
        self._check_credit(held, size, 0)
        self.reserved = self._credit.hold(size, held + size, self.reserved, is_checked=True)
        queue = self._open_queue()
        context = self._context
        before = queue.count
        pack = context.queued_objects > context.config.max_unpacked
        queue.add_message(message, size, pack=pack)
        context.queued_objects += queue.count - before
        self._received(number, 1, reliable, now)
        return True

    def handle_announcement(self, count: int, stream: int, now: float) -> None:
        """Process SENT_UNRELIABLE."""
        self._check_control(stream)
        self._move(ReceiverInput.SENT_UNRELIABLE)
        if self.datagrams is None:
            self.datagrams = ReceivedDatagrams()
        config = self._context.config
        wait = min(
            max(2 * self._context.rtt, config.receipt_deadline_min), config.receipt_deadline_max
        )
        self.datagrams.announce(count, now + wait, config.deadline_grain)  # AQ-UNREL-2
        if self.state is ReceiverState.OPEN:
            self._flush_soon(now)
        self._wake()

    def handle_finish(self, total: int, stream: int, now: float) -> None:
        """Process FINISH_SENDER: ``total`` reliable messages, and no more announcements."""
        self._check_control(stream)
        self._move(ReceiverInput.FINISH_SENDER)
        self.all_announced = True
        arrived = self._reliable.max if self._reliable is not None else 0
        if arrived > total:
            raise self._violation("AQ-FINISH-4", f"finished at {total}, but {arrived - 1} arrived")
        announced = self.datagrams.announced if self.datagrams is not None else 0
        if is_oneshot(self.channel) and total + announced > 1:
            raise self._violation("AQ-SEND-6", "a oneshot channel with more than one message")
        self._total = total

    def handle_cancel(self) -> list[MessageFrame]:
        """Process CANCEL_SENDER: drop what is queued (AQ-CANCEL-4), and return it."""
        was = self.state
        self._move(ReceiverInput.CANCEL_SENDER)
        self._is_cancelled = True
        if was is not ReceiverState.OPEN and self._end is not End.STOPPED:
            return []
        self._end = End.CANCELLED
        self._emit_end(End.CANCELLED)
        return self._drop_queue()

    def handle_sender_control_over(self) -> None:
        """Process the end of the stream that announces datagrams."""
        self.all_announced = True

    # -- commands --------------------------------------------------------------------------------

    def take(self, limit: int, now: float) -> list[MessageFrame | MessageRun]:
        """Hand up to ``limit`` messages to the application."""
        queue = self._queue
        if queue is None:
            return []
        context = self._context
        size, objects = queue.size, queue.count
        batch = queue.take(limit, context.parser_limits)
        context.queued_objects -= objects - queue.count
        if not queue:
            self._queue = None
        size -= queue.size
        if self.state is ReceiverState.DRAINING:
            self._credit.drain(size)
            return batch
        self.unreported += size
        if self._credit.take(self.channel, size, self.unreported):
            self.report()
        elif self._queue is None:
            self._flush_soon(now)
        return batch

    def close(self) -> list[MessageFrame]:
        """Stop receiving: drop the queue (AQ-CLOSE-1), and return it."""
        self._move(ReceiverInput.CLOSE)
        self.owner = Ownership.RELEASED
        return self._drop_queue()

    def stop(self) -> list[MessageFrame]:
        """Stop receiving; drop nothing: the application takes what has arrived (AQ-DRAIN-1)."""
        if self.state is ReceiverState.OPEN:
            self._move(ReceiverInput.CLOSE)
            self._end = End.STOPPED
        return []

    # -- calls of the connection -----------------------------------------------------------------

    def complete(self, now: float) -> bool:
        """End the half on the wire if its state allows it; return whether it did."""
        datagrams = self.datagrams
        if self.state is ReceiverState.FINISHING:
            # AQ-FINISH-5
            if self._arrived != self._total or (datagrams is not None and not datagrams.settled()):
                return False
            if self._defers_close():
                return False
            self._end = End.FINISHED
        elif self.state is ReceiverState.CLOSING:
            # AQ-CLOSE-3: the application may have seen what arrived; wait until it can be acked.
            if datagrams is not None and datagrams.overtaken() and not self.all_announced:
                self._limit_wait(now)
                return False
            if self._defers_close():
                return False
        else:
            return False
        self._send_close(now)
        return True

    @property
    def queued_objects(self) -> int:
        """The number of queued messages that are kept as objects."""
        return self._queue.count if self._queue is not None else 0

    def settle(self) -> bool:
        """Release an ended half that is no longer needed; return whether it was released."""
        if (
            self.state is not ReceiverState.DRAINING
            or self.owner == Ownership.UNCLAIMED
            or self._queue is not None
        ):
            return False
        if self._end is not None:
            self._emit_end(self._end)
        self._move(ReceiverInput.SETTLE)
        return True

    def drop(self, how: End, lineage: tuple[int, ...]) -> list[MessageFrame]:
        """End at once: forgotten, lost or disconnected. Return what was queued."""
        queue = self._drop_queue()
        over = self.is_over() or how is End.CONNECTION
        if self.control is not None and not over:
            self._context.out.reset(self.control, StreamCode.FORGOTTEN)
        self._move(ReceiverInput.DROP)
        self.wake_at = self._flush_at = self._close_at = NEVER
        self._emit(ReceiverEnded(self.channel, how, lineage))
        self.owner = Ownership.RELEASED
        return queue

    def claim(self, headers: HeaderPairs) -> None:
        """Give the handle to the application, which gets the events of this half from now on."""
        self.owner = Ownership.APPLICATION
        if self._queue is not None:
            self._emit(Readable(self.channel))

    def route_back(self, at: float) -> None:
        """Answer the ROUTE_TO that created this half, by the given time (AQ-ROUTE-2)."""
        self._flush_at = min(self._flush_at, at)
        self._wake()

    def handle_timer(self, now: float) -> None:
        """Send the acks, decisions and reports that are due."""
        if self._flush_at <= now or (self.datagrams and self.datagrams.due(now)):
            self.flush(now)
        if self._close_at <= now:
            self._close_at = NEVER
            self.all_announced = True  # AQ-CLOSE-3: whatever was not announced is dropped
        self._wake()

    def flush(self, now: float) -> None:
        """Send the acks, decisions and credit that the sender is owed (AQ-ACK-1)."""
        self._flush_at = NEVER
        if self.state not in _AWAKE:
            return
        self._control_stream()
        self._send_acks(self.datagrams.decide(now) if self.datagrams is not None else ())
        self.report()

    def report(self) -> None:
        """Return the credit of what was taken to the sender (AQ-FLOW-4)."""
        size = self.unreported
        if size:
            self._context.out.write(self._control_stream(), Dequeued(size).encode())
            self.unreported = 0
            self.reserved = self._credit.report(self.channel, size, self._held(), self.reserved)

    # -- inside ----------------------------------------------------------------------------------

    def _check_control(self, stream: int) -> None:
        """Require announcements and the finish on one stream, in order (AQ-STREAM-4)."""
        if self.sender_control == -1:
            self.sender_control = stream
        elif self.sender_control != stream:
            raise self._violation("AQ-STREAM-4", "announcements or finish on a second stream")

    def _accept(self, first: int, count: int) -> bool:
        """Return whether to process reliable messages; raise if they violate a rule."""
        if self.state is ReceiverState.CLOSING:
            return False
        received = self._reliable
        if received is None:
            received = self._reliable = RangeSet()
        if not received.add_new(first, first + count):
            raise self._violation("AQ-SEND-2", f"message number {first} was used twice")
        if 0 <= self._total < first + count:
            raise self._violation("AQ-FINISH-4", f"message {first} after a finish at {self._total}")
        if received.range_count > self._context.config.max_ranges:
            raise self._violation(
                "AQ-LIMIT-6", "too many gaps in numbers", CloseCode.LIMIT_EXCEEDED
            )
        if is_oneshot(self.channel):
            self._check_oneshot()
        return True

    def _check_oneshot(self) -> None:
        count = self._reliable.count if self._reliable is not None else 0
        if self.datagrams is not None:
            count += self.datagrams.decided + self.datagrams.arrived.count
        if count > 1:
            raise self._violation("AQ-SEND-6", "a second message on a oneshot channel")

    def _trim(self, run: MessageRun) -> MessageRun | None:
        """Return the part of a run of datagram messages that is not decided yet (AQ-UNREL-3)."""
        decided = self.datagrams.decided if self.datagrams is not None else 0
        late = decided - run.first
        if late <= 0:
            return run
        payloads = run.payloads[late:]
        if not payloads:
            return None
        return MessageRun(decided, payloads, sum(map(len, payloads)))

    def _arrive(self, first: int, count: int) -> bool:
        """Return whether to process datagram messages; raise if they violate a rule."""
        if self.state is ReceiverState.CLOSING:
            return False
        if self.datagrams is None:
            self.datagrams = ReceivedDatagrams()
        if self._total >= 0 and first + count > self.datagrams.announced:
            return False  # AQ-FINISH-4
        if not self.datagrams.arrive(first, first + count, self._context.config.max_ranges):
            return False
        if is_oneshot(self.channel):
            self._check_oneshot()
        return True

    def _held(self) -> int:
        """Return the bytes whose credit was not returned yet."""
        queued = self._queue.size if self._queue is not None else 0
        return queued + self.unreported

    def _check_credit(self, held: int, size: int, earlier: int) -> None:
        window = self._credit.exceeded(held, size, self.reserved, earlier)
        if window is not None:
            raise self._violation(
                "AQ-FLOW-2", f"the {window} window is exceeded", CloseCode.FLOW_CONTROL
            )

    def _check_each(self, run: MessageRun) -> None:
        """Check the messages of a run one by one: a large one may be first (AQ-FLOW-3)."""
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
        if self._ack_count >= self._context.config.ack_every:
            self._ack_count = 0
            self._context.acks_due[self.channel] = now
        elif self._flush_at == NEVER:
            self._flush_soon(now)

    def _flush_soon(self, now: float) -> None:
        if self._flush_at == NEVER:
            self._flush_at = now + self._context.config.ack_delay
            self._wake()

    def _wake(self) -> None:
        at = min(self._flush_at, self._close_at)
        if self.datagrams is not None and self.datagrams.deadlines:
            at = min(at, self.datagrams.deadlines[0][0])
        if at < NEVER and self.state in _AWAKE:
            self._context.timers.wake(self, at)

    def _limit_wait(self, now: float) -> None:
        """Bound the wait for announcements: a cancelled sender may never send them."""
        config = self._context.config
        timeout = config.cancelled_timeout if self._is_cancelled else config.closing_timeout
        if now + timeout < self._close_at:
            self._close_at = now + timeout
            self._wake()

    def _defers_close(self) -> bool:
        """Bound what the peer no longer counts (AQ-FLOW-7, AQ-LIMIT-4)."""
        context = self._context
        would_linger = self._queue is not None or (
            self.owner is Ownership.UNCLAIMED and self.attached
        )
        if would_linger and self.node is None:
            if context.lingering >= context.config.limits.max_channels:
                return True
        if self._queue is None:
            return False
        self._is_waiting = self._is_waiting or self._credit.must_drain_first(self._queue.size)
        return self._is_waiting

    def _control_stream(self) -> OutgoingStream:
        if self.control is None:
            self.control = self._context.out.open(self.channel)
            if self.node is not None:
                self.node.known = True
        return self.control

    def _send_acks(self, lengths: tuple[int, ...]) -> None:
        """Send the acks of reliable messages, and the decisions on the others."""
        out = self._context.out
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
        """Send the last acks and CLOSE_RECEIVER, in one stream (AQ-CLOSE-2)."""
        out = self._context.out
        datagrams = self.datagrams
        self._send_acks(datagrams.decide(now, everything=True) if datagrams is not None else ())
        control = self._control_stream()
        out.write(control, CloseReceiver().encode())
        out.finish(control)
        self._move(ReceiverInput.COMPLETE)
        queued = self._queue.size if self._queue is not None else 0
        self._credit.discard(self.channel, queued, self.unreported, self.reserved)
        if queued:
            self._credit.drain_later(queued)
        self.unreported = self.reserved = 0
        self._acks = self._reliable = self.datagrams = None
        self.wake_at = self._flush_at = self._close_at = NEVER

    def _drop_queue(self) -> list[MessageFrame]:
        """Empty the queue; return the messages with channels, which must be abandoned."""
        context = self._context
        credit = self._credit
        queue, self._queue = self._queue or Queue(), None
        if self.state is ReceiverState.DRAINING:
            credit.drain(queue.size)
        else:
            credit.discard(self.channel, queue.size, self.unreported, self.reserved)
            self.unreported = self.reserved = 0
        context.queued_objects -= queue.count
        return queue.drop(context.parser_limits)

    def _emit_end(self, how: End) -> None:
        """Emit the last event, if the application has the handle."""
        if self.owner is Ownership.APPLICATION:
            self._emit(ReceiverEnded(self.channel, how))
            self.owner = Ownership.RELEASED


_AWAKE = (ReceiverState.OPEN, ReceiverState.FINISHING, ReceiverState.CLOSING)
