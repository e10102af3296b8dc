"""The workload of a run, drawn from its seed: how much both applications do, and how fast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from aqueduct.protocol.config import INITIAL_LIMITS, Config, Delivery, Limits
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.priorities import CLASSES
from aqueduct.wire.chanid import Side

DRAFT_SHARE = 0.15
"""The share of runs in which one side knows only the reference draft."""

PATIENT = Config(limits=Limits(channel_window=1 << 26, connection_window=1 << 28))
"""Takes whatever a peer sends that knows of no windows."""


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """The workload of both applications; weights are relative, the rest are probabilities."""

    duration: float
    """Seconds of virtual time before the applications start to drain."""
    turn: float
    """Mean seconds between two turns of one application."""
    operations: int
    """Maximum operations per turn."""
    max_channels: int
    max_messages: int
    modes: tuple[Mode, ...]
    choose_mode: float
    """A sender is given another mode before its first message."""
    weights: tuple[tuple[str, float], ...]
    """The relative frequency of each operation."""
    attach: float
    """A message carries channels."""
    send_ahead: float
    """The next message goes to the channel just made, before its carrier can have arrived."""
    burst: int
    """Maximum messages per burst."""
    sizes: tuple[int, ...]
    """Payload sizes to draw from, each an upper bound."""
    headers: float
    oneshot: float
    eager: float
    """A receiver is drained as soon as it is readable."""
    prefetch: float
    """A port prefetches the messages of a receiver, as in a real connection."""
    take_limit: int
    """The maximum that a receiver takes at once if it is not eager."""
    spare_entrypoint: float
    """The entrypoint is left open when an operation would end it."""
    unclaimed: float
    """A half that arrived in a message is cancelled or closed at once."""
    drain_cancel: float
    """A sender still open at the end is cancelled instead of finished."""
    drain_close: float
    """A receiver still open at the end is closed instead of drained."""
    lost_at: float | None
    """When the connection is lost, or None."""
    accept_delay: float
    """The delay after which the server accepts the client."""
    refuse: bool
    """The server refuses the client."""
    close_at: float | None
    """When an application closes the connection, or None."""
    leave_at: float | None
    """When the client leaves in good order, or None."""
    configs: tuple[Config, Config]
    draft: Side | None = None
    """The side that knows only the reference draft, or None."""
    priorities: tuple[int, ...] = ()
    """The priority classes to draw from; none if senders keep the default."""
    priority_seed: int = 0
    """The seed of those draws, which must not change the others."""
    delivery: tuple[Delivery, Delivery] | None = None
    """How fast the client and the server ack; None for the defaults."""


def draw_plan(random: Random) -> WorkloadPlan:
    """Draw the plan of one run; many runs lack whole features, so that others dominate."""
    plan = _draw_common(random)
    if random.random() >= DRAFT_SHARE:
        return plan
    # Such a peer states no limits, knows none of ours, and gives no credit back.
    draft = random.choice(list(Side))
    states_none = Config(limits=INITIAL_LIMITS)
    configs = (states_none, PATIENT) if draft == Side.CLIENT else (PATIENT, states_none)
    leave_at = plan.leave_at if draft == Side.SERVER else None
    return replace(plan, configs=configs, draft=draft, leave_at=leave_at)


def _draw_common(random: Random) -> WorkloadPlan:
    duration = random.choice((0.05, 0.3, 1.0, 3.0))
    turns = random.randint(20, 100)
    fate = random.random()
    moment = random.uniform(0.0, duration)
    return WorkloadPlan(
        duration=duration,
        turn=duration / turns,
        operations=random.randint(2, 8),
        max_channels=random.choice((2, 8, 20, 40)),
        max_messages=random.choice((30, 100, 250, 500)),
        modes=_draw_modes(random),
        choose_mode=random.choice((0.0, 0.2, 0.8)),
        weights=_draw_weights(random),
        attach=random.choice((0.1, 0.3, 0.6, 0.9)),
        send_ahead=random.choice((0.0, 0.3, 0.8)),
        burst=random.choice((1, 5, 30, 90)),
        sizes=_draw_sizes(random),
        headers=random.choice((0.0, 0.2)),
        oneshot=random.choice((0.0, 0.2, 0.6)),
        eager=random.choice((0.1, 0.6, 1.0)),
        prefetch=random.choice((0.0, 0.3, 0.8)),
        take_limit=random.choice((1, 3, 20)),
        spare_entrypoint=random.choice((0.5, 0.9, 1.0)),
        unclaimed=random.choice((0.0, 0.05, 0.3)),
        drain_cancel=random.choice((0.0, 0.2, 0.7)),
        drain_close=random.choice((0.0, 0.0, 0.2)),
        lost_at=moment if fate < 0.06 else None,
        accept_delay=random.choice((0.0, 0.0, 0.02, 0.3)),
        refuse=random.random() < 0.01,
        close_at=moment if 0.06 <= fate < 0.10 else None,
        leave_at=moment if 0.10 <= fate < 0.16 else None,
        configs=draw_configs(random),
        priorities=(),
        priority_seed=0,
    )


def with_priorities(plan: WorkloadPlan, random: Random) -> WorkloadPlan:
    """Add priorities to half of the plans, and short turns, so that few bytes take many."""
    if random.random() < 0.5:
        return plan
    every = range(CLASSES)
    priorities = tuple(random.choice(every) for _ in range(random.choice((2, 3, 8))))
    quantum = random.choice((60, 300, 2_000))
    client, server = (replace(config, quantum=quantum) for config in plan.configs)
    return replace(
        plan,
        configs=(client, server),
        priorities=priorities,
        priority_seed=random.getrandbits(32),
    )


def with_delivery(plan: WorkloadPlan, random: Random) -> WorkloadPlan:
    """Add times of acks and of receipt deadlines to a third of the plans."""
    if random.random() < 0.67:
        return plan
    return replace(plan, delivery=(_draw_delivery(random), _draw_delivery(random)))


def _draw_delivery(random: Random) -> Delivery:
    least, most = random.choice(((0.0, 0.0), (0.01, 0.02), (0.05, 1.0), (0.3, 0.3), (0.2, 5.0)))
    return Delivery(
        ack_delay=random.choice((0.0, 0.002, 0.03, 0.3)),
        receipt_deadline_min=least,
        receipt_deadline_max=most,
    )


def _draw_modes(random: Random) -> tuple[Mode, ...]:
    every = (Mode.ORDERED, Mode.UNORDERED, Mode.UNRELIABLE)
    if random.random() < 0.4:
        return (random.choice(every),)
    return every


def _draw_weights(random: Random) -> tuple[tuple[str, float], ...]:
    usual = (
        ("send", 10.0),
        ("burst", 2.0),
        ("take", 4.0),
        ("finish", 0.6),
        ("cancel", 0.6),
        ("close", 0.5),
        ("stop", 0.4),
        ("misuse", 0.2),
    )
    drawn = []
    for name, weight in usual:
        factor = 1.0 if name == "send" else random.choice((0.0, 0.3, 1.0, 3.0))
        drawn.append((name, weight * factor))
    return tuple(drawn)


def _draw_sizes(random: Random) -> tuple[int, ...]:
    every = (0, 8, 40, 40, 300, 1100, 1200, 5000)
    return tuple(random.choice(every) for _ in range(random.randint(1, 4)))


def draw_configs(random: Random) -> tuple[Config, Config]:
    """Draw the configurations of both sides; a third of the runs have small initial limits."""
    initial = draw_initial_limits(random) if random.random() < 0.33 else INITIAL_LIMITS
    return draw_config(random, initial), draw_config(random, initial)


def draw_initial_limits(random: Random) -> Limits:
    """Draw initial limits small enough to be reached: a receiver enforces at least these."""
    return Limits(
        channel_window=random.choice((50, 700)),
        connection_window=random.choice((700, 2500)),
        max_message=random.choice((500, 4000)),
        max_channels=random.choice((10, 20)),
        max_attachments=3,
        max_headers=300,
    )


def draw_config(random: Random, initial: Limits) -> Config:
    """Draw the configuration of one side."""
    return Config(
        limits=draw_limits(random),
        initial_limits=initial,
        max_unpacked=random.choice((0, 2, 20, 8_192)),
        max_datagram=random.choice((750, 1_150, 65_527)),
    )


def draw_limits(random: Random) -> Limits:
    """Draw limits; in half of the runs they are small enough to be reached."""
    if random.random() < 0.5:
        return Limits()
    channel_window = random.choice((1, 20, 100, 700, 4000))
    return Limits(
        channel_window=channel_window,
        connection_window=random.choice((channel_window, 300, 2500, 20_000)),
        max_message=random.choice((500, 4000, 100_000)),
        max_channels=random.choice((3, 10, 65_536)),
        max_attachments=random.choice((1, 3, 256)),
        max_headers=random.choice((10, 65_536, 65_536)),
        channel_reserve=random.choice((0, 8, 60, 400)),
        reserve_window=random.choice((0, 30, 500)),
    )
