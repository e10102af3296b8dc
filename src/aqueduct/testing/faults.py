"""The faults of a simulated network: one value per run, drawn from the seed or set by a test."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a network; times are seconds, the rest are probabilities."""

    delay: float = 0.01
    """The minimum delay of everything that is sent."""

    jitter: float = 0.0
    """The maximum added delay, drawn per chunk, so that streams overtake each other."""

    loss: float = 0.0
    """A lost datagram never arrives; a lost chunk of a stream arrives ``recovery`` later."""

    duplicate: float = 0.0
    """A datagram arrives twice, with independent delays; stream data does not."""

    recovery: float = 0.1
    """The time in which the transport detects a loss and retransmits."""

    split: float = 0.0
    """A write arrives in several pieces, cut at random positions."""

    merge: float = 0.0
    """A piece is delayed until the next one and arrives together with it."""

    late_timer: float = 0.0
    """A timer fires late."""

    lateness: float = 0.0
    """The maximum lateness of a late timer."""

    spurious_timer: float = 0.0
    """A timer fires although nothing is due."""

    room: int = 0
    """The bytes of messages that the transport takes per millisecond; 0 if it takes everything.
    Other frames leave at once in any case."""

    holds_datagrams: bool = False
    """Datagrams need room as well; otherwise, they leave at once."""

    blackouts: tuple[tuple[float, float], ...] = ()
    """Start and end of intervals in which streams stall and datagrams are lost."""

    def blackout_end(self, time: float) -> float | None:
        """Return when the blackout at ``time`` ends, or None if there is none."""
        for start, end in self.blackouts:
            if start <= time < end:
                return end
        return None


CALM = Faults()
"""A network without faults."""


def draw_faults(random: Random, duration: float) -> Faults:
    """Draw the faults for a run of about ``duration`` seconds, from none to severe."""
    delay = random.choice((0.0, 0.0005, 0.005, 0.02, 0.1, 0.3))
    jitter = random.choice((0.0, 0.001, 0.02, 0.1, 0.5, 2.0))
    return Faults(
        delay=delay,
        jitter=jitter,
        loss=random.choice((0.0, 0.0, 0.02, 0.1, 0.2, 0.4)),
        recovery=random.choice((0.02, 0.1, 0.4)),
        split=random.choice((0.0, 0.1, 0.5)),
        merge=random.choice((0.0, 0.3, 0.7)),
        late_timer=random.choice((0.0, 0.1, 0.5)),
        lateness=random.choice((0.0005, 0.005, 0.03)),
        spurious_timer=random.choice((0.0, 0.0, 0.1)),
        blackouts=_draw_blackouts(random, duration),
        duplicate=random.choice((0.0, 0.0, 0.1, 0.4)),
    )


def _draw_blackouts(random: Random, duration: float) -> tuple[tuple[float, float], ...]:
    blackouts = []
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        start = random.uniform(0.0, duration)
        blackouts.append((start, start + random.choice((0.03, 0.3, 1.5))))
    return tuple(blackouts)
