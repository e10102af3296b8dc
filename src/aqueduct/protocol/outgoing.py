"""Outgoing streams and datagrams, packed into few writes per turn of the event loop."""

from __future__ import annotations

from collections import deque

from aqueduct.protocol.actions import (
    Action,
    CloseConnection,
    ResetStream,
    SendDatagram,
    WriteStream,
)
from aqueduct.wire.frames import AckVersion, RouteTo, Version, plain_frames
from aqueduct.wire.primitives import varint_size

_VERSION = Version().encode()
_ACK_VERSION = AckVersion().encode()


class OutgoingStream:
    """One of our unidirectional streams, with the data that the transport has not taken yet."""

    __slots__ = (
        "chunks",
        "fin",
        "is_message",
        "number",
        "opened",
        "queued",
        "run",
        "run_first",
        "was_reset",
    )

    def __init__(self, number: int, is_message: bool = False) -> None:
        self.number = number
        self.is_message = is_message
        self.chunks: list[bytes] | None = None
        self.run: list[bytes] | None = None
        """Payloads behind the chunks; `end_run` frames all of them at once."""
        self.run_first = 0
        self.fin = False
        self.opened = False
        self.queued = False
        self.was_reset = False

    def end_run(self) -> None:
        """Frame the payloads of the run and append them to the chunks."""
        if self.run is not None:
            frames = plain_frames(self.run_first, self.run)
            if self.chunks is None:
                self.chunks = frames
            else:
                self.chunks += frames  # in place: a copy per run would be quadratic
            self.run = None


def remove_range(streams: dict[int, OutgoingStream], start: int, stop: int) -> None:
    """Remove the streams of the messages in a range of numbers."""
    if stop - start <= len(streams):
        for number in range(start, stop):
            streams.pop(number, None)
    else:
        for number in [each for each in streams if start <= each < stop]:
            del streams[number]


class OutgoingDatagram:
    """A datagram that is being filled with messages of one channel."""

    __slots__ = ("channel", "chunks", "dead", "first", "length", "stop")

    def __init__(self, channel: int, first: int, head: bytes) -> None:
        self.channel = channel
        self.dead = False
        """Whether it was dropped before it left."""
        self.first = first
        self.stop = first
        self.chunks = [head]
        self.length = len(head)


