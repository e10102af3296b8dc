"""A datagram network in virtual time that loses, duplicates, delays and reorders."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import Faults

Receiver = Callable[[str, bytes], object]
Listener = Callable[[str, str, bytes], object]


class DatagramNetwork:
    """Carries datagrams between names; one in flight reaches the current owner of the name."""

    def __init__(self, clock: VirtualClock, random: Random, faults: Faults) -> None:
        self.faults = faults
        self.receivers: dict[str, Receiver] = {}
        self.on_datagram: Listener | None = None
        """Called with source, remote and contents of each datagram that is sent."""
        self.deaf: tuple[tuple[str, float, float], ...] = ()
        """Names that receive nothing, each with the start and the end of the interval."""
        self._clock = clock
        self._random = random

    def carry(self, source: str, remote: str, datagram: bytes) -> None:
        """Send a datagram, which may be lost without notice."""
        if self.on_datagram is not None:
            self.on_datagram(source, remote, datagram)
        faults = self.faults
        draw = self._random.random
        if faults.blackouts and faults.blackout_end(self._clock.now) is not None:
            return
        if not (faults.loss and draw() < faults.loss):
            self._pass(source, remote, datagram)
        while faults.duplicate and draw() < faults.duplicate:
            self._pass(source, remote, datagram)

    def _pass(self, source: str, remote: str, datagram: bytes) -> None:
        delay = self.faults.delay
        if self.faults.jitter:
            # Most arrive soon; some arrive after all timeouts.
            delay += self.faults.jitter * self._random.random() ** 3
        self._clock.after(delay, self._arrive, (source, remote, datagram))

    def _arrive(self, passing: tuple[str, str, bytes]) -> None:
        source, remote, datagram = passing
        for name, start, end in self.deaf:
            if name == remote and start <= self._clock.now < end:
                return
        self.receivers[remote](source, datagram)
