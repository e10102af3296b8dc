"""The record of a run: what each application did and saw, and each frame that passed, in order.

Transcripts and checkers use the record only, never the state of a core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aqueduct.protocol.config import Limits
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    Event,
    PeerHeaders,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.protocol.priorities import DEFAULT_PRIORITY
from aqueduct.wire.chanid import Side, describe
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    Attachment,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    Frame,
    MessageFrame,
    SentUnreliable,
    frame_name,
)
from aqueduct.wire.primitives import HeaderPairs

QUANTUM = 16 * 1024
"""The default of `Record.quanta`."""

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
class RecordEntry:
    """Something that happened at one side; its string is its line in the transcript.

    ``>>`` marks what a side sent, ``<<`` what it received, ``!`` an event of the application; the
    other lines are actions of the application.
    """

    time: float
    side: Side

    @property
    def subject(self) -> str:
        """The name of the side."""
        return self.side.name.lower()


@dataclass(slots=True)
class FrameSent(RecordEntry):
    """A core wrote a frame to a stream, or to a datagram (then ``stream`` is negative)."""

    stream: int
    channel: int
    frame: Frame

    @property
    def in_datagram(self) -> bool:
        return self.stream < 0

    def __str__(self) -> str:
        return f">> {self.describe()}"

    def describe(self) -> str:
        """Return the stream, the channel and the contents."""
        location = f"d{-1 - self.stream}" if self.in_datagram else f"s{self.stream}"
        if self.channel != NO_CHANNEL:
            location += f" {describe(self.channel)}"
        return f"{location} {_format_frame(self.frame)}"


@dataclass(slots=True)
class FrameArrived(RecordEntry):
    """A core received the last byte of a frame and may act on it.

    Frames that arrive before the peer's connection headers count as arrived with these, or, at
    the server, when the application accepts: until then a core only holds them.
    """

    sent: FrameSent

    def __str__(self) -> str:
        return f"<< {self.sent.describe()}"


@dataclass(slots=True)
class StreamEnded(RecordEntry):
    """A core finished a stream (``reset`` is None) or reset it with a code."""

    stream: int
    reset: int | None

    def __str__(self) -> str:
        end = "finished" if self.reset is None else f"reset with code {self.reset}"
        return f">> s{self.stream} is {end}"


@dataclass(slots=True)
class RttMeasured(RecordEntry):
    """A core received a new round-trip time, which determines its deadlines for datagrams."""

    rtt: float

    def __str__(self) -> str:
        return f"<< the round-trip time is {self.rtt * 1000:.1f} ms"


@dataclass(slots=True)
class MessageSent(RecordEntry):
    """The application sent a message; ``attached`` names the channels made for it."""

    channel: int
    number: int
    reliable: bool
    payload: bytes
    headers: HeaderPairs
    attached: tuple[AttachedChannel, ...]

    def __str__(self) -> str:
        kind = "message" if self.reliable else "datagram message"
        headers = f", {len(self.headers)} headers" if self.headers else ""
        details = f"{len(self.payload)} B{headers}{_format_attached(self.attached)}"
        return f"   sends {kind} {self.number} on {describe(self.channel)}: {details}"


@dataclass(slots=True)
class AttachedChannel:
    """A channel made for a message, and the mode and priority with which its sender starts."""

    channel: int
    headers: HeaderPairs
    mode: str
    priority: int = DEFAULT_PRIORITY


@dataclass(slots=True)
class Polled(RecordEntry):
    """A transport took what a core had to send; the frames that became complete follow."""

    writes: tuple[tuple[int, int], ...]
    """The stream and the size of each write, and of each datagram with stream -1."""

    def __str__(self) -> str:
        return f">> {sum(size for _, size in self.writes)} bytes leave"


@dataclass(slots=True)
class SendFailed(RecordEntry):
    """The application tried to send, and got an error."""

    channel: int
    error: str
    size: int
    """The bytes of its payload and headers, without attachments."""
    attached: int
    """The number of its attachments."""
    headers: bool
    """Whether it or its attachments had headers."""

    def __str__(self) -> str:
        return f"   cannot send on {describe(self.channel)}: {self.error}"


@dataclass(slots=True)
class CommandCalled(RecordEntry):
    """The application called a command other than send or take."""

    verb: str
    channel: int
    detail: str = ""

    def __str__(self) -> str:
        channel = "" if self.channel == NO_CHANNEL else f" {describe(self.channel)}"
        return f"   {self.verb}{channel} {self.detail}".rstrip()


@dataclass(slots=True)
class MessageTaken(RecordEntry):
    """The application took one message from a receiver's queue."""

    channel: int
    message: MessageFrame

    def __str__(self) -> str:
        message = self.message
        details = f"{len(message.payload)} B{_format_attached(message.attachments)}"
        return f"   takes message {message.number} from {describe(self.channel)}: {details}"


