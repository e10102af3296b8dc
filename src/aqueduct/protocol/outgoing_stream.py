"""What one stream, sender or datagram has to send, until the transport takes it."""

from __future__ import annotations

from collections import deque

from aqueduct.protocol.priorities import DEFAULT_PRIORITY, Flow
from aqueduct.wire.frames import plain_frames


class OutgoingStream:
    """One of our unidirectional streams, with the data that the transport has not taken yet."""

    __slots__ = (
        "_at",
        "_offset",
        "chunks",
        "fin",
        "finish_frame",
        "flow",
        "number",
        "opened",
        "queued",
        "run",
        "run_first",
        "was_reset",
    )

    def __init__(self, number: int, flow: SenderFlow | None = None) -> None:
        self.number = number
        self.flow = flow
        """The flow of its messages; None for a stream of other frames."""
        self.chunks: list[bytes] | None = None
        self._at = 0
        """The first of the chunks that has not left, and how much of it has."""
        self._offset = 0
        self.run: list[bytes] | None = None
        """Payloads behind the chunks; `end_run` frames all of them at once."""
        self.run_first = 0
        self.fin = False
        self.finish_frame: bytes | None = None
        """FINISH_SENDER of a stream of other frames that waits behind its channel's messages."""
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

    def take(self, most: int) -> bytes:
        """Remove up to ``most`` bytes, cutting the last chunk if it is too long."""
        self.end_run()
        chunks = self.chunks
        if chunks is None:
            return b""
        first = at = self._at
        offset = self._offset
        count = len(chunks)
        left = most + offset
        while at < count:
            size = len(chunks[at])
            if size > left:
                break
            left -= size
            at += 1
        taken = chunks[first:at]
        if at == count:
            self.chunks = None
            self._at = self._offset = 0
            if offset:
                taken[0] = taken[0][offset:]
        elif at == first:
            self._offset = left
            return chunks[at][offset:left]
        else:
            if offset:
                taken[0] = taken[0][offset:]
            taken.append(chunks[at][:left])
            self._offset = left
            self._at = at
            if 2 * at > count:
                del chunks[:at]
                self._at = 0
        return taken[0] if len(taken) == 1 else b"".join(taken)

    @property
    def is_empty(self) -> bool:
        """Whether all data was taken."""
        return self.chunks is None and self.run is None

    @property
    def size(self) -> int:
        """The bytes that wait, frame heads of the run not counted."""
        size = sum(map(len, self.chunks[self._at :])) - self._offset if self.chunks else 0
        return size + sum(map(len, self.run or ()))

    def clear(self) -> None:
        """Drop the data that waits."""
        self.chunks = self.run = self.finish_frame = None
        self._at = self._offset = 0


class SenderFlow(Flow):
    """The streams of one sender with messages that have not left, in order."""

    __slots__ = ("streams",)

    def __init__(self, priority: int = DEFAULT_PRIORITY) -> None:
        super().__init__(priority)
        self.streams: deque[OutgoingStream] | None = None
        """None if there are none: an empty queue takes 600 bytes, and channels are many."""

    def append(self, stream: OutgoingStream) -> None:
        """Add a stream behind the others."""
        if self.streams is None:
            self.streams = deque()
        self.streams.append(stream)

    def first(self) -> OutgoingStream:
        """Return the first stream."""
        assert self.streams is not None
        return self.streams[0]

    def drop_first(self) -> None:
        """Remove the first stream."""
        assert self.streams is not None
        self.streams.popleft()
        if not self.streams:
            self.streams = None


def remove_range(
    streams: dict[int, OutgoingStream], start: int, stop: int, unacked: set[int]
) -> None:
    """Remove the streams of the messages in a range of numbers, which were acked."""
    if stop - start <= len(streams):
        numbers = [each for each in range(start, stop) if each in streams]
    else:
        numbers = [each for each in streams if start <= each < stop]
    for number in numbers:
        unacked.discard(streams.pop(number).number)


class OutgoingDatagram:
    """A datagram that is being filled with messages of one channel."""

    __slots__ = ("channel", "chunks", "dead", "first", "last", "length", "stop")

    def __init__(self, channel: int, first: int, head: bytes) -> None:
        self.channel = channel
        self.dead = False
        """Whether it was dropped before it left."""
        self.first = first
        self.stop = first
        self.last: tuple[OutgoingStream, SenderFlow, bytes, bytes] | None = None
        """The stream to finish behind it, the flow of the channel, SENT_UNRELIABLE if it is due
        then, and FINISH_SENDER."""
        self.chunks = [head]
        self.length = len(head)
