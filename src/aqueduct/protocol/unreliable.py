"""Messages in datagrams: which numbers were announced, which arrived, which are decided."""

from __future__ import annotations

from collections import deque
from math import ceil

from aqueduct.errors import RemoteProtocolError
from aqueduct.wire.primitives import MAX_VARINT
from aqueduct.wire.ranges import RangeSet

Ranges = tuple[tuple[int, int], ...]


class SentDatagrams:
    """The sender's view: numbers assigned, announced and decided; sizes of the undecided."""

    __slots__ = ("_acked", "announced", "decided", "next_number", "sizes")

    def __init__(self) -> None:
        self.next_number = 0
        self.announced = 0
        self.decided = 0
        self.sizes: deque[int] = deque()
        self._acked: RangeSet | None = None

    def add(self, size: int) -> int:
        """Assign the next number to a message of this size."""
        number = self.next_number
        self.next_number = number + 1
        self.sizes.append(size)
        return number

    def forgo(self, number: int) -> int:
        """Drop a message that never left, and return its size. The peer will nack its number."""
        index = number - self.decided
        size = self.sizes[index]
        self.sizes[index] = 0
        return size

    def unannounced(self) -> int:
        """Return how many numbers were not announced yet."""
        return self.next_number - self.announced

    def keep_acked(self, ranges: Ranges) -> None:
        """Hold back the acks of a pending channel: they do not prove delivery yet (AQ-LIN-6)."""
        if self._acked is None:
            self._acked = RangeSet()
        for start, stop in ranges:
            self._acked.add(start, stop)

    def take_acked(self) -> Ranges:
        """Remove and return the acks that were held back."""
        acked, self._acked = self._acked, None
        return tuple(acked.ranges()) if acked is not None else ()

    def decide(self, lengths: tuple[int, ...]) -> tuple[Ranges, Ranges, int]:
        """Apply alternating ack and nack lengths; return the ranges of each, and bytes nacked."""
        total = sum(lengths)
        if self.decided + total > self.announced:
            raise RemoteProtocolError(
                "AQ-UNREL-5",
                f"{self.decided} + {total} numbers decided, but only {self.announced} announced",
            )
        acks: list[tuple[int, int]] = []
        nacks: list[tuple[int, int]] = []
        nacked_bytes = 0
        acked = True
        for length in lengths:
            if length:
                (acks if acked else nacks).append((self.decided, self.decided + length))
                self.decided += length
                for _ in range(length):
                    size = self.sizes.popleft()
                    if not acked:
                        nacked_bytes += size
            acked = not acked
        return tuple(acks), tuple(nacks), nacked_bytes


class ReceivedDatagrams:
    """The receiver's view: what arrived, what was announced, and the deadline of each decision."""

    __slots__ = ("announced", "arrived", "deadlines", "decided")

    def __init__(self) -> None:
        self.arrived = RangeSet()
        self.announced = 0
        self.decided = 0
        self.deadlines: deque[tuple[float, int]] = deque()

    def arrive(self, start: int, stop: int, max_ranges: int) -> bool:
        """Record the arrival of undecided numbers; return False if they must be ignored."""
        if self.arrived.range_count >= max_ranges and start != self.arrived.max:
            return False  # AQ-LIMIT-6: a datagram may always be treated as lost
        if not self.arrived.add_new(start, stop):
            raise RemoteProtocolError(
                "AQ-SEND-2", f"unreliable message number {start} was used twice"
            )
        return True

    def announce(self, count: int, deadline: float, grain: float) -> None:
        """Record ``count`` announced numbers, to be decided at the deadline (AQ-UNREL-2)."""
        self.announced += count
        if self.announced > MAX_VARINT:
            raise RemoteProtocolError("AQ-UNREL-1", "more datagrams announced than numbers exist")
        deadline = ceil(deadline / grain) * grain
        if self.deadlines and self.deadlines[-1][0] >= deadline:
            deadline = self.deadlines.pop()[0]
        self.deadlines.append((deadline, self.announced))

    def due(self, now: float) -> bool:
        """Return whether a deadline has passed."""
        return bool(self.deadlines) and self.deadlines[0][0] <= now

    def overtaken(self) -> bool:
        """Return whether numbers arrived that were not announced yet."""
        return self.arrived.max > self.announced

    def settled(self) -> bool:
        """Return whether every announced number is decided."""
        return self.decided == self.announced

    def decide(self, now: float, *, everything: bool = False) -> tuple[int, ...]:
        """Decide numbers, and return the alternating ack and nack lengths; () if none are due.

        Numbers past their deadline are acked or nacked. After those, what arrived without a gap is
        acked early (AQ-UNREL-4). ``everything`` decides all announced numbers, for a close.
        """
        until = self.decided
        while self.deadlines and (everything or self.deadlines[0][0] <= now):
            until = self.deadlines.popleft()[1]
        if everything:
            until = self.announced
        until = max(until, min(self.arrived.first_missing(until), self.announced))
        if until == self.decided:
            return ()
        lengths: list[int] = []
        position = self.decided
        for start, stop in self.arrived.intersection(self.decided, until):
            if start > position:
                if not lengths:
                    lengths.append(0)
                lengths.append(start - position)
            lengths.append(stop - start)
            position = stop
        if position < until:
            if not lengths:
                lengths.append(0)
            lengths.append(until - position)
        self.decided = until
        self.arrived.remove_below(until)
        while self.deadlines and self.deadlines[0][1] <= until:
            self.deadlines.popleft()
        return tuple(lengths)
