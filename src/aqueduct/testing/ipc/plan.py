"""The workload and the configurations of a run of endpoints, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from aqueduct.ipc.core.pdu import OVERHEAD
from aqueduct.ipc.core.settings import MIN_MESSAGE, IpcSettings

NAMES = ("ann", "bob", "cat", "dan")


@dataclass(frozen=True, slots=True)
class IpcPlan:
    """The workload of all applications; weights are relative, the rest are probabilities."""

    unit: float
    """The longest ack timeout and the shortest receive timeout; other times are multiples."""
    duration: float
    """Seconds of virtual time before the faults stop."""
    turn: float
    """Mean seconds between two turns of one application."""
    messages: int
    """Maximum messages of all applications together."""
    burst: int
    """Maximum messages per turn."""
    weights: tuple[tuple[str, float], ...]
    """The relative frequency of each operation."""
    pdus: int
    """Maximum PDUs per message."""
    cancel: float
    """A message is cancelled, perhaps before it ended."""
    eager: float
    """A message is taken as soon as it arrives."""
    take_delay: float
    """Mean seconds that other messages wait."""
    refuse: float
    crash_after_take: float
    """The endpoint crashes shortly after it took a message."""
    pause: float
    """Maximum seconds that a crashed endpoint is down."""
    garbage: float
    """The `Forger` sends a forged PDU after a datagram."""
    hoard: float
    """Announcements of a `Hoarder` per unit; 0 for none."""
    deaf: tuple[tuple[str, float, float], ...]
    """Names that receive nothing but can send, each with the start and end of the interval."""
    report_delay: float
    report_fails: float
    """A PDU is reported as sent and was not."""
    configs: tuple[IpcSettings, ...]
    reports_sent: tuple[bool, ...]


def draw_plan(random: Random) -> IpcPlan:
    """Draw the plan of one run; many runs lack whole features, so that others dominate."""
    unit = random.choice((0.2, 0.6, 2.0))
    duration = unit * random.choice((2, 4, 8))
    count = random.choice((2, 2, 2, 3, 4))
    large = random.random() < 0.15
    reports = random.choice((0.0, 0.0, 0.5, 1.0))
    plan = IpcPlan(
        unit=unit,
        duration=duration,
        turn=duration / random.randint(8, 30),
        messages=random.choice((4, 12, 25, 40)),
        burst=random.choice((1, 2, 10)),
        weights=_draw_weights(random),
        pdus=random.choice((1, 1, 2, 5)) if large else random.choice((1, 2, 2, 5, 12)),
        cancel=random.choice((0.0, 0.0, 0.2, 0.6)),
        eager=random.choice((0.2, 0.8, 1.0)),
        take_delay=unit * random.choice((0.1, 0.5, 2.0)),
        refuse=random.choice((0.0, 0.0, 0.1, 0.3)),
        crash_after_take=random.choice((0.0, 0.0, 0.03, 0.15)),
        pause=unit * random.choice((0.01, 0.1, 0.5)),
        garbage=random.choice((0.0, 0.02, 0.1)),
        hoard=0.0,
        deaf=_draw_deafness(random, count, unit, duration),
        report_delay=unit * random.choice((0.0, 0.05, 0.4)),
        report_fails=random.choice((0.0, 0.1)),
        configs=tuple(_draw_config(random, unit, large) for _ in range(count)),
        reports_sent=tuple(random.random() < reports for _ in range(count)),
    )
    return replace(plan, hoard=random.choice((0.0, 0.0, 4.0, 20.0)))


def _draw_deafness(
    random: Random, count: int, unit: float, duration: float
) -> tuple[tuple[str, float, float], ...]:
    deaf = []
    for _ in range(random.choice((0, 0, 1, 3))):
        start = random.uniform(0.0, duration)
        length = unit * random.choice((0.1, 0.5, 0.95, 1.2, 2.0))
        deaf.append((random.choice(NAMES[:count]), start, start + length))
    return tuple(deaf)


def _draw_weights(random: Random) -> tuple[tuple[str, float], ...]:
    return (
        ("send", 10.0),
        ("change owner", random.choice((0.0, 1.0, 5.0))),
        ("resize", random.choice((0.0, 0.0, 2.0, 10.0))),
        ("crash", random.choice((0.0, 0.3, 1.0))),
        ("close", random.choice((0.0, 0.0, 0.3))),
        ("transient error", random.choice((0.0, 0.0, 1.0))),
        ("unreachable", random.choice((0.0, 0.0, 0.3))),
    )


def _draw_config(random: Random, unit: float, large: bool) -> IpcSettings:
    min_backoff = unit * random.choice((0.03, 0.08, 0.15))
    max_message = random.choice((MIN_MESSAGE, 4 * MIN_MESSAGE))
    tiny = random.random() < 0.25
    return IpcSettings(
        max_message=max_message,
        max_pdu=draw_max_pdu(random, large),
        owner_id_lifetime=max(0.1, unit * random.choice((0.25, 0.6, 1.0, 1.5, 5.0))),
        receive_timeout=unit * random.choice((1.0, 1.0, 1.3, 2.5)),
        ack_timeout=unit * random.choice((1.0, 1.0, 0.7)),
        min_backoff=min_backoff,
        max_backoff=min_backoff * random.choice((1, 2, 4)),
        held_backoff=unit * random.choice((0.2, 0.5, 2.0)),
        id_trust=unit * random.choice((0.0, 0.3, 2.0, 10.0)),
        max_sends=random.choice((2, 10)) if tiny else 16_384,
        max_remotes=random.choice((1, 4_096)),
        max_receives=random.choice((1, 3, 16_384)) if tiny else 16_384,
        min_rate=random.choice((0, 1_024, 1_024)),
        max_received=random.choice((1, 2)) * max_message,
        max_processed=random.choice((3, 1_000_000)) if tiny else 1_000_000,
    )


def draw_max_pdu(random: Random, large: bool) -> int:
    """Draw a PDU size, so small that messages have many PDUs, or large."""
    sizes = (9_000, 30_000) if large else (512, 512, 600, random.randint(512, 2_000))
    return random.choice(sizes)


def draw_size(random: Random, max_pdu: int, pdus: int) -> int:
    """Draw the size of a message, often at, just below or just above a multiple of the PDU size."""
    piece = max_pdu - OVERHEAD
    whole = random.randint(0, pdus) * piece
    return max(0, random.choice((whole, whole - 1, whole + 1, random.randint(0, pdus * piece))))
