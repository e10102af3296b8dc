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
        "_spares",
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
        self._spares: dict[int, int] = {}
        """The part of that in the reserve of the channel, if any."""
        self._smallest = 0
        """Lower bound of what a sender needs of the shared window; it avoids most full scans."""
        self._oldest = -1
        """The channel that was passed over first."""
        self._since = 0.0
        self.wake_at = NEVER

    def wait(self, channel: int, size: int, spare: int = 0) -> None:
        """A message of this size waits; one that waited before keeps its place."""
        shared = size - spare
        self._smallest = min(self._smallest, shared) if self.sizes else shared
        self.sizes[channel] = size
        if spare:
            self._spares[channel] = spare
        elif self._spares:
            self._spares.pop(channel, None)

    def leave(self, channel: int) -> None:
        """It waits no more."""
        self.sizes.pop(channel, None)
        self._spares.pop(channel, None)

    def next(self, now: float) -> list[int]:
        """The channels whose message fits now and whose turn it is; each fits by itself."""
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
                if self._is_waited_for(channel, now):
                    return fitting
        if oldest < 0:
            self._oldest = -1
        if spares:
            needs = [size - spares.get(channel, 0) for channel, size in self.sizes.items()]
            self._smallest = min(needs, default=0)
        else:
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
