"""Flow control: a sender stays within the windows of the peer, and the peer returns credit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from aqueduct.protocol.config import Limits
from aqueduct.protocol.events import End, SenderEnded, Writable
from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import (
    EPSILON,
    FIRST_WINDOW,
    FORGET_INTERVAL,
    NEVER,
    SAFE_DATAGRAM_SIZE,
)
from aqueduct.testing.checkers.subjects import ChannelFacts
from aqueduct.testing.record import (
    CommandCalled,
    ConnectionClosed,
    ConnectionGone,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageSent,
    MessageTaken,
    RecordEntry,
    SendFailed,
)
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    CloseReceiver,
    Dequeued,
    ForgetChannel,
    MessageFrame,
)


class _Outstanding:
    """The bytes that one side has outstanding, as far as that side can know."""

    def __init__(self, facts: RunFacts, side: Side) -> None:
        self.facts = facts
        self.side = side
        self.channels: dict[int, int] = {}
        self.total = 0
        # By channel: the sizes of datagram messages by number, and how many were decided.
        self.datagrams: dict[int, dict[int, int]] = {}
        self.decided: dict[int, int] = {}
        self.over: set[int] = set()

    def limits(self, time: float) -> Limits:
        if time < self.facts.listening[self.side]:
            return self.facts.record.first_limits
        return self.facts.record.limits[self.side.other]

    def add(self, channel: int, size: int) -> None:
        self.channels[channel] = self.channels.get(channel, 0) + size
        self.total += size

    def release(self, channel: int, size: int) -> bool:
        """Subtract bytes; return False if fewer were outstanding."""
        if channel in self.over:
            return True
        self.channels[channel] = self.channels.get(channel, 0) - size
        self.total -= size
        return self.channels[channel] >= 0

    def release_all(self, channel: int) -> None:
        self.over.add(channel)
        self.total -= self.channels.pop(channel, 0)

    def decide(self, channel: int, frame: AckNackUnreliable) -> None:
        number = self.decided.get(channel, 0)
        sizes = self.datagrams.get(channel, {})
        acked = True
        for length in frame.lengths:
            for each in range(number, number + length):
                if not acked:
                    self.release(channel, sizes.get(each, 0))
            number += length
            acked = not acked
        self.decided[channel] = number

    def arrived(self, arrived: FrameArrived) -> bool:
        """Apply the credit in a frame; return False if it is more than is outstanding."""
        frame = arrived.sent.frame
        channel = arrived.sent.channel
        if isinstance(frame, Dequeued):
            return self.release(channel, frame.num_bytes)
        if isinstance(frame, AckNackUnreliable):
            self.decide(channel, frame)
        elif isinstance(frame, CloseReceiver | ForgetChannel):
            facts = self.facts.channels.get(channel)
            # A frame about a channel that this side receives on carries no credit.
            if facts is not None and facts.sender == self.side:
                self.release_all(channel)
        return True


@checker
def within_the_windows(facts: RunFacts) -> Iterator[Violation]:
    """Bytes on the wire stay within the channel's and the connection's window (AQ-FLOW-2).

    Counted at the sender: the bytes sent, minus those that the peer reported as taken, nacked or
    moot. A message larger than a window may be alone in it.
    """
    sides = (_Outstanding(facts, Side.CLIENT), _Outstanding(facts, Side.SERVER))
    accepted: dict[tuple[int, int, bool], float] = {}
    for entry in facts.record.entries:
        if isinstance(entry, MessageSent):
            accepted[entry.channel, entry.number, entry.reliable] = entry.time
        elif isinstance(entry, FrameSent):
            if isinstance(entry.frame, MessageFrame):
                key = (entry.channel, entry.frame.number, not entry.in_datagram)
                side = sides[entry.side]
                found = [
                    _exceeded(side, entry.channel, entry.frame, side.limits(time))
                    for time in (entry.time, accepted.get(key, entry.time))
                ]
                if all(found):
                    for text in found[0]:
                        number = entry.frame.number
                        yield Violation(text, entry.time, entry.side, entry.channel, number)
                _spend(side, entry, entry.frame)
        elif isinstance(entry, FrameArrived):
            if not sides[entry.side].arrived(entry):
                text = "DEQUEUED reports more bytes than were sent"
                yield Violation(text, entry.time, entry.side.other, entry.sent.channel)
        elif isinstance(entry, EventRaised) and isinstance(entry.event, SenderEnded):
            sides[entry.side].release_all(entry.event.channel)


def _exceeded(
    outstanding: _Outstanding, channel: int, frame: MessageFrame, limits: Limits
) -> list[str]:
    """Return which limits a message exceeds: those when it left, or when it was accepted."""
    size = frame.size
    on_channel = outstanding.channels.get(channel, 0)
    problems = []
    # An empty message needs no credit; a larger one sent later may leave before it in a turn.
    if size and on_channel > 0 and on_channel + size > limits.channel_window:
        problems.append(f"{on_channel} + {size} bytes exceed the channel's {limits.channel_window}")
    if size:
        before = _shared(limits, outstanding.channels.values())
        changed = {**outstanding.channels, channel: on_channel + size}
        after = _shared(limits, changed.values())
        if before > limits.connection_window:
            # One message exceeds the window. It may have overtaken this one within a turn,
            # and use a reserve that this one had.
            wide = replace(limits, reserve_window=limits.reserve_window + limits.channel_reserve)
            before = _shared(wide, outstanding.channels.values())
            after = _shared(wide, changed.values())
        if after > before > 0 and after > limits.connection_window:
            problems.append(
                f"{before} + {after - before} bytes beside the reserves exceed the connection's "
                f"{limits.connection_window}"
            )
    if size > limits.max_message:
        problems.append(f"{size} bytes exceed max-message {limits.max_message}")
    if len(frame.attachments) > limits.max_attachments:
        problems.append(f"{len(frame.attachments)} attachments exceed {limits.max_attachments}")
    return problems


def _spend(outstanding: _Outstanding, sent: FrameSent, frame: MessageFrame) -> None:
    if sent.in_datagram:
        outstanding.datagrams.setdefault(sent.channel, {})[frame.number] = frame.size
    outstanding.add(sent.channel, frame.size)


def _shared(limits: Limits, outstanding: Iterable[int]) -> int:
    """Return the bytes that count against the connection window, without reserves (AQ-FLOW-10)."""
    each = list(outstanding)
    reserved = sum(min(size, limits.channel_reserve) for size in each)
    return sum(each) - min(reserved, limits.reserve_window)


class _CreditLedger:
    """The credit of both sides, and the messages that are accepted but not on the wire yet."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self.sides = (_Outstanding(facts, Side.CLIENT), _Outstanding(facts, Side.SERVER))
        # By side, channel and number in its space: when it was sent, and its size.
        self.waiting: tuple[dict[tuple[int, int, bool], tuple[float, int]], ...] = ({}, {})
        # By side: until when the bytes of lost channels count, and how many.
        self.written_off: tuple[list[tuple[float, int]], ...] = ([], [])
        self.slack = facts.record.lateness + EPSILON

    def see(self, entry: RecordEntry) -> None:
        """Apply an entry to the credit of both sides."""
        if isinstance(entry, MessageSent):
            message = self.facts.channels[entry.channel].space(entry.reliable)[entry.number]
            key = (entry.channel, entry.number, entry.reliable)
            self.waiting[entry.side][key] = (entry.time, message.size)
        elif isinstance(entry, FrameSent):
            if isinstance(entry.frame, MessageFrame):
                number = entry.frame.number
                self.waiting[entry.side].pop((entry.channel, number, not entry.in_datagram), None)
                outstanding = self.sides[entry.side]
                if entry.in_datagram:
                    outstanding.datagrams.setdefault(entry.channel, {})[number] = entry.frame.size
                outstanding.add(entry.channel, entry.frame.size)
        elif isinstance(entry, FrameArrived):
            channel = self.facts.channels.get(entry.sent.channel)
            # A core that had received both may have handled the end of a channel or its loss first.
            if channel is None or not channel.lost:
                self.sides[entry.side].arrived(entry)
        elif isinstance(entry, EventRaised) and isinstance(entry.event, SenderEnded):
            self._end(entry.side, entry.event, entry.time)

    def _end(self, side: Side, event: SenderEnded, time: float) -> None:
        kept = self.waiting[side]
        mine = [key for key in kept if key[0] == event.channel]
        unsent = sum(kept.pop(key)[1] for key in mine)
        outstanding = self.sides[side]
        if event.how is End.LOST:
            # The peer may hold these until FORGET_CHANNEL must have arrived (AQ-FLOW-8); how late a
            # timer of this run may be, and how it rounds, is the core's.
            held = outstanding.channels.get(event.channel, 0) + unsent
            self.written_off[side].append((time + FORGET_INTERVAL + 2 * self.slack, held))
        outstanding.release_all(event.channel)

    def room(self, refused: SendFailed, time: float) -> str | None:
        """Return why a message that would block fits at a time, or None if it does not."""
        outstanding = self.sides[refused.side]
        limits = outstanding.limits(time)
        channels = {refused.channel: 0, **outstanding.channels}
        lost = [size for until, size in self.written_off[refused.side] if time <= until]
        may_wait = self.facts.record.holds_datagrams or bool(self.facts.record.backlog)
        for (channel, _, reliable), (sent, size) in self.waiting[refused.side].items():
            # A datagram that did not leave in its turn, and could, was dropped and returned its
            # credit; that of a cancelled sender may keep it until the peer answers the cancel.
            cancelled = self.facts.channels[channel].cancel_called <= time
            if reliable or sent == time or cancelled or may_wait:
                channels[channel] = channels.get(channel, 0) + size
        on_channel = channels[refused.channel]
        total = _shared(limits, [*channels.values(), *lost])
        window = min(limits.channel_window, FIRST_WINDOW)  # a sender may use more, and need not
        if on_channel > 0 and on_channel + refused.size > window:
            return None
        channels[refused.channel] += refused.size
        after = _shared(limits, [*channels.values(), *lost])
        # One within the reserve does not wait (AQ-FLOW-10), nor an empty one if there are reserves.
        costs = after > total or not (refused.size or limits.channel_reserve)
        if total > 0 and after > limits.connection_window and costs:
            return None
        return (
            f"{refused.size} bytes beside {on_channel} of {limits.channel_window} on the channel"
            f" and {total} of {limits.connection_window} on the connection, beside the reserves"
        )


