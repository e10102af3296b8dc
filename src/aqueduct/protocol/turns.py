"""Whose turn it is when the connection window has room.

Theory of operation. Senders that wait for the connection window are told oldest first, and one that
does not fit is passed over: what fills the window may be what nobody takes, and then it would keep
everybody waiting. But where small messages always find room a large one never would. So the oldest
that was passed over is waited for in turn: for one spell of patience the others go ahead, for the
next they wait with it, and so on until it fits or gives up.
"""

from __future__ import annotations

from aqueduct.protocol.flow import Window
from aqueduct.protocol.timers import NEVER, Timers


class Turns:
    """The senders that wait for room in the connection window."""

    __slots__ = (
        "_oldest",
        "_patience",
        "_since",
        "_smallest",
        "_timers",
        "_window",
        "sizes",
        "wake_at",
    )

    def __init__(self, window: Window, timers: Timers, patience: float) -> None:
        self._window = window
        self._timers = timers
        self._patience = patience
        self.sizes: dict[int, int] = {}
        """What each channel waits to send, oldest first."""
        self._smallest = 0
        """No size is below this, so that a look at all of them is rarely needed."""
        self._oldest = -1
        """The channel that was passed over first."""
        self._since = 0.0
        self.wake_at = NEVER

    def wait(self, channel: int, size: int) -> None:
        """A message of this size waits; one that waited before keeps its place."""
        self._smallest = min(self._smallest, size) if self.sizes else size
        self.sizes[channel] = size

    def leave(self, channel: int) -> None:
        """It waits no more."""
        self.sizes.pop(channel, None)

    def next(self, now: float) -> list[int]:
        """The channels whose message fits now and whose turn it is; each fits by itself."""
        window = self._window
        if not window.fits(self._smallest):
            return []
        fitting: list[int] = []
        oldest = -1
        for channel, size in self.sizes.items():
            if window.fits(size):
                fitting.append(channel)
            elif oldest < 0:
                oldest = channel
                if self._is_waited_for(channel, now):
                    return fitting
        if oldest < 0:
            self._oldest = -1
        self._smallest = min(self.sizes.values(), default=0)
        return fitting

    def _is_waited_for(self, channel: int, now: float) -> bool:
        if channel != self._oldest or now >= self._since + 2 * self._patience:
            self._oldest = channel
            self._since = now
        waits = now >= self._since + self._patience
        if len(self.sizes) > 1:
            self._timers.wake(self, self._since + (2 if waits else 1) * self._patience)
        return waits

    def handle_timer(self, now: float) -> None:
        """Time to look again, which whoever polls the connection's events does anyway."""
