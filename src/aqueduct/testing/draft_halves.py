"""Halves and incoming streams of a simulated peer that knows only the reference draft."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.protocol.connection import Mode
from aqueduct.protocol.events import End
from aqueduct.wire.frames import Frame, MessageFrame, MessageRun
from aqueduct.wire.ranges import RangeSet
from aqueduct.wire.sequence import ParserLimits, SequenceParser

NEVER = float("inf")
UNLIMITED = ParserLimits(max_message=1 << 40, max_headers=1 << 40, max_attachments=1 << 20)


@dataclass(eq=False)
class DraftHalf:
    """What both halves have."""

    channel: int
    held: bool
    """Whether the application has the handle."""
    route_at: float = NEVER
    """When to answer the ROUTE_TO that created it."""
    control: int | None = None


@dataclass(eq=False)
class DraftSender(DraftHalf):
    """The sending half."""

    accessible: bool = True
    named: bool = False
    """Whether a ROUTE_TO for it was sent."""
    mode: Mode = Mode.ORDERED
    open: bool = True
    cancelled: bool = False
    reliable: int = 0
    unreliable: int = 0
    announced: int = 0
    decided: int = 0
    announce_at: float = NEVER
    ordered: int | None = None
    messages: list[int] = field(default_factory=list)
    """The streams of its messages."""
    acked: RangeSet = field(default_factory=RangeSet)
    acked_datagrams: RangeSet = field(default_factory=RangeSet)
    carried: dict[tuple[bool, int], list[int]] = field(default_factory=dict)
    """Channels in messages that were neither acked nor nacked."""
    kept: list[int] = field(default_factory=list)
    """Channels in acked messages, while it is pending."""
    end: End | None = None


@dataclass(eq=False)
class DraftReceiver(DraftHalf):
    """The receiving half."""

    queue: list[MessageFrame] = field(default_factory=list)
    received: RangeSet = field(default_factory=RangeSet)
    unacked: RangeSet = field(default_factory=RangeSet)
    datagrams: RangeSet = field(default_factory=RangeSet)
    announced: int = 0
    decided: int = 0
    deadlines: list[tuple[float, int]] = field(default_factory=list)
    total: int | None = None
    ack_at: float = NEVER
    end: End | None = None


@dataclass(eq=False)
class DraftIncoming:
    """An incoming stream or datagram."""

    datagram: bool
    parser: SequenceParser | None = field(default_factory=lambda: SequenceParser(UNLIMITED))
    half: DraftHalf | None = None
    waiting: list[Frame | MessageRun] = field(default_factory=list)
    """Frames that came before the peer's headers, or before the server accepted."""