@checker
def no_block_with_room(facts: RunFacts) -> Iterator[Violation]:
    """A send raises WouldBlock only if it needs a stream and does not fit a window."""
    ledger = _CreditLedger(facts)
    for entry in facts.record.entries:
        ledger.see(entry)
        if not isinstance(entry, SendFailed) or entry.error != "WouldBlock" or entry.attached:
            # The size of a message with attachments depends on ids that were never assigned.
            continue
        channel = facts.channels.get(entry.channel)
        small = entry.size <= SAFE_DATAGRAM_SIZE
        if channel is not None and channel.mode == "UNRELIABLE" and small:
            problem: str | None = "an unreliable send"
        else:
            problem = ledger.room(entry, entry.time)
        if problem:
            yield Violation(f"a send would block: {problem}", entry.time, entry.side, entry.channel)


@checker
def writable_when_room(facts: RunFacts) -> Iterator[Violation]:
    """A sender that was blocked gets Writable at the instant when its message fits.

    If several senders wait, the core chooses the first, so only one that waits alone is checked.
    """
    ledger = _CreditLedger(facts)
    blocked: tuple[dict[int, SendFailed], dict[int, SendFailed]] = ({}, {})
    now = 0.0
    for entry in facts.record.entries:
        if entry.time > now:
            for waiting in blocked:
                yield from _judge_wait(ledger, waiting, now)
            now = entry.time
        ledger.see(entry)
        if isinstance(entry, SendFailed):
            if entry.error == "WouldBlock":
                blocked[entry.side][entry.channel] = entry
        elif isinstance(entry, MessageSent | CommandCalled):
            blocked[entry.side].pop(entry.channel, None)
        elif isinstance(entry, EventRaised):
            if isinstance(entry.event, SenderEnded | Writable):
                blocked[entry.side].pop(entry.event.channel, None)
        elif isinstance(entry, FrameArrived):
            if isinstance(entry.sent.frame, CloseReceiver | ForgetChannel):
                blocked[entry.side].pop(entry.sent.channel, None)
        elif isinstance(entry, ConnectionClosed | ConnectionGone):
            blocked[entry.side].clear()


