"""What happened in a run, in order: what each application did and saw, and each frame that passed.

Stories and checkers read a record; neither looks inside a core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from aqueduct.protocol.config import Limits
from aqueduct.protocol.events import Event
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import Frame, Message
from aqueduct.wire.primitives import Headers

NO_CHANNEL = -1
"""Stands for the channel of a frame that belongs to the connection as a whole."""


FIRST_LIMITS = Limits(
    channel_window=65_536,
    connection_window=1_048_576,
    max_message=65_536,
    max_channels=128,
    max_attachments=16,
    max_headers=8_192,
)
"""What a client goes by until it knows the server's limits."""


@dataclass(slots=True)
class FrameSent:
    """A core wrote a frame to a stream, or put it in a datagram (then ``stream`` is negative)."""

    time: float
    side: Side
    stream: int
    channel: int
    frame: Frame

    @property
    def in_datagram(self) -> bool:
        return self.stream < 0


@dataclass(slots=True)
class FrameArrived:
    """A core was given the last byte of a frame and may act on it.

    Frames that come before the peer's connection headers count as arrived when those do, or, at
    the server, when the application accepts: until then a core only keeps them.
    """

    time: float
    side: Side
    sent: FrameSent


@dataclass(slots=True)
class StreamEnded:
    """A core finished a stream (``reset`` is None) or reset it with a code."""

    time: float
    side: Side
    stream: int
    reset: int | None


@dataclass(slots=True)
class RttMeasured:
    """A core was told the round-trip time; its deadlines for datagrams follow it."""

    time: float
    side: Side
    rtt: float


@dataclass(slots=True)
class MessageSent:
    """The application sent a message; ``attached`` names the channels made for it."""

    time: float
    side: Side
    channel: int
    number: int
    reliable: bool
    payload: bytes
    headers: Headers
    attached: tuple[AttachedChannel, ...]


@dataclass(slots=True)
class AttachedChannel:
    """A channel made for a message, and the mode in which its maker will send, if it does."""

    channel: int
    headers: Headers
    mode: str


@dataclass(slots=True)
class SendFailed:
    """The application tried to send, and got an error instead."""

    time: float
    side: Side
    channel: int
    error: str
    size: int
    """The bytes of its payload and headers; channels would add a few."""
    attached: int
    """How many channels it would have carried."""
    headers: bool
    """Whether it or its channels would have had headers."""


@dataclass(slots=True)
class CommandCalled:
    """The application gave a command other than to send or to take."""

    time: float
    side: Side
    verb: str
    channel: int
    detail: str = ""


@dataclass(slots=True)
class MessageTaken:
    """The application took one message from a receiver's queue."""

    time: float
    side: Side
    channel: int
    message: Message


@dataclass(slots=True)
class EventRaised:
    """The application got an event."""

    time: float
    side: Side
    event: Event


@dataclass(slots=True)
class ConnectionClosed:
    """A core closed the connection."""

    time: float
    side: Side
    code: int
    reason: str


@dataclass(slots=True)
class ConnectionGone:
    """A core was told that the connection is gone."""

    time: float
    side: Side
    code: int
    reason: str
    by_peer: bool


@dataclass(slots=True)
class CoreFault:
    """A core raised what it may not raise, or wrote what no one can read."""

    time: float
    side: Side
    text: str


Entry: TypeAlias = (
    FrameSent
    | FrameArrived
    | StreamEnded
    | RttMeasured
    | MessageSent
    | SendFailed
    | CommandCalled
    | MessageTaken
    | EventRaised
    | ConnectionClosed
    | ConnectionGone
    | CoreFault
)


@dataclass
class Record:
    """One run: its entries in order, and what a checker must know beside them."""

    limits: tuple[Limits, Limits] = field(default_factory=lambda: (Limits(), Limits()))
    """What the client and the server are willing to receive."""

    first_limits: Limits = FIRST_LIMITS
    """What both go by until limits were stated."""

    lateness: float = 0.0
    """How late a timer of this run may have been."""

    entries: list[Entry] = field(default_factory=list)

    drained: bool = False
    """Whether the run was brought to its end: all halves ended, faults off, time to spare."""

    leftovers: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    """What each core still held then."""
