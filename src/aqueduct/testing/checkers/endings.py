"""Endings: each half ends once and for a reason, and nothing stays allocated."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.errors import CloseCode
from aqueduct.protocol.events import (
    Delivered,
    End,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
    Writable,
)
from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import EPSILON, FORGOTTEN_TIMEOUT, NEVER
from aqueduct.testing.checkers.subjects import ChannelFacts
from aqueduct.testing.record import (
    ConnectionClosed,
    CoreFault,
    EventRaised,
    FrameArrived,
    SendFailed,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import RouteTo

POLITE = (CloseCode.NO_ERROR, CloseCode.REFUSED)


EVERYTHING_ENDS = "everything ends"
"""The name of the checker that applies only to a run that is over."""


@checker
def only_documented_errors(facts: RunFacts) -> Iterator[Violation]:
    """A core raises only documented errors, and writes only bytes that can be parsed."""
    for entry in facts.record.entries:
        if isinstance(entry, CoreFault):
            yield Violation(entry.text, entry.time, entry.side)


@checker
def no_protocol_errors(facts: RunFacts) -> Iterator[Violation]:
    """Neither side closes the connection with a protocol error: both are ours.

    By the draft, the ghost of a receiver may ack on a second stream, which is a violation to us.
    """
    for entry in facts.record.entries:
        if isinstance(entry, ConnectionClosed) and entry.code not in POLITE:
            if facts.record.draft is not None and entry.reason.startswith("AQ-STREAM-5"):
                continue
            text = f"closed the connection with code {entry.code}: {entry.reason}"
            yield Violation(text, entry.time, entry.side)


@checker
def only_known_channels(facts: RunFacts) -> Iterator[Violation]:
    """No frame and no event names a channel or message that does not exist."""
    for entry, text in facts.strange:
        subject = entry.event if isinstance(entry, EventRaised) else entry
        channel = getattr(subject, "channel", None)
        yield Violation(f"{type(subject).__name__} {text}", entry.time, entry.side, channel)


@checker
def events_follow_handles(facts: RunFacts) -> Iterator[Violation]:
    """An application gets events only about halves it has, and none after the end of a half."""
    for channel in facts.channels.values():
        over = [False, False]
        for entry in channel.entries:
            if not isinstance(entry, EventRaised):
                continue
            of_sender = isinstance(entry.event, SenderEnded | Delivered | Undelivered | Writable)
            side = channel.sender if of_sender else channel.receiver
            held = channel.sender_held if of_sender else channel.receiver_held
            problem = None
            if entry.side != side:
                problem = "came to the wrong side"
            elif entry.time < held:
                problem = "came before the application had the half"
            elif over[entry.side]:
                problem = "came after the half had ended"
            elif isinstance(entry.event, Readable) and channel.close_called < entry.time:
                problem = "came after the receiver was closed"
            if problem:
                text = f"{type(entry.event).__name__} {problem}"
                yield Violation(text, entry.time, entry.side, channel.channel)
            if isinstance(entry.event, SenderEnded | ReceiverEnded):
                over[entry.side] = True


@checker
def senders_learn_their_end(facts: RunFacts) -> Iterator[Violation]:
    """A sender ends for its application once its side knows that (AQ-CLOSE-6)."""
    for channel in facts.channels.values():
        side = channel.sender
        known = channel.close_arrived
        if channel.creator == side:
            known = min(max(known, channel.accessible_known), channel.lost_known)
        else:
            # A sender that was forgotten waits for the last acks first (AQ-FORGET-5).
            timeout = FORGOTTEN_TIMEOUT + facts.record.lateness
            known = min(known, channel.forget_arrived + timeout)
        known = max(known, channel.sender_held)
        if known == NEVER or not facts.alive(side, known + EPSILON):
            continue
        ended = channel.sender_ends[0][0] if channel.sender_ends else NEVER
        if ended > known + EPSILON:
            text = "the sender has ended, and its application was not told"
            yield Violation(text, known, side, channel.channel)


@checker
def ends_have_reasons(facts: RunFacts) -> Iterator[Violation]:
    """A half ends as one of the applications, or the connection, ended it."""
    for channel in facts.channels.values():
        ends: list[tuple[float, SenderEnded | ReceiverEnded]] = [
            *channel.sender_ends,
            *channel.receiver_ends,
        ]
        for time, event in ends:
            problem = _problem_of(facts, channel, event, time)
            if problem:
                side = channel.sender if isinstance(event, SenderEnded) else channel.receiver
                yield Violation(
                    f"ended {event.how.name}, but {problem}", time, side, channel.channel
                )


def _problem_of(
    facts: RunFacts, channel: ChannelFacts, event: SenderEnded | ReceiverEnded, time: float
) -> str | None:
    how = event.how
    is_sender = isinstance(event, SenderEnded)
    side = channel.sender if is_sender else channel.receiver
    if how is End.CONNECTION:
        # A close waits for what was written, for ever if that needs streams (AQ-STREAM-9).
        gone = facts.gone[side] <= time or facts.record.backlog
        return None if gone else "the connection is open"
    if how is End.FINISHED and channel.finish_asked > time:
        return "the sender was not finished"
    if how is End.CANCELLED:
        unclaimed = not is_sender and channel.sender_held > time
        if channel.cancel_called > time and not unclaimed:
            return "the sender was not cancelled"
    if how is End.RECEIVER_CLOSED:
        if not is_sender:
            return "it is the receiver"
        closed = min(channel.close_called, channel.stop_called)
        if min(closed, channel.receiver_held) <= time < closed:
            return "the peer did not close it"
    if how is End.STOPPED and channel.stop_called > time:
        return "the receiver was not stopped"
    return None


@checker
def errors_have_reasons(facts: RunFacts) -> Iterator[Violation]:
    """An open sender accepts messages within the limits; an error has a documented cause."""
    for channel in facts.channels.values():
        for entry in channel.entries:
            if not isinstance(entry, SendFailed):
                continue
            problem = _problem_of_error(facts, channel, entry)
            if problem:
                text = f"send raised {entry.error}, but {problem}"
                yield Violation(text, entry.time, entry.side, channel.channel)


def _problem_of_error(facts: RunFacts, channel: ChannelFacts, entry: SendFailed) -> str | None:
    limits = facts.record.limits[channel.receiver]
    if entry.error == "WouldBlock":
        return None
    if entry.error == "ChannelClosed":
        ended = min([channel.cancel_called, *(time for time, _ in channel.sender_ends)])
        if min(ended, channel.finish_asked, facts.gone[entry.side]) > entry.time:
            return "the sender was open"
        return None
    if entry.error == "ReceiverClosed":
        # The end of a pending channel is reported once its lineage is known.
        heard = min(channel.close_arrived, channel.forget_arrived)
        return "the receiver was open" if heard > entry.time else None
    if entry.error == "MessageTooLarge":
        smallest = min(facts.record.first_limits.max_message, limits.max_message)
        plain = not entry.attached and not entry.headers
        return f"it has only {entry.size} bytes" if plain and entry.size <= smallest else None
    if entry.error == "LocalProtocolError" and entry.attached:
        smallest = min(facts.record.first_limits.max_channels, limits.max_channels)
        made = sum(each.creator == entry.side for each in facts.channels.values())
        if made + entry.attached > smallest:
            return None
    return "this error is never allowed"


@checker
def leaving_is_no_error(facts: RunFacts) -> Iterator[Violation]:
    """A client that leaves closes as soon as the entrypoint has ended in order (AQ-LEAVE-1)."""
    if facts.left == NEVER:
        return
    entrypoint = facts.channels[ENTRYPOINT]
    ended = min((time for time, _ in entrypoint.sender_ends), default=NEVER)
    closed = facts.closed[Side.CLIENT]
    if closed == NEVER:
        if facts.gone[Side.CLIENT] == NEVER and max(ended, facts.left) < facts.end:
            yield Violation("left, and never closed", facts.left, Side.CLIENT)
        return
    for half, end in (
        (entrypoint.sender, entrypoint.sender_end),
        (entrypoint.receiver, entrypoint.receiver_end),
    ):
        if end is not None and end.how is End.CONNECTION and closed >= facts.left:
            text = "the client left, but the entrypoint ended with the connection"
            yield Violation(text, closed, half, ENTRYPOINT)


def _is_unknown_ghost(facts: RunFacts, text: str) -> bool:
    """Return whether the creator has not heard of a ghost since its own half ended.

    By the draft, a half that is revived before its CLOSE_RECEIVER arrived stays for ever.
    """
    kind, _, number = text.rpartition(" ")
    channel = facts.channels.get(int(number)) if kind == "a ghost of channel" else None
    if channel is None:
        return False
    ended = channel.close_arrived if channel.creator == channel.sender else channel.close_written
    return not any(
        isinstance(entry, FrameArrived)
        and entry.side == channel.creator
        and isinstance(entry.sent.frame, RouteTo)
        and entry.time > min(ended, channel.lost_known)
        for entry in channel.entries
    )


@checker
def everything_ends(facts: RunFacts) -> Iterator[Violation]:
    """After the faults stop, all halves end within the timeout, and the cores hold nothing."""
    if facts.record.draft is not None:
        # By the draft, an application may hold a handle whose carrier was nacked (AQ-CLOSE-3). The
        # creator has lost that channel, and never heard that the peer knows it.
        if any(channel.below_given_up for channel in facts.channels.values()):
            return
    if not facts.record.drained:
        yield Violation("the run did not become idle", facts.end)
    for side, left in zip(Side, facts.record.leftovers, strict=True):
        for text in left:
            if side == facts.record.draft and _is_unknown_ghost(facts, text):
                continue
            yield Violation(f"still holds {text}", facts.end, side)
    for channel in facts.channels.values():
        if channel.sender_held < NEVER and not channel.sender_ends:
            yield Violation("the sender never ended", facts.end, channel.sender, channel.channel)
        heard = facts.listening[Side.SERVER] < NEVER or channel.channel != 0
        if channel.receiver_held < NEVER and not channel.receiver_ends and heard:
            if channel.close_called == NEVER:
                yield Violation(
                    "the receiver never ended", facts.end, channel.receiver, channel.channel
                )
        if facts.over == NEVER and not channel.lost and channel.close_written == NEVER:
            yield Violation(
                "CLOSE_RECEIVER was never sent", facts.end, channel.receiver, channel.channel
            )
