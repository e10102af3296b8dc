"""The goals, and whether a run met them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from bench.network.figures import Summary
from bench.network.measures import CHANNELS, CROWD, CROWDED, FLIGHT, GOAL_RATE, PROBES

OURS = "aqueduct"
"""As pip installs it here: with a compiled core if there is a compiler. Channels are over QUIC."""
OVER_TCP = "aqueduct-tcp"
"""The same over TCP."""
PURE = "aqueduct-pure"
"""The uncompiled sources, over QUIC."""
IPC_OURS = "ipc-udp"
"""ScalableIPC as it is used on one host."""

Results = Mapping[str, Mapping[str, Summary]]
"""By peer, then by the name of the row."""


@dataclass(frozen=True)
class Goal:
    """A bound for one row of ours: absolute, or as a multiple of a peer's figure."""

    row: str
    what: str
    limit: float
    at_least: bool
    of: str | None = None
    of_row: str | None = None
    """The row of that peer, if it is another one."""
    ours: str = OURS
    """The peer whose figure is judged."""

    @property
    def text(self) -> str:
        sign = "≥" if self.at_least else "≤" if self.of else "<"
        if self.of is None:
            return f"{sign} {self.limit:,g}"
        compared = f"{self.of_row} of {self.of}" if self.of_row else self.of
        return f"{sign} {self.limit:g} times {compared}"


@dataclass(frozen=True)
class Verdict:
    """The result of a goal; `reached` is None if a figure was not measured."""

    goal: Goal
    reached: float | None

    @property
    def met(self) -> bool | None:
        if self.reached is None:
            return None
        if self.goal.at_least:
            return self.reached >= self.goal.limit
        return self.reached <= self.goal.limit if self.goal.of else self.reached < self.goal.limit

    @property
    def word(self) -> str:
        return {True: "met", False: "not met", None: "not measured"}[self.met]


def _of_channels(ours: str, zenoh: str, connect: float) -> tuple[Goal, ...]:
    """Return the goals over one transport; ``zenoh`` uses the same one."""
    at_least = partial(Goal, ours=ours, at_least=True)
    at_most = partial(Goal, ours=ours, at_least=False)
    return (
        at_least("R100.rate", "100-byte messages", 1.5, of=zenoh),
        at_least("R1K.rate", "1-KiB messages", 1.5, of=zenoh),
        at_least("T64K.megabytes", "64-KiB messages", 1.5, of=zenoh),
        at_most("L.p50", "round trip, p50", 1.0, of=zenoh),
        at_most("H.median", "connect and first answer", connect, of=zenoh),
        at_most("CALL.p50", "`call`, p50", 1.3, of=ours, of_row="L.p50"),
        *(
            at_most(f"{name}.{probe}_share", f"{what} beside {bulk}, p99", 1.0)
            for name, bulk in (("BULK", "bulk"), (f"BULK{CROWDED}", f"{CROWDED} channels in bulk"))
            for probe, what in PROBES.items()
        ),
        at_least("TYPED.rate", "typed messages/s", 250_000),
        at_least("UNORDERED.rate", "unordered messages/s", 60_000),
        at_least("UNRELIABLE.rate", "unreliable messages/s", 200_000),
        at_most("MEMORY.client", f"{CHANNELS:,} live channels, MB in the client", 600),
        at_most("MEMORY.server", f"{CHANNELS:,} live channels, MB in the server", 600),
    )


GOALS = (
    *_of_channels(OURS, "zenoh-quic", connect=0.7),
    *_of_channels(OVER_TCP, "zenoh-tls", connect=1.0),
)

_of_ipc = partial(Goal, ours=IPC_OURS)

IPC_GOALS = (
    _of_ipc("F100.rate", f"100-byte messages/s, {FLIGHT} in flight", 25_000, at_least=True),
    _of_ipc("F64K.megabytes", f"64-KiB messages, {FLIGHT} in flight, MB/s", 300, at_least=True),
    _of_ipc("S100.p50", "a lone message, p50", 1.2, at_least=False, of="zmq-router"),
)

INGEST_GOALS = (
    Goal("STORE1.rate", "durable records/s, 1 producer", GOAL_RATE, at_least=True),
    Goal(f"STORE{CROWD}.rate", f"durable records/s, {CROWD} producers", GOAL_RATE, at_least=True),
    Goal("PACE.p99", "stored at half that load, p99 in ms", 15, at_least=False),
    Goal("RECOVER.seconds", "recovery of 1 GB, s", 10, at_least=False),
    Goal("PEAK.server", "MB in the server", 300, at_least=False),
    Goal("PEAK.producer", "MB in a producer", 300, at_least=False),
    Goal("RECOVER.peak", "MB while it recovers", 300, at_least=False),
)

SPARK_GOALS = (
    Goal("SCAN.rate", "read a directory", 0.6, at_least=True, of="own"),
    Goal("FILES.rate", "stream over 500 files", 1.0, at_least=True, of="own"),
    Goal("SERVE.rate", "rows/s from a server", 300_000, at_least=True),
    Goal("SINK.rate", "durable rows/s", 100_000, at_least=True),
    Goal("DELAY.p50", "from send to a committed row, p50 in s", 1.5, at_least=False),
)


def ratio(mine: Summary | None, theirs: Summary | None) -> float | None:
    """Return our median divided by a peer's."""
    if mine is None or theirs is None or not theirs.median:
        return None
    return mine.median / theirs.median


def judge(goal: Goal, results: Results) -> Verdict:
    mine = results.get(goal.ours, {}).get(goal.row)
    if goal.of is not None:
        theirs = results.get(goal.of, {}).get(goal.of_row or goal.row)
        return Verdict(goal, ratio(mine, theirs))
    return Verdict(goal, mine.median if mine is not None else None)
