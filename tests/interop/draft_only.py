"""A peer in virtual time that knows only the reference draft, with frame code of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.protocol.actions import CloseConnection, ResetStream, SendDatagram, WriteStream
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import Event
from aqueduct.wire.chanid import Side
from tests.interop.frames import (
    ACK_VERSION,
    Frame,
    connection_headers,
    read_frames,
    route_to,
    version,
)


@dataclass
class Sequence:
    """A stream or datagram of ours."""

    frames: list[Frame] = field(default_factory=list)
    rest: bytes = b""
    fin: bool = False
    reset: int | None = None

    @property
    def channel(self) -> int | None:
        """The channel of its ROUTE_TO."""
        return next((frame.number for frame in self.frames if frame.name == "ROUTE_TO"), None)

    @property
    def names(self) -> list[str]:
        """The names of its frames."""
        return [frame.name for frame in self.frames]


class DraftOnlyPeer:
    """The other end of one of our cores, driven frame by frame."""

    def __init__(self, ours: Side, *, greet: bool = True) -> None:
        self.now = 50.0
        self.core = ConnectionCore(ours)
        self.streams: dict[int, Sequence] = {}
        self.datagrams: list[Sequence] = []
        self.closed: tuple[int, str] | None = None
        self.acked = False
        """Whether ACK_VERSION has come: every sequence begins with VERSION until then."""
        self._next = 0
        if greet:
            self.greet()

    def greet(self) -> None:
        """Exchange versions and headers: the draft has no header of its own."""
        self.open(connection_headers())
        self.poll()
        if self.core.side == Side.SERVER:
            self.core.accept((), self.now)
        self.open(ACK_VERSION)
        self.poll()
        self.core.poll_events()

    def open(self, data: bytes, *, fin: bool = True) -> int:
        """Open a stream, with VERSION until that is acked."""
        number = self._next
        self._next += 1
        return self.write(number, (b"" if self.acked else version()) + data, fin=fin)

    def write(self, stream: int, data: bytes, *, fin: bool = False) -> int:
        """Write to a stream."""
        self.core.handle_stream_data(stream, data, fin, self.now)
        self.poll()
        return stream

    def on(self, channel: int, *frames: bytes, fin: bool = False) -> int:
        """Open a stream that is routed to a channel."""
        return self.open(route_to(channel) + b"".join(frames), fin=fin)

    def datagram(self, channel: int, *frames: bytes) -> None:
        """Send a datagram that is routed to a channel."""
        start = b"" if self.acked else version()
        self.core.handle_datagram(start + route_to(channel) + b"".join(frames), self.now)
        self.poll()

    def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        end = self.now + seconds
        while (due := self.core.next_timer()) is not None and due <= end:
            self.now = max(due, self.now)
            self.core.handle_timer(self.now)
            self.poll()
        self.now = end

    def poll(self) -> None:
        """Read what our side has sent."""
        for action in self.core.poll_actions():
            if isinstance(action, WriteStream):
                stream = self.streams.setdefault(action.stream, Sequence())
                frames, stream.rest = read_frames(stream.rest + action.data)
                stream.frames += frames
                stream.fin = action.fin
                self.acked = self.acked or "ACK_VERSION" in stream.names
            elif isinstance(action, SendDatagram):
                self.datagrams.append(Sequence(*read_frames(action.data), fin=True))
            elif isinstance(action, ResetStream):
                self.streams.setdefault(action.stream, Sequence()).reset = action.code
            elif isinstance(action, CloseConnection):
                self.closed = action.code, action.reason

    def about(self, channel: int) -> list[Sequence]:
        """Return our streams that are routed to a channel."""
        self.poll()
        return [stream for stream in self.streams.values() if stream.channel == channel]

    def heard(self, channel: int, name: str) -> list[Frame]:
        """Return the frames with a name that our side sent in streams on a channel."""
        return [
            frame for stream in self.about(channel) for frame in stream.frames if frame.name == name
        ]

    def events(self) -> list[Event]:
        """Return what our application was told since the last call."""
        return self.core.poll_events()