def _judge_wait(
    ledger: _CreditLedger, waiting: dict[int, SendFailed], now: float
) -> Iterator[Violation]:
    if len(waiting) != 1:
        return
    ((channel, refused),) = waiting.items()
    room = None if refused.attached else ledger.room(refused, now)
    if room:
        del waiting[channel]
        yield Violation(f"waits although there is room: {room}", now, refused.side, channel)


@checker
def credit_is_exact(facts: RunFacts) -> Iterator[Violation]:
    """DEQUEUED reports what the application took: never more, and all of it in time (AQ-FLOW-4).

    At once when a quarter of the window has been taken, and within the ack delay when the queue
    has run empty.
    """
    for channel in facts.channels.values():
        yield from _follow_receiver(facts, channel)


def _follow_receiver(facts: RunFacts, channel: ChannelFacts) -> Iterator[Violation]:
    side = channel.receiver
    quarter = min(facts.record.limits[side].channel_window, FIRST_WINDOW) / 4
    timeout = facts.record.ack_delays[side] + facts.record.lateness + facts.slack
    over = min(channel.receiver_gone, facts.gone[side], channel.cancel_arrived)
    taken = 0
    reported = 0
    queued = 0
    quarter_due = empty_due = NEVER
    for entry in channel.entries:
        if entry.time >= over:
            break
        due = min(quarter_due, empty_due)
        if entry.time > due:
            text = f"{taken - reported} bytes taken were not reported by {due:.6f}"
            yield Violation(text, entry.time, side, channel.channel)
            return
        if isinstance(entry, FrameArrived) and entry.side == side:
            if isinstance(entry.sent.frame, MessageFrame):
                queued += 1
        elif isinstance(entry, MessageTaken):
            queued -= 1
            taken += entry.message.size
        elif isinstance(entry, FrameSent) and isinstance(entry.frame, Dequeued):
            reported += entry.frame.num_bytes
            if reported > taken:
                text = f"DEQUEUED reports {reported} bytes, but {taken} were taken"
                yield Violation(text, entry.time, side, channel.channel)
                return
        owed = taken - reported
        quarter_due = min(quarter_due, entry.time + facts.slack) if owed >= quarter > 0 else NEVER
        # If the queue fills again, the report may wait for more.
        empty_due = min(empty_due, entry.time + timeout) if owed and queued <= 0 else NEVER
    due = min(quarter_due, empty_due)
    if due < min(over, facts.end) and taken != reported:
        yield Violation(
            f"{taken - reported} bytes taken were never reported", due, side, channel.channel
        )


