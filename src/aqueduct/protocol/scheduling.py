"""The order in which blocked senders are woken when the connection window has room.

Theory of operation. Senders that wait for the connection window are woken oldest first, and one
whose message does not fit is passed over: the window may be full of messages that the peer's
application never takes, and waiting would block every channel (head-of-line blocking). But where
small messages always fit, a large one would starve. So priority alternates between the oldest
sender that was passed over and the others: for one timeout the others go first, for the next they
wait for it, until its message fits or it gives up.
"""

from __future__ import annotations

from aqueduct.protocol.flow import Window
from aqueduct.protocol.timers import NEVER, Timers


class BlockedSenders:
    """The senders that wait for room in the connection window, oldest first."""

    __slots__ = (
        "_oldest",
        "_since",
        "_smallest",
        "_spares",
        "_timeout",
        "_timers",
        "_window",
        "sizes",
        "wake_at",
    )

    def __init__(self, window: Window, timers: Timers, timeout: float) -> None:
        self._window = window
        self._timers = timers
        self._timeout = timeout
        self.sizes: dict[int, int] = {}
        """The size of the message that each channel waits to send, oldest first."""
        self._spares: dict[int, int] = {}
        """The part of it in the reserve of the channel, if any."""
        self._smallest = 0
        """Lower bound of what a sender needs of the shared window; it avoids most full scans."""
        self._oldest = -1
        """The channel that was passed over first."""
        self._since = 0.0
        self.wake_at = NEVER

    def wait(self, channel: int, size: int, spare: int = 0) -> None:
        """Add a sender with a message of this size, or change its size and keep its position."""
        shared = size - spare
        self._smallest = min(self._smallest, shared) if self.sizes else shared
        self.sizes[channel] = size
        if spare:
            self._spares[channel] = spare
        elif self._spares:
            self._spares.pop(channel, None)

    def leave(self, channel: int) -> None:
        """Remove a sender."""
        self.sizes.pop(channel, None)
        self._spares.pop(channel, None)

    def clear(self) -> None:
        """Remove all senders at the end of the connection."""
        self.sizes.clear()
        self._spares.clear()
        self._oldest = -1

    def next(self, now: float) -> list[int]:
        """Return the channels to wake now; the message of each fits by itself."""
        window = self._window
        spares = self._spares
        if self._smallest > 0 and not window.fits(self._smallest):
            return []
        fitting: list[int] = []
        oldest = -1
        for channel, size in self.sizes.items():
            if window.fits(size, spares.get(channel, 0)):
                fitting.append(channel)
            elif oldest < 0:
                oldest = channel
                if self._has_priority(channel, now):
                    return fitting
        if oldest < 0:
            self._oldest = -1
        if spares:
            needs = [size - spares.get(channel, 0) for channel, size in self.sizes.items()]
            self._smallest = min(needs, default=0)
        else:
            self._smallest = min(self.sizes.values(), default=0)
        return fitting

    def _has_priority(self, channel: int, now: float) -> bool:
        """Return whether the others wait for a sender whose message does not fit."""
        if channel != self._oldest or now >= self._since + 2 * self._timeout:
            self._oldest = channel
            self._since = now
        waits = now >= self._since + self._timeout
        if len(self.sizes) > 1:
            self._timers.wake(self, self._since + (2 if waits else 1) * self._timeout)
        return waits

    def handle_timer(self, now: float) -> None:
        """No-op: waking is enough, because `poll_events` re-evaluates the queue."""
