"""A network of datagrams in virtual time: each is lost, doubled, delayed or overtaken by chance."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import Faults

Receiver = Callable[[str, bytes], object]
Tap = Callable[[str, str, bytes], object]


class DatagramNetwork:
    """Carries datagrams between names; what is under way to one arrives whoever answers to it."""

    def __init__(self, clock: VirtualClock, random: Random, faults: Faults) -> None:
        self.faults = faults
        self.receivers: dict[str, Receiver] = {}
        self.tap: Tap | None = None
        """Who is told of each datagram."""
        self.deaf: tuple[tuple[str, float, float], ...] = ()
        """Who hears nothing, and from when to when."""
        self._clock = clock
        self._random = random

    def carry(self, source: str, remote: str, datagram: bytes) -> None:
        """Send a datagram, and never tell what becomes of it."""
        if self.tap is not None:
            self.tap(source, remote, datagram)
        faults = self.faults
        chance = self._random.random
        if faults.blackouts and faults.blackout_end(self._clock.now) is not None:
            return
        if not (faults.loss and chance() < faults.loss):
            self._pass(source, remote, datagram)
        while faults.duplicate and chance() < faults.duplicate:
            self._pass(source, remote, datagram)

    def _pass(self, source: str, remote: str, datagram: bytes) -> None:
        delay = self.faults.delay
        if self.faults.jitter:
            # Most come soon; some come when everybody has given up on them.
            delay += self.faults.jitter * self._random.random() ** 3
        self._clock.after(delay, self._arrive, (source, remote, datagram))

    def _arrive(self, passing: tuple[str, str, bytes]) -> None:
        source, remote, datagram = passing
        for who, start, end in self.deaf:
            if who == remote and start <= self._clock.now < end:
                return
        self.receivers[remote](source, datagram)
