"""What the peer's limits let through: windows of bytes, and the size of one message."""

from __future__ import annotations

from collections import deque

from aqueduct.errors import MessageTooLarge
from aqueduct.protocol.config import Limits
from aqueduct.protocol.timers import NEVER, Timers
from aqueduct.wire.frames import Message
from aqueduct.wire.primitives import headers_size


class Window:
    """Bytes outstanding against a limit; one message larger than the limit may be alone in it.

    The first ``reserve`` bytes of each channel do not count against the limit (AQ-FLOW-10), as long
    as those of all channels are within ``pool``. ``limit`` grows with ``reserved``, so that a
    message on a channel with a full reserve needs one comparison, as without reserves.
    """

    __slots__ = ("base", "limit", "outstanding", "pool", "reserve", "reserved")

    def __init__(self, limit: int, reserve: int = 0, pool: int = 0) -> None:
        self.base = limit
        """The limit while no reserve is in use."""
        self.limit = limit
        """The current limit: the base plus the reserves in use."""
        self.reserve = reserve
        self.pool = pool
        self.reserved = 0
        """Outstanding bytes in the reserves of their channels."""
        self.outstanding = 0

    def open(self, limit: int, reserve: int, pool: int) -> None:
        """Set the limits; the caller then adds the reserves in use."""
        self.base = limit
        self.reserve = reserve
        self.pool = pool
        self.add(0, 0)

    def most(self) -> int:
        """Return the most that may be outstanding, reserves included."""
        return self.base + self.pool

    def spare(self, outstanding: int, size: int) -> int:
        """Return how much of a message fits the reserve of a channel with ``outstanding`` bytes."""
        free = self.reserve - outstanding
        return min(size, free) if free > 0 else 0

    def fits(self, size: int, spare: int = 0) -> bool:
        """Return whether a message fits, with ``spare`` bytes of it in its channel's reserve."""
        limit = self.limit
        if spare:
            limit = self.base + min(self.reserved + spare, self.pool)
            if limit - self.limit == size:
                return True  # AQ-FLOW-10: it uses nothing of the shared window
        # AQ-FLOW-3: alone in the shared window, a message may have any size.
        return self.outstanding + size <= limit or self.outstanding <= self.limit - self.base

    def add(self, size: int, spare: int) -> None:
        """Add a message, with ``spare`` bytes of it in its channel's reserve."""
        self.outstanding += size
        self.reserved += spare
        self.limit = self.base + min(self.reserved, self.pool)

    def remove(self, size: int, spare: int) -> None:
        """Remove bytes, ``spare`` of them from their channel's reserve."""
        self.add(-size, -spare)

    def room(self, outstanding: int = 0) -> int:
        """Return the bytes left for a channel with ``outstanding`` bytes.

        An empty window always has room for one message.
        """
        spare = min(max(self.reserve - outstanding, 0), max(self.pool - self.reserved, 0))
        return max(self.limit + spare - self.outstanding, 0)

    def clear(self) -> None:
        """Reset the window: nothing is outstanding."""
        self.outstanding = self.reserved = 0
        self.limit = self.base


class WrittenOff:
    """Bytes of lost channels, which come back when the peer has surely dropped them (AQ-FLOW-8)."""

    __slots__ = ("_timers", "_waiting", "_window", "reserved", "total", "wake_at")

    def __init__(self, window: Window, timers: Timers) -> None:
        self._window = window
        self._timers = timers
        self._waiting: deque[tuple[float, int, int]] = deque()
        self.wake_at = NEVER
        self.total = 0
        """Bytes that are still to come back."""
        self.reserved = 0
        """The part of them in the reserves of their channels."""

    def add(self, size: int, at: float, spare: int = 0) -> None:
        """Give these bytes back at the given time."""
        self.total += size
        self.reserved += spare
        self._waiting.append((at, size, spare))
        self._timers.wake(self, at)

    def handle_timer(self, now: float) -> None:
        """Give back what is due."""
        while self._waiting and self._waiting[0][0] <= now:
            _, size, spare = self._waiting.popleft()
            self._window.remove(size, spare)
            self.total -= size
            self.reserved -= spare
        if self._waiting:
            self._timers.wake(self, self._waiting[0][0])


def check_message(message: Message, size: int, limits: Limits) -> None:
    """Refuse a message the peer would not take (AQ-LIMIT-3)."""
    if size > limits.max_message:
        raise MessageTooLarge(
            f"a message of {size} bytes; the peer takes at most {limits.max_message}. "
            "Send a channel of smaller messages instead"
        )
    if len(message.attachments) > limits.max_attachments:
        raise MessageTooLarge(
            f"{len(message.attachments)} channels in one message; "
            f"the peer takes at most {limits.max_attachments}"
        )
    for headers in (message.headers, *(a.headers for a in message.attachments)):
        if headers and headers_size(headers) > limits.max_headers:
            raise MessageTooLarge(f"the peer takes at most {limits.max_headers} bytes of headers")