@dataclass(slots=True)
class MessageReceived(RecordEntry):
    """The application received a message from the port that had taken it."""

    channel: int
    number: int

    def __str__(self) -> str:
        return f"   receives message {self.number} from {describe(self.channel)}"


@dataclass(slots=True)
class EventRaised(RecordEntry):
    """The core raised an event for the application."""

    event: Event

    def __str__(self) -> str:
        return f"!  {_format_event(self.event)}"


@dataclass(slots=True)
class ConnectionClosed(RecordEntry):
    """A core closed the connection."""

    code: int
    reason: str

    def __str__(self) -> str:
        return f">> closes the connection, code {self.code} {self.reason}"


@dataclass(slots=True)
class ConnectionGone(RecordEntry):
    """The transport reported the end of the connection to a core."""

    code: int
    reason: str
    by_peer: bool

    def __str__(self) -> str:
        return f"<< the connection is lost, code {self.code} {self.reason}"


@dataclass(slots=True)
class CoreFault(RecordEntry):
    """A core raised an undocumented error, or wrote bytes that cannot be parsed."""

    text: str

    def __str__(self) -> str:
        return f"✗  {self.text}"


@dataclass
class Record:
    """One run: its entries in order, and the parameters that checkers need."""

    limits: tuple[Limits, Limits] = field(default_factory=lambda: (Limits(), Limits()))
    """The limits of the client and of the server."""

    first_limits: Limits = FIRST_LIMITS
    """The limits that both assume until they know the peer's."""

    lateness: float = 0.0
    """The maximum lateness of a timer in this run."""

    draft: Side | None = None
    """The side that knows only the reference draft, if any."""

    backlog: float = 0.0
    """Seconds that frames may wait for the transport; 0 if those without messages leave at once,
    and datagrams too."""

    holds_datagrams: bool = False
    """Whether datagrams waited for the transport."""

    quanta: tuple[int, int] = (QUANTUM, QUANTUM)
    """The bytes of a sender's turn at the client and at the server."""

    ack_delays: tuple[float, float] = (0.010, 0.010)
    """The seconds within which the client and the server ack a message (AQ-ACK-1)."""

    receipt_deadlines: tuple[tuple[float, float], tuple[float, float]] = ((0.05, 1.0), (0.05, 1.0))
    """The least and the most seconds that they wait for a datagram (AQ-UNREL-2)."""

    entries: list[RecordEntry] = field(default_factory=list)

    drained: bool = False
    """Whether the run was drained: the faults were off, and everything had time to end."""

    leftovers: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    """What each core still held then; empty unless a core leaks."""


def _format_attached(attached: Iterable[AttachedChannel | Attachment]) -> str:
    return "".join(f" +{describe(each.channel)}" for each in attached)


def _format_frame(frame: Frame) -> str:
    name = frame_name(type(frame))
    if isinstance(frame, MessageFrame):
        return f"{name} {frame.number} ({frame.size} B){_format_attached(frame.attachments)}"
    if isinstance(frame, AckReliable):
        return f"{name} {_format_ranges(frame.ranges)}"
    if isinstance(frame, AckNackUnreliable):
        marks = [
            f"{'nack' if position % 2 else 'ack'} {length}"
            for position, length in enumerate(frame.lengths)
            if length
        ]
        return f"{name} {', '.join(marks)}"
    if isinstance(frame, Dequeued):
        return f"{name} {frame.num_bytes} B"
    if isinstance(frame, SentUnreliable):
        return f"{name} {frame.count}"
    if isinstance(frame, FinishSender):
        return f"{name} after {frame.sent_reliable}"
    if isinstance(frame, ConnectionHeaders):
        return f"{name} ({len(frame.headers)})"
    return name


def _format_event(event: Event) -> str:
    if isinstance(event, Delivered | Undelivered):
        space = "" if event.reliable else "datagram "
        name = type(event).__name__.lower()
        return f"{space}{name} {_format_ranges(event.ranges)} on {describe(event.channel)}"
    if isinstance(event, SenderEnded | ReceiverEnded):
        half = "sender" if isinstance(event, SenderEnded) else "receiver"
        above = ", ".join(describe(each) for each in event.lineage)
        lineage = f" (under {above})" if above else ""
        return f"{half} of {describe(event.channel)} ended: {event.how.value}{lineage}"
    if isinstance(event, PeerHeaders):
        return f"peer's headers ({len(event.headers)})"
    if isinstance(event, ConnectionEnded):
        return f"connection ended, code {event.code} {event.reason}"
    return f"{type(event).__name__.lower()} {describe(event.channel)}"


def _format_ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(
        str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in ranges
    )
