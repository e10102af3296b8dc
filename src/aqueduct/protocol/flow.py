"""What the peer's limits let through: windows of bytes, and the size of one message."""

from __future__ import annotations

from collections import deque

from aqueduct.errors import MessageTooLarge
from aqueduct.protocol.config import Limits
from aqueduct.protocol.timers import NEVER, Timers
from aqueduct.wire.frames import Message
from aqueduct.wire.primitives import headers_size


class Window:
    """Bytes outstanding against a limit; one message larger than the limit may be alone in it."""

    __slots__ = ("limit", "outstanding")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.outstanding = 0

    def fits(self, size: int) -> bool:
        """Whether a message of this size may be added now (AQ-FLOW-3)."""
        return self.outstanding + size <= self.limit or self.outstanding == 0

    def room(self) -> int:
        """How many bytes are left; an empty window always has room for one message."""
        return max(self.limit - self.outstanding, 0)


class WrittenOff:
    """Bytes of lost channels, which come back when the peer has surely dropped them (AQ-FLOW-8)."""

    __slots__ = ("_timers", "_waiting", "_window", "total", "wake_at")

    def __init__(self, window: Window, timers: Timers) -> None:
        self._window = window
        self._timers = timers
        self._waiting: deque[tuple[float, int]] = deque()
        self.wake_at = NEVER
        self.total = 0
        """Bytes that are still to come back."""

    def add(self, size: int, at: float) -> None:
        """Give these bytes back at the given time."""
        self.total += size
        self._waiting.append((at, size))
        self._timers.wake(self, at)

    def handle_timer(self, now: float) -> None:
        """Give back what is due."""
        while self._waiting and self._waiting[0][0] <= now:
            size = self._waiting.popleft()[1]
            self._window.outstanding -= size
            self.total -= size
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
