"""Incoming streams and datagrams: the parser of each, and the dispatch of its frames."""

from __future__ import annotations

from aqueduct.errors import RemoteProtocolError
from aqueduct.protocol.channels import Channels
from aqueduct.protocol.receiver import ReceivingHalf
from aqueduct.protocol.sender import SendingHalf
from aqueduct.wire.chanid import ENTRYPOINT, creator_of, describe
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    CancelSender,
    CloseReceiver,
    Dequeued,
    FinishSender,
    ForgetChannel,
    Frame,
    MessageFrame,
    SentUnreliable,
    frame_name,
)
from aqueduct.wire.sequence import ParserLimits, SequenceParser

COST_OF_WAITING = 256
"""Bytes that a waiting sequence counts in addition to its data: about what it costs in memory."""


class Incoming:
    """One incoming sequence of frames: a stream or a datagram."""

    __slots__ = ("early", "fin", "half", "held", "number", "parser", "route")

    def __init__(self, number: int, limits: ParserLimits) -> None:
        self.number = number
        """The transport's number of the stream; -1 for a datagram."""
        self.parser: SequenceParser | None = SequenceParser(limits)
        """None once the rest is ignored."""
        self.half: SendingHalf | ReceivingHalf | None = None
        self.fin = False
        self.route = -1
        """The channel of its ROUTE_TO, while the connection is not ready."""
        self.early: bytearray | None = None
        """The data after that ROUTE_TO, until the connection is ready."""
        self.held = 0

    @property
    def is_datagram(self) -> bool:
        """Whether this is a datagram."""
        return self.number < 0

    def is_reading(self) -> bool:
        """Return whether frames are read now: the sequence neither waits nor is ignored."""
        return self.parser is not None and self.early is None

    def feed(self, data: bytes) -> None:
        """Add data."""
        if self.early is not None:
            self.early += data
        elif self.parser is not None:
            self.parser.feed(data)

    def ignore(self) -> None:
        """Ignore the rest."""
        self.parser = self.early = None

    def wait(self, route: int) -> None:
        """Hold the rest until the connection is ready (AQ-CONN-3)."""
        self.route = route
        self.early = bytearray()

    def resume(self) -> None:
        """Parse what was held, now that the connection is ready."""
        early, self.early = self.early, None
        if early and self.parser is not None:
            self.parser.feed(bytes(early))

    def holds(self) -> int:
        """Return the bytes that this sequence keeps in memory now."""
        held = self.parser.held if self.parser is not None else 0
        return held + len(self.early) + COST_OF_WAITING if self.early is not None else held


def dispatch(
    channels: Channels,
    incoming: Incoming,
    half: SendingHalf | ReceivingHalf,
    frame: Frame,
    now: float,
) -> None:
    """Give a frame to the half of the channel that its sequence is routed to."""
    if incoming.is_datagram and not isinstance(frame, MessageFrame):
        raise RemoteProtocolError("AQ-UNREL-7", f"{frame_name(type(frame))} in a datagram")
    if isinstance(frame, ForgetChannel):
        if creator_of(half.channel) == channels.side or half.channel == ENTRYPOINT:
            raise wrong_side("AQ-FRAME-20", "FORGET_CHANNEL", half.channel)
        if half.channel in channels.halves:
            channels.handle_forget(half, now)
        incoming.ignore()
        return
    if half.is_over():
        incoming.ignore()  # AQ-ROUTE-4
        return
    if isinstance(half, ReceivingHalf):
        _dispatch_to_receiver(channels, incoming, half, frame, now)
    else:
        _dispatch_to_sender(channels, incoming, half, frame, now)
    channels.update(half, now)


def _dispatch_to_receiver(
    channels: Channels, incoming: Incoming, half: ReceivingHalf, frame: Frame, now: float
) -> None:
    if isinstance(frame, MessageFrame):
        if half.handle_message(frame, not incoming.is_datagram, now):
            channels.attach(frame, now)
    elif isinstance(frame, SentUnreliable):
        half.handle_announcement(frame.count, incoming.number, now)
    elif isinstance(frame, FinishSender):
        half.handle_finish(frame.sent_reliable, incoming.number, now)
    elif isinstance(frame, CancelSender):
        channels.abandon(half.handle_cancel(), now)
    else:
        raise wrong_side("AQ-FRAME-19", frame_name(type(frame)), half.channel)


def _dispatch_to_sender(
    channels: Channels, incoming: Incoming, half: SendingHalf, frame: Frame, now: float
) -> None:
    if not isinstance(frame, AckReliable | AckNackUnreliable | Dequeued | CloseReceiver):
        raise wrong_side("AQ-FRAME-18", frame_name(type(frame)), half.channel)
    half.check_control(incoming.number)
    if isinstance(frame, AckReliable):
        channels.settle_lineage(half.handle_acks(frame.ranges), now)
    elif isinstance(frame, AckNackUnreliable):
        accessible, lost = half.handle_decisions(frame.lengths)
        channels.settle_lineage(accessible, now)
        channels.lose(lost, half.channel, now)
    elif isinstance(frame, Dequeued):
        half.handle_dequeued(frame.num_bytes, now)
    else:
        channels.lose(half.handle_close(now), half.channel, now)


def wrong_side(rule: str, frame: str, channel: int) -> RemoteProtocolError:
    """Return the error for a frame that only the other side of the channel may send."""
    return RemoteProtocolError(rule, f"{frame} from the wrong side of {describe(channel)}")
