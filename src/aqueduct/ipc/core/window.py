"""How much may be under way to one remote: more while answers come, half when they do not."""

from __future__ import annotations

OVERHEAD = 1_024
"""What a datagram costs a socket's buffer besides its bytes."""
SMALLEST = 64 * 1024 + OVERHEAD
"""One PDU of any transport for one host, or some dozens of small ones."""
INITIAL = 256 * 1024


class Window:
    """Counts the PDUs without an answer, by what they take of a receiver's buffer (IPC-FLOW-1)."""

    __slots__ = ("_largest", "_quiet_until", "_threshold", "limit", "used")

    def __init__(self, largest: int) -> None:
        self._largest = max(largest, SMALLEST)
        self.limit = min(INITIAL, self._largest)
        self._threshold = self._largest
        self._quiet_until = 0.0
        self.used = 0

    def fits(self, size: int) -> bool:
        """Whether a PDU may go; one alone always may."""
        return self.used == 0 or self.used + size + OVERHEAD <= self.limit

    def add(self, size: int) -> None:
        """A PDU is under way."""
        self.used += size + OVERHEAD

    def remove(self, size: int) -> None:
        """It no longer is."""
        self.used -= size + OVERHEAD

    def grow(self, size: int) -> None:
        """Make room after an answer: double it each round trip, later add a PDU (IPC-FLOW-5)."""
        gained = size + OVERHEAD
        if self.limit > self._threshold:
            gained = gained * gained // self.limit + 1
        self.limit = min(self.limit + gained, self._largest)

    def shrink(self, now: float, quiet: float) -> None:
        """A PDU was not answered; what else is lost within ``quiet`` seconds counts no more."""
        if now < self._quiet_until:
            return
        self._quiet_until = now + quiet
        self.limit = max(self.limit // 2, SMALLEST)
        self._threshold = self.limit