@checker
def credit_of_the_connection(facts: RunFacts) -> Iterator[Violation]:
    """The bytes taken but not reported over all channels stay below a quarter of the window."""
    owed: tuple[dict[int, int], dict[int, int]] = ({}, {})
    now = 0.0
    if facts.record.backlog:
        return  # they may have been reported, and wait for the transport
    for entry in facts.record.entries:
        if entry.time > now:
            for side in Side:
                yield from _judge_debt(facts, side, owed[side], now)
            now = entry.time
        if isinstance(entry, MessageTaken):
            of = owed[entry.side]
            of[entry.channel] = of.get(entry.channel, 0) + entry.message.size
        elif isinstance(entry, FrameSent):
            if isinstance(entry.frame, Dequeued):
                of = owed[entry.side]
                of[entry.channel] = of.get(entry.channel, 0) - entry.frame.num_bytes
            elif isinstance(entry.frame, CloseReceiver):
                owed[entry.side].pop(entry.channel, None)


def _judge_debt(
    facts: RunFacts, side: Side, owed: dict[int, int], now: float
) -> Iterator[Violation]:
    window = facts.record.limits[side].connection_window
    if sum(owed.values()) * 4 < window or facts.gone[side] <= now:
        return
    alive = {
        channel: size
        for channel, size in owed.items()
        if facts.channels[channel].receiver_gone > now
    }
    debt = sum(alive.values())
    if debt * 4 >= window:
        owed.clear()
        yield Violation(f"{debt} bytes taken are not reported, of a window of {window}", now, side)
