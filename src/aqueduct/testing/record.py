"""The record of a run: what each application did and saw, and each frame that passed, in order.

Transcripts and checkers use the record only, never the state of a core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from aqueduct.protocol.config import Limits
from aqueduct.protocol.events import Event
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import Frame, MessageFrame
from aqueduct.wire.primitives import HeaderPairs

NO_CHANNEL = -1
"""The channel of a frame that belongs to the connection."""


FIRST_LIMITS = Limits(
    channel_window=65_536,
    connection_window=1_048_576,
    max_message=65_536,
    max_channels=128,
    max_attachments=16,
    max_headers=8_192,
)
"""The limits that a client assumes until it knows those of the server."""


@dataclass(slots=True)
class FrameSent:
    """A core wrote a frame to a stream, or to a datagram (then ``stream`` is negative)."""

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
    """A core received the last byte of a frame and may act on it.

    Frames that arrive before the peer's connection headers count as arrived with these, or, at
    the server, when the application accepts: until then a core only holds them.
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
    """A core received a new round-trip time, which determines its deadlines for datagrams."""

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
    headers: HeaderPairs
    attached: tuple[AttachedChannel, ...]


@dataclass(slots=True)
class AttachedChannel:
    """A channel made for a message, and the mode of its creator if that is the sender."""

    channel: int
    headers: HeaderPairs
    mode: str


@dataclass(slots=True)
class SendFailed:
    """The application tried to send, and got an error."""

    time: float
    side: Side
    channel: int
    error: str
    size: int
    """The bytes of its payload and headers, without attachments."""
    attached: int
    """The number of its attachments."""
    headers: bool
    """Whether it or its attachments had headers."""


@dataclass(slots=True)
class CommandCalled:
    """The application called a command other than send or take."""

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
    message: MessageFrame


@dataclass(slots=True)
class EventRaised:
    """The core raised an event for the application."""

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
    """The transport told a core that the connection ended."""

    time: float
    side: Side
    code: int
    reason: str
    by_peer: bool


@dataclass(slots=True)
class CoreFault:
    """A core raised an undocumented error, or wrote bytes that cannot be parsed."""

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
    """One run: its entries in order, and the parameters that checkers need."""

    limits: tuple[Limits, Limits] = field(default_factory=lambda: (Limits(), Limits()))
    """The limits of the client and of the server."""

    first_limits: Limits = FIRST_LIMITS
    """The limits that both assume until they know the peer's."""

    lateness: float = 0.0
    """The maximum lateness of a timer in this run."""

    entries: list[Entry] = field(default_factory=list)

    drained: bool = False
    """Whether the run was drained: the faults were off, and everything had time to end."""

    leftovers: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    """What each core still held then; empty unless a core leaks."""
