"""Two engines of the TCP transport in virtual time, connected by streams of bytes.

``VirtualTcp`` replaces the simulator's `FakeQuic`, so the same applications, cores, recorder and
checkers run over the real framing. TCP delivers everything in order, so a loss is a delay of all
that follows: the faults of a seed become pauses, and pieces that are cut anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import Action, WriteStream
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import Faults
from aqueduct.testing.quic import Core, stream_id
from aqueduct.testing.recorder import RecordObserver
from aqueduct.transport.tcp.engine import QmuxEngine
from aqueduct.wire.chanid import Side
from tests.transport.tapped import TappedNetwork

LEAST_DELAY = 0.000_05
"""Seconds: an answer never arrives at the instant of its cause, which checkers cannot separate."""
RATES = (20_000.0, 200_000.0, 5_000_000.0)
"""Bytes a second that a connection carries."""


class VirtualTcp(TappedNetwork):
    """Two engines, and the two streams of bytes between them."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        faults: Faults,
        cores: Sequence[Core],
        recorders: Sequence[RecordObserver],
        after_input: Callable[[Side], None],
        observers: Sequence[Sequence[Observer]] = ((), ()),
    ) -> None:
        super().__init__(clock, random, faults, cores, recorders, after_input, observers)
        self._random = (Random(random.random()), Random(random.random()))
        self._rate = random.choice(RATES)
        self._backlog = [0, 0]
        """Bytes of each side that wait for the network."""
        self._sent_until = [0.0, 0.0]
        """When the network has taken them."""
        self._arrives_at = [0.0, 0.0]
        """When the last bytes of each side arrive: TCP never reorders them."""
        self._known: tuple[set[int], set[int]] = (set(), set())
        """The streams that the core of each side has written to."""
        self.engines = [
            QmuxEngine(tap, ("127.0.0.1", 1 + side.other), 3_600.0, None)
            for side, tap in zip(Side, self._taps, strict=True)
        ]
        for side, engine in zip(Side, self.engines, strict=True):
            engine.before_end = partial(self._end, side)
            engine.start(clock.now)

    def _end(self, side: Side) -> None:
        if self.before_end is not None:
            self.before_end(side)

    def saw_action(self, side: Side, action: Action) -> None:
        """Record an action of a core; the engine numbers streams in the order of first writes."""
        numbers = self._numbers[side]
        if isinstance(action, WriteStream) and action.stream not in self._known[side]:
            self._known[side].add(action.stream)
            numbers[stream_id(len(numbers), side)] = action.stream
        super().saw_action(side, action)

    def flush(self, side: Side) -> None:
        """Send what the core of ``side`` queued, and set its timer."""
        engine = self.engines[side]
        had_ended = engine.has_ended
        data = b"".join(engine.flush(self.clock.now, self._backlog[side]))
        if data:
            self._send(side, data)
        self._set_timer(side)
        if engine.has_more:
            self.clock.after(LEAST_DELAY, self._continue, side)
        if engine.has_ended and not had_ended:
            self._after_input(side)

    def _continue(self, side: Side) -> None:
        if self._alive[side] or not self.engines[side].has_ended:
            self.flush(side)

    def _send(self, side: Side, data: bytes) -> None:
        """Send bytes in pieces: each leaves when those before it have, and arrives after them."""
        random, faults, now = self._random[side], self.faults, self.clock.now
        while data:
            size = len(data)
            if size > 1 and random.random() < faults.split:
                size = random.randrange(1, size)
            piece, data = data[:size], data[size:]
            self._backlog[side] += size
            left = max(now, self._sent_until[side]) + size / self._rate
            self._sent_until[side] = left
            self.clock.at(left, self._left, (side, size))
            due = left + LEAST_DELAY + faults.delay + faults.jitter * random.random()
            if random.random() < faults.loss:
                due += faults.recovery
            blackout = faults.blackout_end(due)
            due = max(due if blackout is None else blackout, self._arrives_at[side])
            self._arrives_at[side] = due
            self.clock.at(due, self._arrive, (side.other, piece))

    def _left(self, departure: tuple[Side, int]) -> None:
        side, size = departure
        self._backlog[side] -= size
        self._continue(side)

    def _arrive(self, arrival: tuple[Side, bytes]) -> None:
        side, data = arrival
        engine = self.engines[side]
        if engine.has_ended:
            return
        self.active_side = side
        engine.receive(data, self.clock.now)
        while engine.is_behind:
            engine.resume(self.clock.now)
        self._settle(side)

    # Time

    def _next_timer(self, side: Side) -> float | None:
        engine = self.engines[side]
        due = None if engine.has_ended else engine.core.next_timer()
        return due if self._alive[side] else None

    def _handle_timer(self, side: Side) -> None:
        now = self.clock.now
        self.active_side = side
        self._count_turns(side, now)
        self.engines[side].handle_timer(now)
        self._settle(side)

    def _lose(self, news: tuple[Side, int, str, bool]) -> None:
        side, code, reason, _ = news
        if self._alive[side]:
            self.active_side = side
            self.engines[side].lose(code, reason, self.clock.now)
            self._after_input(side)
