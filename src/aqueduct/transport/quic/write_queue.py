"""What the core has written and QUIC has no room for yet."""

from __future__ import annotations

from collections import OrderedDict, deque


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

    __slots__ = ("_taken", "dropped", "resets", "unopened", "waiting")

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
        self.resets.clear()
        for unopened in self.unopened:
            unopened.clear()
