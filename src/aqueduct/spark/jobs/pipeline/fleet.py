"""A fleet of simulated devices: what each one measures, when it sends it, and how late."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import msgspec

Mode = Literal["ordered", "unordered", "unreliable"]
Lateness = Literal["", "buffered", "stale"]

SHARES: dict[Mode, float] = {"ordered": 0.5, "unordered": 0.1, "unreliable": 0.4}
"""Readings that matter go in order, events in any order, samples without a guarantee."""
MODES: tuple[Mode, ...] = tuple(SHARES)
HOLD = 3.0
"""Seconds for which a device that buffers collects readings before it sends them."""
STALE_AGE = 600.0
"""Seconds by which the clock of a reading is behind that no window waits for."""
STALE_AFTER = 2.0
"""Seconds before the first of those: there has to be a watermark for them to be behind."""
STALE_SHARE = 0.02
_BUFFERS, _STALE = 4, 5
"""One device in so many holds its readings back, one in so many sends some that are too old."""
MAX_BURST = 1.0
"""Seconds of records that a device makes at once when it could not send for a while."""


class Reading(msgspec.Struct):
    """One record, as it is in the topic; times are microseconds since 1970."""

    device: str
    mode: str
    """How it was sent; ``mark`` for those that the pipeline itself puts between the others."""
    number: int
    """From 1 in each device and mode."""
    event: int | None
    """When it was measured."""
    sent: int
    """When the device sent it."""
    value: float
    late: str = ""


@dataclass
class Device:
    """One of the fleet; the same seed measures the same."""

    index: int
    rate: float
    """Records a second, over all modes."""
    seed: int = 0
    _numbers: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    _made: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    """How many it made or left out."""
    _held: list[Reading] = field(default_factory=list)
    _held_since: float = 0.0

    def __post_init__(self) -> None:
        self._random = Random(f"{self.seed}/{self.index}")
        self.name = f"device-{self.index:03d}"
        self.base = self._random.uniform(15.0, 30.0)
        self.period = self._random.uniform(8.0, 30.0)
        self.buffers = self.index % _BUFFERS == 1
        self.stale = self.index % _STALE == 2

    def due(self, elapsed: float, now: float) -> Iterator[Reading]:
        """What is to be sent ``elapsed`` seconds after the start, when the clock says ``now``."""
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

    def release(self, now: float) -> Iterator[Reading]:
        """What was held back, which is late by now."""
        held, self._held = self._held, []
        for reading in held:
            reading.sent = _micros(now)
            reading.late = "buffered"
            yield reading

    def _measure(self, mode: Mode, elapsed: float, now: float) -> Reading:
        self._numbers[mode] += 1
        stale = (
            self.stale
            and mode != "unreliable"
            and elapsed >= STALE_AFTER
            and self._random.random() < STALE_SHARE
        )
        wave = 4.0 * math.sin(math.tau * elapsed / self.period)
        return Reading(
            device=self.name,
            mode=mode,
            number=self._numbers[mode],
            event=_micros(now - (STALE_AGE if stale else 0.0)),
            sent=_micros(now),
            value=round(self.base + wave + self._random.gauss(0.0, 0.5), 3),
            late="stale" if stale else "",
        )


def make_fleet(count: int, rate: float, seed: int) -> Sequence[Device]:
    """So many devices, which share a rate."""
    return [Device(index, rate / count, seed) for index in range(count)]


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)
