"""How a simulated network misbehaves: one value per run, drawn from the seed or set by a test."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Faults:
    """The temper of a network; times are seconds, the rest are probabilities."""

    delay: float = 0.01
    """The least time anything takes to arrive."""

    jitter: float = 0.0
    """How much longer it may take; drawn for each chunk, so streams overtake each other."""

    loss: float = 0.0
    """A lost datagram is gone; a lost chunk of a stream comes ``recovery`` later."""

    duplicate: float = 0.0
    """A datagram arrives once more, at a time of its own; streams do not."""

    recovery: float = 0.1
    """What the transport needs to notice a loss and send again."""

    split: float = 0.0
    """A write arrives in several pieces, cut anywhere."""

    merge: float = 0.0
    """A piece waits for the one behind it and arrives together with it."""

    late_timer: float = 0.0
    """A timer is late."""

    lateness: float = 0.0
    """How late a late timer may be."""

    spurious_timer: float = 0.0
    """The core is woken although nothing is due."""

    blackouts: tuple[tuple[float, float], ...] = ()
    """Times in which nothing passes: streams stall until the end, datagrams are lost."""

    def blackout_end(self, time: float) -> float | None:
        """When the blackout at ``time`` ends; None when there is none."""
        for start, end in self.blackouts:
            if start <= time < end:
                return end
        return None


CALM = Faults()
"""A network nothing is wrong with."""


def draw_faults(random: Random, duration: float) -> Faults:
    """Choose a network for a run of about ``duration`` seconds, from benign to nasty."""
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
