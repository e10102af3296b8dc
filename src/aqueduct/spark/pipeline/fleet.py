"""Simulated devices: what each one measures, when it sends, and how late."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import msgspec

Mode = Literal["ordered", "unordered", "unreliable"]

SHARES: dict[Mode, float] = {"ordered": 0.5, "unordered": 0.1, "unreliable": 0.4}
"""The share of records by mode: readings ordered, events unordered, samples unreliable."""
MODES: tuple[Mode, ...] = tuple(SHARES)
MARKER = "mark"
"""The mode of the marker records that the gateway appends to each partition."""
HOLD = 3.0
"""Seconds for which a buffering device collects readings before it sends them."""
STALE_AGE = 600.0
"""The age in seconds of a stale reading; it is behind every watermark."""
STALE_AFTER = 2.0
"""Seconds before the first stale reading, so that there is a watermark before it."""
STALE_SHARE = 0.02
_BUFFERS, _STALE = 4, 5
"""One device in 4 buffers its readings, one in 5 sends some that are stale."""
MAX_BURST = 1.0
"""The most seconds of records that a device sends at once after it was blocked."""


class DeviceReading(msgspec.Struct):
    """The value of a record in the topic; times are microseconds since 1970."""

    device: str
    mode: str
    """The mode of its channel, or `MARKER`."""
    number: int
    """Counts from 1 for each device and mode."""
    event: int | None
    """The time of the measurement."""
    sent: int
    """The time of sending."""
    value: float
    late: str = ""
    """``buffered``, ``stale`` or empty."""


@dataclass
class Device:
    """A simulated device; deterministic for a seed."""

    index: int
    rate: float
    """Records per second, over all modes."""
    seed: int = 0
    _numbers: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    _made: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    """The number of readings made or skipped, by mode."""
    _held: list[DeviceReading] = field(default_factory=list)
    _held_since: float = 0.0

    def __post_init__(self) -> None:
        self._random = Random(f"{self.seed}/{self.index}")
        self.name = f"device-{self.index:03d}"
        self.base = self._random.uniform(15.0, 30.0)
        self.period = self._random.uniform(8.0, 30.0)
        self.buffers = self.index % _BUFFERS == 1
        self.stale = self.index % _STALE == 2

    def due(self, elapsed: float, now: float) -> Iterator[DeviceReading]:
        """Yield what to send ``elapsed`` seconds after the start, at the time ``now``."""
        for mode in MODES:
            wanted = int(elapsed * self.rate * SHARES[mode])
            most = max(math.ceil(self.rate * SHARES[mode] * MAX_BURST), 1)
            count = min(wanted - self._made[mode], most)
            self._made[mode] = wanted
            for _ in range(count):
                reading = self._measure(mode, elapsed, now)
                if mode == "ordered" and self.buffers:
                    self._held.append(reading)
                else:
                    yield reading
        if self._held and elapsed - self._held_since >= HOLD:
            self._held_since = elapsed
            yield from self.release(now)

    def release(self, now: float) -> Iterator[DeviceReading]:
        """Yield the buffered readings, marked as late."""
        held, self._held = self._held, []
        for reading in held:
            reading.sent = _micros(now)
            reading.late = "buffered"
            yield reading

    def _measure(self, mode: Mode, elapsed: float, now: float) -> DeviceReading:
        self._numbers[mode] += 1
        stale = (
            self.stale
            and mode != "unreliable"
            and elapsed >= STALE_AFTER
            and self._random.random() < STALE_SHARE
        )
        wave = 4.0 * math.sin(math.tau * elapsed / self.period)
        return DeviceReading(
            device=self.name,
            mode=mode,
            number=self._numbers[mode],
            event=_micros(now - (STALE_AGE if stale else 0.0)),
            sent=_micros(now),
            value=round(self.base + wave + self._random.gauss(0.0, 0.5), 3),
            late="stale" if stale else "",
        )


def make_fleet(count: int, rate: float, seed: int) -> Sequence[Device]:
    """Return ``count`` devices that send ``rate`` records per second together."""
    return [Device(index, rate / count, seed) for index in range(count)]


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)
