"""Suites: the peers and measures of one run, and its duration."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.ingest import crowd
from bench.network import goals, measures, pair, roster
from bench.network.goals import Goal
from bench.network.measures import Measure, Row
from bench.network.pair import QUICK, Effort, Measured
from bench.network.peer import Setting
from bench.network.roster import Peer
from bench.spark import lab


@dataclass(frozen=True)
class Suite:
    """One kind of run."""

    name: str
    """As in ``python -m bench NAME``, and the name of the files with its result."""
    what: str
    ours: Mapping[str, tuple[str, ...]]
    """The peers that the goals are for, and the peers that the table compares each one with."""
    peers: tuple[Peer, ...]
    measures: tuple[Measure, ...]
    rows: tuple[Row, ...]
    goals: tuple[Goal, ...]
    effort: Effort
    quick: Effort
    examples: str
    processes: str = "Two processes each"
    meet: Callable[[str, Setting, Path, Path, Effort], AbstractContextManager[Measured]] = pair.meet
    """Starts and stops the processes of a peer."""

    def first_row(self, measure: Measure) -> Row:
        """Return the most important row of a measure."""
        return next(row for row in self.rows if row.measure == measure.name)

    def named(self, names: Sequence[str]) -> tuple[Peer, ...]:
        """Return the selected peers, and ours unless one of ours is selected."""
        wanted = [*names] if any(name in self.ours for name in names) else [*self.ours, *names]
        return tuple(peer for peer in self.peers if peer.name in wanted)


CHANNELS = Suite(
    name="channels",
    what="Measure channels and their peers, two processes each, and print one table.",
    ours={goals.OURS: ("zenoh-quic",), goals.OVER_TCP: ("zenoh-tls", "streams")},
    peers=roster.PEERS,
    measures=measures.ALL,
    rows=measures.ROWS,
    goals=goals.GOALS,
    effort=Effort(),
    quick=QUICK,
    examples="""\
measures: R100, R1K, T64K (streams of 100 bytes, 1 KiB, 64 KiB), L (round trip), H (connect and
first answer), BULK, BULK16 (small things beside channels in bulk); of ours alone CALL, MANY, TYPED,
UNORDERED, UNRELIABLE, MEMORY

examples:
  python -m bench channels                          everything, three times; about ten minutes
  python -m bench channels --quick --runs 1         checks that everything works
  python -m bench channels --only R100,L --peer zenoh-quic,zenoh-tls --runs 1
  python -m bench channels --peer aqueduct-tcp,zenoh-tls   over TCP only
""",
)

IPC = Suite(
    name="ipc",
    what="Measure ScalableIPC and its peers, two processes each, and print one table.",
    ours={goals.IPC_OURS: ("zmq-router", "unix")},
    peers=roster.IPC_PEERS,
    measures=measures.IPC_ALL,
    rows=measures.IPC_ROWS,
    goals=goals.IPC_GOALS,
    effort=Effort(seconds=0.7, warm=0.2, tries=1, quiet_timeout=2.0),
    quick=QUICK,
    examples="""\
measures: S100, S64K (one message at a time, of 100 bytes and of 64 KiB), F100, F64K (256 in flight)

examples:
  python -m bench ipc                               everything, three times; about two minutes
  python -m bench ipc --quick --runs 1              checks that everything works
  python -m bench ipc --only S100,F100 --peer zmq-router --runs 1
  python -m bench ipc --peer ipc-udp                ours alone
""",
)

INGEST = Suite(
    name="ingest",
    what="Measure an ingest server and its peers, real processes each, and print one table.",
    ours={goals.OURS: ("jetstream", "floor")},
    peers=roster.INGEST_PEERS,
    measures=measures.INGEST_ALL,
    rows=measures.INGEST_ROWS,
    goals=goals.INGEST_GOALS,
    effort=Effort(seconds=1.5, warm=0.4, tries=1, quiet_timeout=2.0),
    quick=replace(QUICK, log=50_000_000),
    examples="""\
measures: STORE1, STORE8 (records of 100 bytes, from one producer and from eight), PACE (how long
until they are stored, at half of 150,000 records/s), STORE10K, PEAK (memory); of ours alone RECOVER

examples:
  python -m bench ingest                            everything, three times; under three minutes
  python -m bench ingest --quick --runs 1           checks that everything works
  python -m bench ingest --only STORE1,PACE --peer floor --runs 1
  python -m bench ingest --peer aqueduct            ours alone
""",
    processes="A server and up to eight producers, each a process",
    meet=crowd.meet,
)

SPARK = Suite(
    name="spark",
    what="Measure Spark with our source and sink, and with its own, and print one table.",
    ours={goals.OURS: ("own",)},
    peers=roster.SPARK_PEERS,
    measures=measures.SPARK_ALL,
    rows=measures.SPARK_ROWS,
    goals=goals.SPARK_GOALS,
    effort=Effort(seconds=15.0, tries=1, quiet_timeout=5.0),
    quick=replace(QUICK, seconds=3.0, rows=40_000, files=20),
    examples="""\
measures: SCAN (rows of 100-byte values from a directory), SERVE (from a server, ours alone), FILES
(streamed over 500 files), SINK (written), DELAY (from send to a committed row, 500 ms trigger)

examples:
  python -m bench spark                             everything, three times; about eight minutes
  python -m bench spark --quick --runs 1            checks that everything works
  python -m bench spark --only SCAN,FILES --runs 1
""",
    processes="A Spark session on two cores; with ours a server and a producer, each a process",
    meet=lab.meet,
)
