"""A wall clock that detects and logs jumps, and delays expiry by age after a jump forward."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("aqueduct.ingest")

TOLERANCE = 60.0
"""Seconds by which the wall clock may deviate from the monotonic clock without a jump: time
synchronisation corrects less in small steps, and the monotonic clock may stop during suspend."""
_STEP = 1.0
"""Seconds of a backward step; a smaller one may be the clock running slow."""


class Clock:
    """The wall clock, checked against a monotonic clock.

    Times are seconds since 1970. Thread-safe.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        *,
        hold: float = 0.0,
    ) -> None:
        """``hold``: how long a jump forward must last before `cautious` follows it."""
        self._wall = wall
        self._steady = steady
        self._hold = hold
        self._lock = threading.Lock()
        self._offset = wall() - steady()
        """Wall minus monotonic time before the jump that is not yet accepted."""
        self._jumped_at: float | None = None
        """Monotonic time at which a jump forward was detected; None if none is pending."""
        self.noticed = wall()
        """When a wrong clock was last detected, or the first reading. A row with a time in the
        future was stored by a wrong clock, so it was stored no later than this."""

    def now(self) -> float:
        """Return the wall clock as it is; log each jump once."""
        with self._lock:
            wall = self._wall()
            self._check_for_jump(wall)
        return wall

    def cautious(self) -> float:
        """Return the time for irreversible removals: it ignores a pending jump forward."""
        wall = self.now()
        return wall if self._jumped_at is None else min(wall, self._steady() + self._offset)

    def _check_for_jump(self, wall: float) -> None:
        steady = self._steady()
        drift = wall - steady - self._offset
        if abs(drift) <= TOLERANCE:
            if self._jumped_at is not None:
                self._jumped_at = None
                _log.warning("the clock returned to the time before the jump: %s", _utc(wall))
                self.noticed = wall
            elif drift < -_STEP:
                self.noticed = wall
            self._offset += drift
        elif drift < 0:
            self._accept(wall, steady)
            _log.warning(
                "the clock jumped back by %.0f s, to %s: rows repeat the last ingest_time until it "
                "has caught up", -drift, _utc(wall),
            )  # fmt: skip
        elif self._jumped_at is None:
            self._jumped_at = steady
            _log.warning(
                "the clock jumped forward by %.0f s, from %s to %s: rows get the new time; expiry "
                "by age follows the old time for %.0f s (clock_hold). Set the clock if it is wrong",
                drift, _utc(wall - drift), _utc(wall), self._hold,
            )  # fmt: skip
        if self._jumped_at is not None and steady - self._jumped_at >= self._hold:
            self._accept(wall, steady)
            _log.warning("the clock stays ahead, and counts from now on: %s", _utc(wall))
        elif self._jumped_at is not None:
            self.noticed = steady + self._offset  # rows stored now have a time in the future

    def _accept(self, wall: float, steady: float) -> None:
        self._offset, self._jumped_at, self.noticed = wall - steady, None, wall


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
