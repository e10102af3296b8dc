"""Fates: each message has one fate, and both ends agree on it."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.protocol.events import Delivered, End, Undelivered
from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import NEVER
from aqueduct.testing.checkers.subjects import ChannelFacts, MessageFacts
from aqueduct.testing.record import EventRaised


@checker
def one_fate(facts: RunFacts) -> Iterator[Violation]:
    """The fate of a message is reported at most once, and before its sender ends."""
    for channel in facts.channels.values():
        for message in channel.messages:
            if message.reports > 1:
                yield _about(message, f"its fate was reported {message.reports} times")
        if not channel.sender_ends:
            continue
        ended = False
        for entry in channel.entries:
            if not isinstance(entry, EventRaised):
                continue
            if entry.event is channel.sender_end:
                ended = True
            elif ended and isinstance(entry.event, Delivered | Undelivered):
                text = f"{type(entry.event).__name__} came after the sender had ended"
                yield Violation(text, entry.time, entry.side, channel.channel)


@checker
def both_ends_agree(facts: RunFacts) -> Iterator[Violation]:
    """A message that was taken is reported delivered; one that is not by its end is never taken."""
    for channel in facts.channels.values():
        if channel.below_given_up or channel.revived:
            continue
        end = channel.sender_end
        for message in channel.messages:
            if message.taken == NEVER or message.given_up:
                continue
            if message.undelivered < NEVER:
                yield _about(message, "was reported undelivered, and taken")
            elif end is not None and end.how is not End.CONNECTION and message.delivered == NEVER:
                yield _about(message, "was taken, but never reported delivered")


@checker
def delivered_after_ack(facts: RunFacts) -> Iterator[Violation]:
    """Delivered means acked, on a channel that the application of the peer can access."""
    for channel in facts.channels.values():
        reachable = _reachable_since(channel)
        for message in channel.messages:
            time = message.delivered
            if time == NEVER:
                continue
            if time < message.ack_known:
                yield _about(message, "was reported before any ack came")
            if time < reachable:
                yield _about(message, "was reported while its channel was pending")


@checker
def undelivered_after_nack(facts: RunFacts) -> Iterator[Violation]:
    """Undelivered means that the message was nacked or its channel lost before (AQ-NACK-1)."""
    for channel in facts.channels.values():
        for message in channel.messages:
            time = message.undelivered
            lost = channel.lost_known if channel.creator == channel.sender else NEVER
            if time < NEVER and time < min(message.nack_known, lost):
                yield _about(message, "was reported before any nack came")


@checker
def fates_are_complete(facts: RunFacts) -> Iterator[Violation]:
    """When a sender ends, each message that is acked and accessible has been reported."""
    for channel in facts.channels.values():
        end = channel.sender_end
        if end is None or end.how is End.CONNECTION:
            continue
        reachable = _reachable_since(channel)
        ended = channel.sender_ends[0][0]
        for message in channel.messages:
            known = max(message.ack_known, reachable)
            if known <= ended and message.delivered == NEVER:
                yield _about(message, "was acked but not reported delivered")
            if message.delivered < NEVER and message.delivered > known:
                yield _about(message, "was reported late")
            if message.nack_known < ended and message.undelivered > message.nack_known:
                yield _about(message, "was nacked but not reported so")
        if end.how is not End.FINISHED:
            continue
        for message in channel.messages:
            if message.sent.reliable and message.delivered == NEVER:
                yield _about(message, "the sender ended FINISHED without it")
            elif message.delivered == NEVER and message.nacked == NEVER:
                yield _about(message, "the sender ended with it undecided")


def _reachable_since(channel: ChannelFacts) -> float:
    return channel.accessible_known if channel.creator == channel.sender else 0.0


def _about(message: MessageFacts, text: str) -> Violation:
    channel = message.channel
    space = "" if message.sent.reliable else " (unreliable)"
    time = min(message.delivered, message.undelivered)
    return Violation(
        text + space,
        message.sent.time if time == NEVER else time,
        channel.sender,
        channel.channel,
        message.number,
    )
