"""Timing: deadlines for acks, announcements, decisions and answers, and rate limits."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import (
    ACK_EVERY,
    ANNOUNCE_DELAY,
    DEADLINE_GRAIN,
    EPSILON,
    FORGET_INTERVAL,
    FORGET_PATIENCE,
    NEVER,
    ROUTE_DELAY,
)
from aqueduct.testing.checkers.subjects import ChannelFacts
from aqueduct.testing.record import FrameArrived, FrameSent
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    CloseReceiver,
    ForgetChannel,
    MessageFrame,
    RouteTo,
    SentUnreliable,
)


@checker
def acks_in_time(facts: RunFacts) -> Iterator[Violation]:
    """A message in a stream is acked within the ack delay, and before the receiver closes."""
    for channel in facts.channels.values():
        side = channel.receiver
        timeout = facts.record.ack_delays[side] + facts.record.lateness + facts.slack
        gone = channel.receiver_gone
        for message in channel.reliable.values():
            arrived = message.arrived
            if arrived == NEVER or message.acked <= arrived + timeout:
                continue
            forgotten = channel.creator == channel.sender and (
                channel.forget_arrived <= arrived + timeout
            )
            lost = channel.creator == side and channel.lost_known <= arrived + timeout
            if arrived >= gone or forgotten or lost:
                continue
            if facts.alive(side, arrived + timeout):
                text = f"arrived at {arrived:.6f} and was not acked in time"
                yield Violation(text, arrived + timeout, side, channel.channel, message.number)


@checker
def acks_under_load(facts: RunFacts) -> Iterator[Violation]:
    """At most 64 messages wait for their ack after the instant of their arrival (AQ-ACK-1)."""
    for channel in facts.channels.values():
        waiting = 0
        since = 0.0
        gone = min(channel.receiver_gone, facts.gone[channel.receiver])
        for entry in channel.entries:
            if entry.time >= gone:
                break
            if waiting >= ACK_EVERY and entry.time > since + facts.slack:
                text = f"{waiting} messages wait for their ack"
                yield Violation(text, since, channel.receiver, channel.channel)
                break
            if isinstance(entry, FrameArrived):
                if isinstance(entry.sent.frame, MessageFrame) and not entry.sent.in_datagram:
                    waiting += 1
                    since = entry.time
            elif isinstance(entry, FrameSent) and isinstance(entry.frame, AckReliable):
                waiting -= sum(stop - start for start, stop in entry.frame.ranges)


@checker
def acks_are_true(facts: RunFacts) -> Iterator[Violation]:
    """Only messages that arrived are acked, and no number is decided before its announcement."""
    for channel in facts.channels.values():
        for message in channel.messages:
            if message.acked < message.arrived:
                yield Violation(
                    "was acked but had not arrived",
                    message.acked,
                    channel.receiver,
                    channel.channel,
                    message.number,
                )
        if channel.unreliable or channel.decided:
            yield from _follow_announcements(channel)


def _follow_announcements(channel: ChannelFacts) -> Iterator[Violation]:
    """Compare the numbers announced to the receiver with those it decided."""
    announced = decided = 0
    for entry in channel.entries:
        if isinstance(entry, FrameArrived) and isinstance(entry.sent.frame, SentUnreliable):
            announced += entry.sent.frame.count
        elif isinstance(entry, FrameSent) and isinstance(entry.frame, AckNackUnreliable):
            decided += sum(entry.frame.lengths)
            if decided > announced:
                text = f"{decided} numbers are decided, {announced} were announced"
                yield Violation(text, entry.time, entry.side, channel.channel)
                return


@checker
def nacks_in_time(facts: RunFacts) -> Iterator[Violation]:
    """A datagram is decided after its deadline, which follows from the round-trip time."""
    slack = DEADLINE_GRAIN + facts.record.lateness + facts.slack
    for channel in facts.channels.values():
        if not channel.unreliable:
            continue
        latest = 0.0
        least, most = facts.record.receipt_deadlines[channel.receiver]
        for number, announced in enumerate(_announcements(channel)):
            message = channel.unreliable.get(number)
            if message is None:
                break
            shortest, longest = facts.rtt(channel.receiver, announced)
            # Deadlines are monotonic.
            latest = max(latest, announced + min(max(2 * longest, least), most) + slack)
            problem = None
            if message.nacked < announced + min(max(2 * shortest, least), most) - EPSILON:
                if not _closed_early(channel, message.nacked):
                    problem = "nacked too early"
            elif min(message.acked, message.nacked, channel.receiver_gone) > latest:
                if facts.alive(channel.receiver, latest):
                    problem = "not decided in time"
            if problem:
                yield Violation(
                    f"was announced at {announced:.6f} and {problem}",
                    min(message.nacked, latest),
                    channel.receiver,
                    channel.channel,
                    number,
                )


def _closed_early(channel: ChannelFacts, time: float) -> bool:
    """Return whether the receiver was closed, and so nacked what had not arrived."""
    called = min(channel.close_called, channel.stop_called)
    return min(called, channel.cancel_arrived, channel.dropped) <= time


def _announcements(channel: ChannelFacts) -> list[float]:
    """Return when the receiver learned of each unreliable number."""
    times: list[float] = []
    for entry in channel.entries:
        if isinstance(entry, FrameArrived) and isinstance(entry.sent.frame, SentUnreliable):
            times.extend([entry.time] * entry.sent.frame.count)
    return times


@checker
def announcements_in_time(facts: RunFacts) -> Iterator[Violation]:
    """SENT_UNRELIABLE follows a datagram within 25 ms, and counts no more than was sent."""
    timeout = ANNOUNCE_DELAY + facts.record.lateness + facts.slack
    for channel in facts.channels.values():
        if not channel.unreliable:
            continue
        announced: list[float] = []
        for entry in channel.entries:
            if isinstance(entry, FrameSent) and isinstance(entry.frame, SentUnreliable):
                announced.extend([entry.time] * entry.frame.count)
        if len(announced) > len(channel.unreliable):
            text = f"announced {len(announced)} messages, sent {len(channel.unreliable)}"
            yield Violation(text, announced[-1], channel.sender, channel.channel)
        for number, message in channel.unreliable.items():
            written = message.written
            if written == NEVER:
                continue
            latest = written + timeout
            if number < len(announced) and announced[number] <= latest:
                continue
            if min(channel.sender_gone, channel.cancel_written) <= latest:
                continue
            if facts.alive(channel.sender, latest):
                text = f"was sent at {written:.6f} and not announced in time"
                yield Violation(text, latest, channel.sender, channel.channel, number)


@checker
def forgets_are_rare(facts: RunFacts) -> Iterator[Violation]:
    """FORGET_CHANNEL is not repeated for one channel within a second (AQ-FORGET-2)."""
    for channel in facts.channels.values():
        last = -NEVER
        for entry in channel.entries:
            if isinstance(entry, FrameSent) and isinstance(entry.frame, ForgetChannel):
                if entry.time < last + FORGET_INTERVAL - facts.slack:
                    text = f"was already forgotten at {last:.6f}"
                    yield Violation(text, entry.time, entry.side, channel.channel)
                last = entry.time


@checker
def ghosts_are_forgotten(facts: RunFacts) -> Iterator[Violation]:
    """A ROUTE_TO for a channel that has ended is answered with FORGET_CHANNEL (AQ-ROUTE-5).

    Its creator waits for a second without another one, but at most five, if the channel ended in
    good order. If it was lost, what comes within a second of FORGET_CHANNEL waits (AQ-ROUTE-6).
    """
    if facts.record.backlog:
        return  # what is sent late was not late in being written
    for channel in facts.channels.values():
        if channel.carrier is not None:
            yield from _follow_routes(facts, channel)


def _follow_routes(facts: RunFacts, channel: ChannelFacts) -> Iterator[Violation]:
    side = channel.creator
    slack = facts.record.lateness + EPSILON
    gone = heard = first = last = NEVER
    for entry in channel.entries:
        if not isinstance(entry, FrameSent | FrameArrived) or entry.side != side:
            continue
        frame = entry.frame if isinstance(entry, FrameSent) else entry.sent.frame
        if entry.time > last + FORGET_INTERVAL + slack and facts.alive(side, entry.time):
            yield Violation(f"was named at {last:.6f}, unanswered", last, side, channel.channel)
            return
        if isinstance(frame, CloseReceiver):
            gone = min(gone, entry.time)
        elif isinstance(frame, ForgetChannel):
            if entry.time < channel.lost_known:
                if first == NEVER and heard == gone:
                    first = last = heard  # it came behind the end, within the same instant
                early = first == NEVER or (
                    entry.time < last + FORGET_INTERVAL - EPSILON
                    and entry.time < first + FORGET_PATIENCE - EPSILON
                )
                if early:
                    text = "was forgotten before it was quiet"
                    yield Violation(text, entry.time, side, channel.channel)
            gone = min(gone, entry.time)
            first = last = NEVER
        elif isinstance(frame, RouteTo) and isinstance(entry, FrameArrived):
            heard = entry.time
            if gone < NEVER:
                first = min(first, entry.time)
                last = entry.time
    due = last + FORGET_INTERVAL + slack
    if last < NEVER and facts.alive(side, due):
        yield Violation(f"was named at {last:.6f}, unanswered", last, side, channel.channel)


@checker
def closing_is_bounded(facts: RunFacts) -> Iterator[Violation]:
    """A receiver that ends does not wait for ever for an announcement (AQ-CLOSE-3)."""
    slack = facts.record.lateness + EPSILON
    for channel in facts.channels.values():
        due = channel.closing_due + slack
        side = channel.receiver
        gone = channel.lost_known if channel.creator == side else channel.forget_arrived
        if not channel.unreliable or due >= min(channel.close_written, gone):
            continue
        # One whose handle was not taken may wait for that (AQ-LIMIT-4).
        if channel.receiver_held <= due and facts.alive(side, due):
            yield Violation("still waits for announcements", due, side, channel.channel)


@checker
def routes_are_answered(facts: RunFacts) -> Iterator[Violation]:
    """A ROUTE_TO for a channel whose carrier has not arrived is answered within 10 ms."""
    timeout = ROUTE_DELAY + facts.record.lateness + facts.slack
    for channel in facts.channels.values():
        side: Side = channel.creator.other
        if channel.carrier is None:
            continue
        heard = next(
            (
                entry.time
                for entry in channel.entries
                if isinstance(entry, FrameArrived)
                and entry.side == side
                and isinstance(entry.sent.frame, RouteTo)
            ),
            NEVER,
        )
        if heard >= min(channel.carrier.arrived, channel.forget_arrived):
            continue
        latest = heard + timeout
        answered = any(
            isinstance(entry, FrameSent)
            and entry.side == side
            and isinstance(entry.frame, RouteTo)
            and entry.time <= latest
            for entry in channel.entries
        )
        if answered or channel.forget_arrived <= latest or not facts.alive(side, latest):
            continue
        yield Violation(f"was named at {heard:.6f} and not answered", latest, side, channel.channel)
