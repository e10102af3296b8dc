"""Channels lost in transit: exactly the creators of lost channels learn of the loss."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.protocol.events import End, ReceiverEnded, SenderEnded
from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import NEVER
from aqueduct.testing.checkers.subjects import ChannelFacts
from aqueduct.testing.record import FrameArrived, FrameSent

LINEAGE_SHOWN = 16


@checker
def lost_is_reported(facts: RunFacts) -> Iterator[Violation]:
    """The creator's half of a lost channel ends LOST as soon as the loss is known (AQ-LIN-3).

    Except if it ended before: closed by its own application, or ended by the core of the peer,
    which knew the channel but never passed it to the application.
    """
    for channel in facts.channels.values():
        known = channel.lost_known
        if not channel.lost or channel.below_given_up or not facts.alive(channel.creator, known):
            continue
        ends = _ends(channel, channel.creator)
        if not ends:
            if channel.creator == channel.receiver and channel.close_called <= known:
                continue
            yield _about(channel, "is lost, but this was not reported to its creator", known)
            continue
        time, event = ends[0]
        if event.how is End.LOST:
            if time != known:
                yield _about(channel, f"is lost since {known:.6f}, reported at another time", time)
        elif time > known or event.how is End.FINISHED:
            yield _about(channel, f"is lost, but ended {event.how.name}", time)


@checker
def only_lost_is_reported(facts: RunFacts) -> Iterator[Violation]:
    """A half ends LOST only if its lineage was lost, and only at the creator (AQ-LIN-3)."""
    for channel in facts.channels.values():
        for side in (channel.sender, channel.receiver):
            for time, event in _ends(channel, side):
                if event.how is not End.LOST:
                    continue
                if channel.below_given_up:
                    continue
                if side != channel.creator:
                    if side == facts.record.draft:
                        continue
                    yield _about(channel, "ended LOST at the peer", time)
                elif not channel.lost or time < channel.lost_known:
                    yield _about(channel, "ended LOST but is not", time)


@checker
def lost_is_out_of_reach(facts: RunFacts) -> Iterator[Violation]:
    """The peer's application never gets a handle to a lost channel."""
    for channel in facts.channels.values():
        if not channel.lost:
            continue
        held = channel.receiver_held if channel.creator == channel.sender else channel.sender_held
        if held < NEVER and not channel.below_given_up:
            yield _about(channel, "is lost, but was handed out", held)


@checker
def right_lineage(facts: RunFacts) -> Iterator[Violation]:
    """LOST names the channels above, nearest first, up to the one whose message was lost."""
    for channel in facts.channels.values():
        for time, event in _ends(channel, channel.creator):
            if event.how is not End.LOST or not channel.lost:
                continue
            if event.lineage not in _possible_lineages(channel, time):
                names = ", ".join(str(each) for each in event.lineage)
                yield _about(channel, f"lost with the lineage ({names})", time)


def _possible_lineages(channel: ChannelFacts, time: float) -> list[tuple[int, ...]]:
    """Return each lineage up to a message that is known to be lost at ``time``."""
    found = []
    path: list[int] = []
    current: ChannelFacts | None = channel
    while current is not None and current.carrier is not None:
        path.append(current.carrier.channel.channel)
        if current.carrier.nack_known <= time:
            found.append(tuple(path[:LINEAGE_SHOWN]))
        current = current.parent
    return found


@checker
def lost_is_forgotten(facts: RunFacts) -> Iterator[Violation]:
    """The creator of a lost channel sends FORGET_CHANNEL to a peer that knows it (AQ-LIN-4).

    It does so at once if a ROUTE_TO for the channel was sent or received before, and otherwise
    when one arrives (AQ-ROUTE-3).
    """
    for channel in facts.channels.values():
        known = channel.lost_known
        if not channel.lost or not facts.alive(channel.creator, known):
            continue
        due = max(known, _heard_of(channel)) + facts.slack
        if channel.forget_written > due and facts.alive(channel.creator, due):
            yield _about(channel, "is lost, but the peer was not notified", due)


def _heard_of(channel: ChannelFacts) -> float:
    """Return when the creator first sent or received a ROUTE_TO for the channel."""
    times = (
        entry.time
        for entry in channel.entries
        if isinstance(entry, FrameSent | FrameArrived) and entry.side == channel.creator
    )
    return next(times, NEVER)


def _ends(channel: ChannelFacts, side: int) -> list[tuple[float, SenderEnded | ReceiverEnded]]:
    if side == channel.sender:
        return list(channel.sender_ends)
    return list(channel.receiver_ends)


def _about(channel: ChannelFacts, text: str, time: float) -> Violation:
    return Violation(text, time, channel.creator, channel.channel)
