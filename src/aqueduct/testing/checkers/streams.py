"""Frames on the wire: which side sends which frame, on which stream, in which order."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.errors import StreamCode
from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import EPSILON, NEVER, SAFE_DATAGRAM_SIZE
from aqueduct.testing.checkers.subjects import ChannelFacts, StreamFacts
from aqueduct.testing.record import NO_CHANNEL, FrameArrived, FrameSent
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    ForgetChannel,
    Frame,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    Version,
)

BY_SENDER = (MessageFrame, SentUnreliable, FinishSender, CancelSender)
BY_RECEIVER = (AckReliable, AckNackUnreliable, Dequeued, CloseReceiver)


@checker
def right_side(facts: RunFacts) -> Iterator[Violation]:
    """A frame comes from the side of the channel that may send it (AQ-FRAME-18)."""
    for channel in facts.channels.values():
        for sent in channel.entries:
            if not isinstance(sent, FrameSent):
                continue
            frame = sent.frame
            wrong = (
                (isinstance(frame, BY_SENDER) and sent.side != channel.sender)
                or (isinstance(frame, BY_RECEIVER) and sent.side == channel.sender)
                or (isinstance(frame, ForgetChannel) and sent.side != channel.creator)
            )
            if wrong:
                text = f"{type(frame).__name__} came from the wrong side"
                yield Violation(text, sent.time, sent.side, channel.channel)


@checker
def version_first(facts: RunFacts) -> Iterator[Violation]:
    """Until ACK_VERSION arrives, each stream and datagram starts with VERSION (AQ-VERSION-1)."""
    acked = [False, False]
    begun: set[tuple[Side, int]] = set()
    for entry in facts.record.entries:
        if isinstance(entry, FrameArrived) and isinstance(entry.sent.frame, AckVersion):
            acked[entry.side] = True
        elif isinstance(entry, FrameSent):
            key = (entry.side, entry.stream)
            if key in begun:
                continue
            begun.add(key)
            if not acked[entry.side] and not isinstance(entry.frame, Version):
                text = f"stream {entry.stream} begins with {type(entry.frame).__name__}"
                yield Violation(text, entry.time, entry.side)


@checker
def handshake_is_complete(facts: RunFacts) -> Iterator[Violation]:
    """VERSION is answered at once, and each side sends its connection headers at most once."""
    for side in Side:
        heard = answered = NEVER
        stated = 0
        for entry in facts.record.entries:
            if isinstance(entry, FrameSent) and entry.side == side:
                stated += isinstance(entry.frame, ConnectionHeaders)
                if isinstance(entry.frame, AckVersion):
                    answered = min(answered, entry.time)
            elif isinstance(entry, FrameArrived) and entry.side == side:
                if isinstance(entry.sent.frame, Version):
                    heard = min(heard, entry.time)
        if answered > heard + facts.slack and facts.alive(side, heard + facts.slack):
            yield Violation("VERSION was not answered", heard, side)
        ready = 0.0 if side == Side.CLIENT else facts.listening[side]
        wanted = 1 if facts.alive(side, ready) else stated
        if stated > 1 or stated < wanted:
            yield Violation(f"CONNECTION_HEADERS were sent {stated} times", ready, side)


@checker
def right_stream(facts: RunFacts) -> Iterator[Violation]:
    """Each stream is of a defined kind, and carries no frame after its end (AQ-STREAM-3)."""
    for stream in facts.streams.values():
        problem = _problem_of(facts, stream)
        if problem:
            yield Violation(
                f"stream {stream.number}: {problem}",
                stream.frames[-1].time if stream.frames else None,
                stream.side,
                None if stream.channel == NO_CHANNEL else stream.channel,
            )


def _problem_of(facts: RunFacts, stream: StreamFacts) -> str | None:
    frames = stream.routed
    kinds = {type(frame) for frame in frames}
    if stream.reset is not None and stream.reset not in tuple(StreamCode):
        return f"it was reset with {stream.reset}"
    if any(sent.time > stream.ended for sent in stream.frames):
        return "a frame was written after its end"
    if stream.number < 0:
        return None if kinds == {MessageFrame} else "a datagram holds more than messages"
    if not frames:
        return None
    if kinds & {CancelSender, ForgetChannel}:
        return None if len(frames) == 1 else "CANCEL_SENDER or FORGET_CHANNEL is not alone"
    last = frames[-1]
    if MessageFrame in kinds:
        if not kinds <= {MessageFrame, FinishSender}:
            return "other frames are between messages"
        if FinishSender in kinds and not isinstance(last, FinishSender):
            return "messages follow FINISH_SENDER"
        channel = facts.channels.get(stream.channel)
        count = sum(isinstance(frame, MessageFrame) for frame in frames)
        if channel is not None and channel.mode != "ORDERED" and count > 1:
            return f"{count} messages of an {channel.mode.lower()} channel in one stream"
    elif kinds & {SentUnreliable, FinishSender}:
        if not kinds <= {SentUnreliable, FinishSender}:
            return "the sender's control stream carries other frames"
        if FinishSender in kinds and not isinstance(last, FinishSender):
            return "SENT_UNRELIABLE follows FINISH_SENDER"
    elif CloseReceiver in kinds:
        if (
            not isinstance(last, CloseReceiver)
            or sum(isinstance(f, CloseReceiver) for f in frames) > 1
        ):
            return "CLOSE_RECEIVER is not the only last frame"
    if isinstance(last, FinishSender | CloseReceiver) and not facts.gone[stream.side] < NEVER:
        if stream.ended > stream.frames[-1].time + EPSILON:
            return f"it did not end with {type(last).__name__}"
    return None


@checker
def messages_leave_in_their_mode(facts: RunFacts) -> Iterator[Violation]:
    """Small messages of an UNRELIABLE sender leave in datagrams, and no others (AQ-MODE-1)."""
    for channel in facts.channels.values():
        unreliable = channel.mode == "UNRELIABLE"
        for entry in channel.entries:
            if not isinstance(entry, FrameSent) or not isinstance(entry.frame, MessageFrame):
                continue
            frame = entry.frame
            small = len(frame.payload) <= SAFE_DATAGRAM_SIZE and not (
                frame.headers or frame.attachments
            )
            if entry.in_datagram != unreliable and (entry.in_datagram or small):
                place = "datagram" if entry.in_datagram else "stream"
                text = f"left in a {place}, but its sender is {channel.mode}"
                yield Violation(text, entry.time, entry.side, channel.channel, frame.number)


@checker
def one_control_stream(facts: RunFacts) -> Iterator[Violation]:
    """A half uses one control stream, and one stream for ORDERED messages."""
    groups = (
        ("acks and reports", BY_RECEIVER),
        ("announcements and the finish", (SentUnreliable, FinishSender)),
    )
    for channel in facts.channels.values():
        for what, kinds in groups:
            yield from _one_stream(channel, what, kinds)
        if channel.mode == "ORDERED":
            yield from _one_stream(channel, "ordered messages", (MessageFrame, FinishSender))


def _one_stream(
    channel: ChannelFacts, what: str, kinds: tuple[type[Frame], ...]
) -> Iterator[Violation]:
    first: FrameSent | None = None
    for entry in channel.entries:
        if isinstance(entry, FrameSent) and isinstance(entry.frame, kinds):
            if first is None:
                first = entry
            elif entry.stream != first.stream:
                text = f"{what} came on streams {first.stream} and {entry.stream}"
                yield Violation(text, entry.time, entry.side, channel.channel)
                return


@checker
def no_frames_after_the_end(facts: RunFacts) -> Iterator[Violation]:
    """A half sends no frame after FINISH_SENDER, CANCEL_SENDER or CLOSE_RECEIVER (AQ-FINISH-3).

    Nor does it after FORGET_CHANNEL arrived (AQ-FORGET-1). FORGET_CHANNEL itself is sent by the
    creator of the channel, not by a half, and may still follow.
    """
    backlog = facts.record.backlog
    for channel in facts.channels.values():
        last: list[FrameSent | None] = [None, None]
        for entry in channel.entries:
            if not isinstance(entry, FrameSent) or isinstance(entry.frame, ForgetChannel):
                continue
            if entry.side != channel.creator and entry.time > channel.forget_arrived + backlog:
                text = f"{type(entry.frame).__name__} follows FORGET_CHANNEL"
                yield Violation(text, entry.time, entry.side, channel.channel)
                break
            if isinstance(entry.frame, RouteTo):
                continue
            word = last[entry.side]
            if word is not None:
                if backlog and isinstance(word.frame, FinishSender):
                    continue  # the message waited for stream credit (AQ-PRIO-5)
                text = f"{type(entry.frame).__name__} follows {type(word.frame).__name__}"
                yield Violation(text, entry.time, entry.side, channel.channel)
                break
            elif isinstance(entry.frame, FinishSender | CancelSender | CloseReceiver):
                last[entry.side] = entry


@checker
def finish_counts_right(facts: RunFacts) -> Iterator[Violation]:
    """FINISH_SENDER has the number of messages sent in streams; all datagrams are announced."""
    for channel in facts.channels.values():
        announced = 0
        for entry in channel.entries:
            if not isinstance(entry, FrameSent):
                continue
            if isinstance(entry.frame, SentUnreliable):
                announced += entry.frame.count
            elif isinstance(entry.frame, FinishSender):
                stated = entry.frame.sent_reliable
                if stated != len(channel.reliable) or announced != len(channel.unreliable):
                    text = (
                        f"finishes with {stated} of {len(channel.reliable)} messages in streams, "
                        f"{announced} of {len(channel.unreliable)} in datagrams"
                    )
                    yield Violation(text, entry.time, entry.side, channel.channel)


@checker
def cancel_resets(facts: RunFacts) -> Iterator[Violation]:
    """A cancel sends CANCEL_SENDER and resets the streams of messages."""
    for channel in facts.channels.values():
        called = channel.cancel_called
        effective = called < min(channel.finish_asked, channel.sender_gone)
        if not effective or not facts.alive(channel.sender, called + facts.slack):
            continue
        if channel.cancel_written > called + facts.slack:
            text = "was cancelled, but no CANCEL_SENDER was sent"
            yield Violation(text, called, channel.sender, channel.channel)
    for stream in facts.streams.values():
        of = facts.channels.get(stream.channel)
        if of is None or stream.number < 0 or stream.side != of.sender:
            continue
        if any(isinstance(frame, MessageFrame) for frame in stream.routed):
            if of.cancel_written < NEVER and stream.ended > of.cancel_written + facts.slack:
                text = f"stream {stream.number} is open after the cancel"
                yield Violation(text, of.cancel_written, stream.side, of.channel)
            elif stream.reset is None and _was_unacked(of, stream):
                text = f"finished stream {stream.number} was not reset by the cancel"
                yield Violation(text, of.cancel_written, stream.side, of.channel)


def _was_unacked(channel: ChannelFacts, stream: StreamFacts) -> bool:
    """Return whether a message of the stream was not known to be acked when it was cancelled."""
    messages = [
        channel.reliable.get(frame.number)
        for frame in stream.routed
        if isinstance(frame, MessageFrame)
    ]
    return channel.cancel_written < NEVER and any(
        message is not None and message.ack_known > channel.cancel_written for message in messages
    )


@checker
def forgotten_streams_are_reset(facts: RunFacts) -> Iterator[Violation]:
    """A side that is told to forget a channel resets the streams it has open (AQ-FORGET-1)."""
    for stream in facts.streams.values():
        channel = facts.channels.get(stream.channel)
        if channel is None or stream.number < 0 or stream.side == channel.creator:
            continue
        forgotten = channel.forget_arrived + facts.slack
        begun = stream.frames[0].time < channel.forget_arrived
        if begun and stream.ended > forgotten and facts.alive(stream.side, forgotten):
            text = f"stream {stream.number} is open after FORGET_CHANNEL"
            yield Violation(text, forgotten, stream.side, channel.channel)


@checker
def close_has_a_cause(facts: RunFacts) -> Iterator[Violation]:
    """CLOSE_RECEIVER follows a close, a cancel, or a finish with all received and decided."""
    for channel in facts.channels.values():
        closed = channel.close_written
        if closed == NEVER:
            continue
        if min(channel.close_called, channel.stop_called, channel.cancel_arrived) <= closed:
            continue
        if channel.receiver_held > closed and any(drop <= closed for drop in channel.drops):
            continue
        missing = [
            message.number for message in channel.reliable.values() if message.arrived > closed
        ]
        if channel.finish_arrived > closed:
            problem = "it was neither closed, cancelled nor finished"
        elif missing:
            problem = f"message {missing[0]} had not arrived"
        elif channel.decided < len(channel.unreliable):
            problem = f"unreliable message {channel.decided} was not decided"
        else:
            continue
        yield Violation(
            f"CLOSE_RECEIVER was sent, but {problem}", closed, channel.receiver, channel.channel
        )


@checker
def dropped_halves_are_ended(facts: RunFacts) -> Iterator[Violation]:
    """The core ends the halves in messages that it drops unread, at once."""
    for channel in facts.channels.values():
        carrier = channel.carrier
        if carrier is None or channel.lost or carrier.acked == NEVER:
            # The creator of a lost channel ends both halves.
            continue
        dropped = channel.dropped
        side = channel.creator.other
        if dropped == NEVER or not facts.alive(side, dropped + facts.slack):
            continue
        if side == channel.receiver:
            ended = min(channel.close_written, channel.forget_arrived)
        else:
            ended = min(channel.cancel_written, channel.forget_arrived, channel.close_arrived)
        if channel.mode == "UNRELIABLE":
            # A receiver first waits for the announcement of datagrams that it must still ack.
            ended = min(ended, dropped)
        if ended > dropped + facts.slack:
            text = "came in a message that was dropped, and was left open"
            yield Violation(text, dropped, side, channel.channel)
