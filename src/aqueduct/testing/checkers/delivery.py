"""Delivery: each message is taken at most once, intact, and in the order of its mode."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.protocol.events import End, ReceiverEnded
from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import NEVER
from aqueduct.testing.checkers.subjects import ChannelFacts, MessageFacts
from aqueduct.testing.record import EventRaised, MessageReceived


@checker
def intact_content(facts: RunFacts) -> Iterator[Violation]:
    """A message is taken with the payload, headers and channels it was sent with."""
    for channel in facts.channels.values():
        for took, message in channel.takes:
            if message is None:
                text = f"took {len(took.message.payload)} bytes that match no sent message"
                yield Violation(text, took.time, took.side, took.channel, took.message.number)


@checker
def at_most_once(facts: RunFacts) -> Iterator[Violation]:
    """No message is taken twice, in any mode (AQ-SEND-2)."""
    for channel in facts.channels.values():
        for message in channel.messages:
            if message.takes > 1:
                yield _about(message, f"was taken {message.takes} times")


@checker
def ordered_delivery(facts: RunFacts) -> Iterator[Violation]:
    """An ORDERED channel delivers its messages in order and without gaps."""
    for channel in facts.channels.values():
        if channel.mode != "ORDERED":
            continue
        for position, (took, _) in enumerate(channel.takes):
            if took.message.number != position:
                text = f"was taken when {position} was next"
                yield Violation(text, took.time, took.side, took.channel, took.message.number)
                break


@checker
def finished_means_all(facts: RunFacts) -> Iterator[Violation]:
    """A receiver that ends FINISHED delivered every message but nacked datagrams."""
    for channel in facts.channels.values():
        end = channel.receiver_end
        if end is None or end.how is not End.FINISHED:
            continue
        if channel.finish_asked == NEVER:
            text = "the receiver ended FINISHED, but the sender was not finished"
            yield Violation(text, channel.receiver_ends[0][0], channel.receiver, channel.channel)
        for message in channel.messages:
            if message.taken == NEVER and (message.sent.reliable or message.nacked == NEVER):
                yield _about(message, "was never taken")


@checker
def stopped_keeps_what_arrived(facts: RunFacts) -> Iterator[Violation]:
    """A receiver that ends STOPPED delivered what was acked, and nothing later (AQ-DRAIN-1)."""
    for channel in facts.channels.values():
        end = channel.receiver_end
        stopped = channel.stop_called
        if channel.finish_arrived <= stopped:
            stopped = NEVER  # it only waits for what the sender has finished
        for message in channel.messages:
            if message.arrived > stopped and message.taken < NEVER:
                yield _about(message, "arrived after the receiver was stopped, and was taken")
            if end is None or end.how is not End.STOPPED:
                continue
            if message.acked < NEVER and message.taken == NEVER:
                yield _about(message, "was acked by a receiver that ended stopped, and never taken")


@checker
def nothing_after_nack(facts: RunFacts) -> Iterator[Violation]:
    """A message that was nacked is never taken, neither before nor after the nack (AQ-UNREL-3).

    Except for one that was not announced within the time that a closing receiver waits.
    """
    for channel in facts.channels.values():
        for message in channel.messages:
            if message.taken < NEVER and message.nacked < NEVER and not message.given_up:
                yield _about(message, "was nacked, and taken")


@checker
def taken_before_end(facts: RunFacts) -> Iterator[Violation]:
    """Nothing is taken from a receiver after it ended or was closed."""
    for channel in facts.channels.values():
        over = min([channel.close_called, *(time for time, _ in channel.receiver_ends)])
        for took, _ in channel.takes:
            if took.time > over:
                text = "was taken after the receiver had ended"
                yield Violation(text, took.time, took.side, took.channel, took.message.number)


@checker
def nothing_received_after_cancel(facts: RunFacts) -> Iterator[Violation]:
    """An application receives nothing once the peer's cancel has arrived (AQ-CANCEL-5)."""
    for channel in facts.channels.values():
        cancelled = False
        for entry in channel.entries:
            if isinstance(entry, EventRaised) and isinstance(entry.event, ReceiverEnded):
                cancelled = entry.event.how is End.CANCELLED
            elif cancelled and isinstance(entry, MessageReceived):
                text = "was received after the cancel"
                yield Violation(text, entry.time, entry.side, entry.channel, entry.number)


@checker
def prefetched_halves_are_ended(facts: RunFacts) -> Iterator[Violation]:
    """Halves in prefetched messages that a cancel discards are ended at once (AQ-CLOSE-4)."""
    for channel in facts.channels.values():
        carrier = channel.carrier
        if carrier is None or carrier.taken == NEVER or carrier.received < NEVER:
            continue
        parent = carrier.channel
        end = parent.receiver_end
        if not parent.prefetched or end is None or end.how is not End.CANCELLED:
            continue
        side = parent.receiver
        due = parent.receiver_ends[0][0]
        if side == channel.sender:
            ended = min([channel.cancel_called, *(time for time, _ in channel.sender_ends)])
        else:
            ended = min([channel.close_called, *(time for time, _ in channel.receiver_ends)])
        if ended > due and facts.alive(side, due):
            text = "came in a prefetched message that was discarded, and was left open"
            yield Violation(text, due, side, channel.channel)


@checker
def taken_after_arrival(facts: RunFacts) -> Iterator[Violation]:
    """A message is taken after it arrived, from a receiver that the application has."""
    for channel in facts.channels.values():
        for took, message in channel.takes:
            if took.time < channel.receiver_held or (
                message is not None and took.time < message.arrived
            ):
                text = "was taken before it arrived"
                yield Violation(text, took.time, took.side, took.channel, took.message.number)


def _about(message: MessageFacts, text: str) -> Violation:
    channel: ChannelFacts = message.channel
    space = "" if message.sent.reliable else " (unreliable)"
    return Violation(
        text + space,
        message.taken if message.taken < NEVER else message.sent.time,
        channel.receiver,
        channel.channel,
        message.number,
    )
