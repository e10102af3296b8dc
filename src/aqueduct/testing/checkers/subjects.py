"""The subjects of checkers: messages, channels and streams, with the times of their events."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.protocol.events import ReceiverEnded, SenderEnded
from aqueduct.testing.checkers.rules import CANCELLED_TIMEOUT, CLOSING_TIMEOUT, EPSILON, NEVER
from aqueduct.testing.record import (
    NO_CHANNEL,
    CommandCalled,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageReceived,
    MessageSent,
    MessageTaken,
    SendFailed,
)
from aqueduct.wire.chanid import Side, creator_of, is_oneshot, sender_of
from aqueduct.wire.frames import Frame, MessageFrame, RouteTo, SentUnreliable
from aqueduct.wire.primitives import headers_size, varint_size

ChannelEntry = (
    FrameSent
    | FrameArrived
    | MessageSent
    | SendFailed
    | CommandCalled
    | MessageTaken
    | MessageReceived
    | EventRaised
)


@dataclass(slots=True, eq=False)
class MessageFacts:
    """One message, from ``send`` to its fate; a time is NEVER if the event did not happen."""

    channel: ChannelFacts
    sent: MessageSent
    written: float = NEVER
    """The sending core wrote it to the wire."""
    arrived: float = NEVER
    """The receiving core received all of it."""
    acked: float = NEVER
    """The receiving core acked it."""
    ack_known: float = NEVER
    """The sending core received that ack."""
    nacked: float = NEVER
    nack_known: float = NEVER
    taken: float = NEVER
    takes: int = 0
    received: float = NEVER
    """The receiving application got it from the port that had taken it."""
    delivered: float = NEVER
    """The sending application got the Delivered event."""
    undelivered: float = NEVER
    reports: int = 0
    """How often its fate was reported to the sending application."""

    @property
    def number(self) -> int:
        return self.sent.number

    @property
    def size(self) -> int:
        """Its size for flow control, computed from what the application sent."""
        size = len(self.sent.payload) + headers_size(self.sent.headers)
        for attached in self.sent.attached:
            contents = headers_size(attached.headers)
            size += varint_size(attached.channel) + varint_size(contents) + contents
        return size

    @property
    def given_up(self) -> bool:
        """Whether it was nacked because its announcement did not come in time (AQ-CLOSE-3)."""
        channel = self.channel
        closed = channel.close_written
        if self.sent.reliable or closed == NEVER or self.nacked != closed:
            return False
        if closed < channel.closing_due - EPSILON and not channel.closes_early:
            return False
        announced = sum(
            entry.sent.frame.count
            for entry in channel.entries
            if isinstance(entry, FrameArrived)
            and isinstance(entry.sent.frame, SentUnreliable)
            and entry.time < closed  # one that comes at the same time may come behind the close
        )
        return self.number >= announced


@dataclass(slots=True, eq=False)
class ChannelFacts:
    """One channel, as both applications and the wire saw it."""

    channel: int
    carrier: MessageFacts | None
    """The message it was made for; None for the entrypoint."""
    mode: str = "ORDERED"
    reliable: dict[int, MessageFacts] = field(default_factory=dict)
    unreliable: dict[int, MessageFacts] = field(default_factory=dict)
    takes: list[tuple[MessageTaken, MessageFacts | None]] = field(default_factory=list)
    prefetched: bool = False
    """Whether a port takes its messages before the application receives them."""
    receives: int = 0
    """How many of the messages that were taken the application has received from the port."""
    entries: list[ChannelEntry] = field(default_factory=list)
    sender_held: float = NEVER
    """When the sending application got the sender."""
    receiver_held: float = NEVER
    finish_called: float = NEVER
    cancel_called: float = NEVER
    close_called: float = NEVER
    stop_called: float = NEVER
    sender_ends: list[tuple[float, SenderEnded]] = field(default_factory=list)
    receiver_ends: list[tuple[float, ReceiverEnded]] = field(default_factory=list)
    finish_written: float = NEVER
    finish_arrived: float = NEVER
    cancel_written: float = NEVER
    cancel_arrived: float = NEVER
    close_written: float = NEVER
    close_arrived: float = NEVER
    forget_written: float = NEVER
    forget_arrived: float = NEVER
    decided: int = 0
    decided_known: int = 0
    lost: bool = False
    """Whether a message that carried it, or one of its ancestors, was nacked."""
    lost_known: float = NEVER
    """When its creator could know of the loss."""
    closes_early: bool = False
    """Whether its receiver knows only the draft, and closes without waiting for announcements."""
    revived: bool = False
    """Whether a ghost of the receiver closed it a second time."""
    accessible_known: float = NEVER
    """When its creator could know that the peer's application can access it."""

    creator: Side = field(init=False)
    sender: Side = field(init=False)
    receiver: Side = field(init=False)
    oneshot: bool = field(init=False)

    def __post_init__(self) -> None:
        self.creator = Side(creator_of(self.channel))
        self.sender = Side(sender_of(self.channel))
        self.receiver = self.sender.other
        self.oneshot = is_oneshot(self.channel)

    @property
    def parent(self) -> ChannelFacts | None:
        """The channel whose message carried it."""
        return None if self.carrier is None else self.carrier.channel

    @property
    def messages(self) -> list[MessageFacts]:
        return [*self.reliable.values(), *self.unreliable.values()]

    def space(self, reliable: bool) -> dict[int, MessageFacts]:
        return self.reliable if reliable else self.unreliable

    @property
    def sender_end(self) -> SenderEnded | None:
        return self.sender_ends[0][1] if self.sender_ends else None

    @property
    def receiver_end(self) -> ReceiverEnded | None:
        return self.receiver_ends[0][1] if self.receiver_ends else None

    @property
    def finish_asked(self) -> float:
        """When the application finished the sender, or sent the message of a oneshot."""
        if self.oneshot:
            first = min((message.sent.time for message in self.messages), default=NEVER)
            return min(self.finish_called, first)
        return self.finish_called

    @property
    def receiver_gone(self) -> float:
        """When the receiving core stopped receiving on the channel."""
        known = self.lost_known if self.creator == self.receiver else self.forget_arrived
        called = min(self.close_called, self.stop_called)
        return min(self.close_written, known, called, self.cancel_arrived, self.dropped)

    @property
    def closing_due(self) -> float:
        """Until when a receiver that was closed or cancelled waits for announcements."""
        closed = min(self.close_called, self.dropped)
        return min(self.cancel_arrived + CANCELLED_TIMEOUT, closed + CLOSING_TIMEOUT)

    @property
    def below_given_up(self) -> bool:
        """Whether a message that led to the channel was taken, and nacked (AQ-CLOSE-3).

        Or may have been, by the ghost of a receiver.
        """
        current: ChannelFacts | None = self
        while current is not None and current.carrier is not None:
            if current.carrier.channel.revived:
                return True
            if current.carrier.taken < NEVER and current.carrier.given_up:
                return True
            current = current.parent
        return False

    @property
    def dropped(self) -> float:
        """When the message that carried the channel was first dropped, if it was."""
        return min(self.drops, default=NEVER)

    @property
    def drops(self) -> list[float]:
        """When the message that carried the channel may have been dropped after its arrival.

        The first of these times is certain if the message had been acked. Otherwise it may have
        arrived too late to be kept, and its channel lives on until it is forgotten.
        """
        carrier = self.carrier
        if carrier is None or carrier.taken < NEVER or carrier.arrived == NEVER:
            return []
        parent = carrier.channel
        times = [parent.close_called, parent.cancel_arrived, parent.forget_arrived, *parent.drops]
        return [time for time in times if carrier.arrived <= time < NEVER]

    @property
    def sender_gone(self) -> float:
        """When the sending core stopped sending on the channel."""
        known = self.lost_known if self.creator == self.sender else self.forget_arrived
        return min(self.close_arrived, known)


@dataclass(slots=True)
class StreamFacts:
    """The frames of one stream of one side, or of one datagram (then ``number`` is negative)."""

    side: Side
    number: int
    frames: list[FrameSent] = field(default_factory=list)
    ended: float = NEVER
    reset: int | None = None
    """The error code of its reset, or None."""

    @property
    def channel(self) -> int:
        return self.frames[-1].channel if self.frames else NO_CHANNEL

    @property
    def routed(self) -> list[Frame]:
        """The frames that follow ROUTE_TO."""
        return [
            sent.frame
            for sent in self.frames
            if sent.channel != NO_CHANNEL and not isinstance(sent.frame, RouteTo)
        ]


def same_content(message: MessageFacts, seen: MessageFrame) -> bool:
    """Return whether a message on the wire, or one that was taken, equals the one sent."""
    sent = message.sent
    return (
        sent.payload == seen.payload
        and sent.headers == seen.headers
        and len(sent.attached) == len(seen.attachments)
        and all(
            ours.channel == theirs.channel and ours.headers == theirs.headers
            for ours, theirs in zip(sent.attached, seen.attachments, strict=True)
        )
    )
