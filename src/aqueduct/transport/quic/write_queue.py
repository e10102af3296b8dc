"""What the core has written and QUIC has no room for yet."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from aqueduct.transport.quic.engine import Engine

_FEW: Final = 128
"""Finished streams that are remembered however few are open."""


class Write:
    """Data for a stream of the core, and how much of it was handed to QUIC."""

    __slots__ = ("data", "fin", "is_message", "sent", "stream")

    def __init__(self, stream: int, data: bytes, fin: bool, is_message: bool) -> None:
        self.stream = stream
        self.data = data
        self.fin = fin
        self.is_message = is_message
        self.sent = 0


class WriteQueue:
    """Writes, datagrams and resets of one connection in the order in which QUIC gets them.

    Resetting a stream takes constant time: its writes stay in the queue, and are skipped when they
    are next.
    """

    __slots__ = ("_taken", "dropped", "finished", "resets", "unopened", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Write | bytes] = deque()
        """Writes and datagrams."""
        self.resets: deque[tuple[int, int]] = deque()
        """QUIC's numbers of streams to reset, with their error codes."""
        self.unopened: tuple[OrderedDict[int, list[Write]], OrderedDict[int, list[Write]]] = (
            OrderedDict(),
            OrderedDict(),
        )
        """Writes that wait for stream credit, by stream: control, messages."""
        self.dropped: OrderedDict[int, int] = OrderedDict()
        """Streams that were reset with writes in the queue, each with the value of ``_taken`` at
        which its last write has left."""
        self._taken = 0
        """The number of writes that have left the queue."""
        self.finished = FinishedStreams()

    def __bool__(self) -> bool:
        unopened = self.unopened
        return bool(self.waiting or self.resets or unopened[False] or unopened[True])

    @property
    def size(self) -> int:
        """The bytes that wait."""
        size = sum(len(e) if isinstance(e, bytes) else len(e.data) - e.sent for e in self.waiting)
        for unopened in self.unopened:
            size += sum(len(write.data) for writes in unopened.values() for write in writes)
        return size

    def take(self) -> None:
        """Remove the first write or datagram."""
        self.waiting.popleft()
        self._taken += 1
        dropped = self.dropped
        while dropped and next(iter(dropped.values())) <= self._taken:
            dropped.popitem(last=False)

    def postpone(self, write: Write) -> None:
        """Move the first write behind those that wait for stream credit."""
        self.take()
        self.unopened[write.is_message].setdefault(write.stream, []).append(write)

    def put_first(self, writes: list[Write]) -> None:
        """Put writes that waited for stream credit at the front."""
        self.waiting.extendleft(reversed(writes))
        self._taken -= len(writes)

    def drop(self, stream: int) -> None:
        """Skip the waiting writes of a stream of the core."""
        for unopened in self.unopened:
            unopened.pop(stream, None)
        if self.waiting:
            self.dropped[stream] = self._taken + len(self.waiting)

    def clear(self) -> None:
        """Drop everything."""
        self._taken += len(self.waiting)
        self.waiting.clear()
        self.dropped.clear()
        self.finished.clear()
        self.resets.clear()
        for unopened in self.unopened:
            unopened.clear()


class FinishedStreams:
    """Message streams that QUIC has whole, which a cancel resets while QUIC still sends them.

    QUIC does not tell when a stream was acknowledged to its end, only how many streams are open.
    So of more than twice as many, this forgets the oldest. Those that are forgotten too early are
    not reset.
    """

    __slots__ = ("_limit", "_streams")

    def __init__(self) -> None:
        self._streams: OrderedDict[int, int] = OrderedDict()
        """QUIC's numbers of the streams of the core."""
        self._limit = _FEW

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: int, number: int, engine: Engine) -> None:
        """Add a stream of the core with QUIC's number for it."""
        streams = self._streams
        streams[stream] = number
        if len(streams) > self._limit:
            native = engine.core
            open_here = 0 if native is None else native.active_local_streams[1]
            self._limit = 2 * open_here + _FEW
            while len(streams) > open_here + _FEW // 2:
                streams.popitem(last=False)

    def pop(self, stream: int) -> int | None:
        """Remove a stream, and return QUIC's number for it."""
        return self._streams.pop(stream, None)

    def clear(self) -> None:
        """Forget all."""
        self._streams.clear()