class Outgoing:
    """All streams and datagrams of one side that have something to send."""

    __slots__ = (
        "_by_channel",
        "_closing",
        "_datagrams",
        "_dirty",
        "_last_channel",
        "_last_route",
        "_next_stream",
        "_resets",
        "max_datagram",
        "version_acked",
    )

    def __init__(self, max_datagram: int) -> None:
        self.version_acked = False
        self.max_datagram = max_datagram
        """Bytes of the largest datagram."""
        self._next_stream = 0
        self._last_channel = -1
        self._last_route = b""
        self._dirty: list[OutgoingStream] = []
        self._datagrams: list[OutgoingDatagram] = []
        self._by_channel: dict[int, deque[OutgoingDatagram]] = {}
        self._resets: list[ResetStream] = []
        self._closing: CloseConnection | None = None

    def prelude(self, channel: int) -> bytes:
        """Return the first frames of a sequence (AQ-STREAM-1), VERSION included (AQ-VERSION-1)."""
        if channel != self._last_channel:
            self._last_channel = channel
            self._last_route = RouteTo(channel).encode()
        route = self._last_route
        return route if self.version_acked else _VERSION + route

    def open(self, channel: int, *, is_message: bool = False) -> OutgoingStream:
        """Open a stream that is routed to a channel."""
        stream = OutgoingStream(self._next_stream, is_message)
        self._next_stream += 1
        self.write(stream, self.prelude(channel))
        return stream

    def open_greeting(self, *, ack_version: bool) -> OutgoingStream:
        """Open a stream for frames of the connection: VERSION while not acked, and ACK_VERSION."""
        stream = OutgoingStream(self._next_stream)
        self._next_stream += 1
        start = b"" if self.version_acked else _VERSION
        self.write(stream, start + _ACK_VERSION if ack_version else start)
        return stream

    def write(self, stream: OutgoingStream, data: bytes) -> None:
        """Append to a stream, unless it was reset."""
        if stream.was_reset:
            return
        stream.end_run()
        if stream.chunks is None:
            stream.chunks = []
        stream.chunks.append(data)
        self.touch(stream)

    def begin_run(self, stream: OutgoingStream, number: int) -> list[bytes]:
        """Start a run at a message number; return the list to which payloads are appended."""
        stream.run_first = number
        stream.run = []
        self.touch(stream)
        return stream.run

    def finish(self, stream: OutgoingStream) -> None:
        """Finish a stream after what was written."""
        stream.fin = True
        self.touch(stream)

    def touch(self, stream: OutgoingStream) -> None:
        """Queue the stream for the next poll."""
        if not stream.queued:
            stream.queued = True
            self._dirty.append(stream)

    def reset(self, stream: OutgoingStream, code: int) -> None:
        """Reset a stream, even a finished one; drop one that the transport has not seen."""
        if stream.was_reset:
            return
        stream.was_reset = True
        stream.chunks = stream.run = None
        if stream.opened:
            self._resets.append(ResetStream(stream.number, code))

    def add_to_datagram(self, channel: int, number: int, frame: bytes) -> None:
        """Add a message to the last datagram if it fits, else to a new one (AQ-SEND-4)."""
        if self._datagrams:
            last = self._datagrams[-1]
            if (
                last.channel == channel
                and not last.dead
                and last.length + len(frame) <= self.max_datagram
            ):
                last.chunks.append(frame)
                last.length += len(frame)
                last.stop = number + 1
                return
        datagram = OutgoingDatagram(channel, number, self.prelude(channel))
        datagram.chunks.append(frame)
        datagram.length += len(frame)
        datagram.stop = number + 1
        self._datagrams.append(datagram)
        self._by_channel.setdefault(channel, deque()).append(datagram)

    def fits_datagram(self, channel: int, length: int) -> bool:
        """Return whether a frame of this length fits a datagram."""
        version = 0 if self.version_acked else len(_VERSION)
        return version + 1 + varint_size(channel) + length <= self.max_datagram

    def drop_oldest_datagram(self, channel: int) -> tuple[int, int] | None:
        """Drop the channel's oldest unsent datagram; return the range of its numbers."""
        datagrams = self._by_channel.get(channel)
        if not datagrams:
            return None
        datagram = datagrams.popleft()
        datagram.dead = True
        return datagram.first, datagram.stop

    def drop_datagrams(self, channel: int) -> None:
        """Drop all unsent datagrams of a channel."""
        for datagram in self._by_channel.pop(channel, ()):
            datagram.dead = True

    def close(self, code: int, reason: str, *, at_once: bool) -> None:
        """Close the connection, at once or after the output that has not left."""
        if at_once:
            self.clear()
        self._closing = CloseConnection(code, reason)

    def clear(self) -> None:
        """Drop all output."""
        self._dirty, self._resets, self._datagrams, self._by_channel = [], [], [], {}

    def poll(self) -> list[Action]:
        """Return all actions, in order: resets, stream writes, datagrams, the close."""
        actions: list[Action] = [*self._resets]
        self._resets = []
        dirty, self._dirty = self._dirty, []
        for stream in dirty:
            stream.queued = False
            if stream.was_reset:
                continue
            stream.end_run()
            chunks, stream.chunks = stream.chunks, None
            stream.opened = True
            data = b"".join(chunks or ())
            actions.append(WriteStream(stream.number, data, stream.fin, stream.is_message))
        actions += [SendDatagram(b"".join(d.chunks)) for d in self._datagrams if not d.dead]
        self._datagrams, self._by_channel = [], {}
        if self._closing is not None:
            actions.append(self._closing)
            self._closing = None
        return actions
