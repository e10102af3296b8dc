"""The measured libraries, and why some are not available."""

import importlib.util
import os
import shutil
from dataclasses import dataclass, field, replace

from bench.network.goals import IPC_OURS, OURS, OVER_TCP, PURE
from bench.network.measures import CROWD, CROWDED
from bench.network.peer import Json


@dataclass(frozen=True)
class Peer:
    """A library in one configuration."""

    name: str
    label: str
    module: str
    """Has a `Server` and a `Client`."""
    package: str | None = None
    """Must be importable."""
    distribution: str | None = None
    """The distribution whose version the report states."""
    program: str | None = None
    """Must be on PATH, or named by a variable."""
    options: Json = field(default_factory=dict)
    uvloop: bool = True
    """Whether to use uvloop where it is installed."""
    compiled: bool = False
    """Whether it runs as pip installs it: with a compiled core if there is a compiler."""
    skips: tuple[str, ...] = ()
    """Measures that do not apply to it."""

    @property
    def missing(self) -> str | None:
        """Return why it cannot be measured here, or ""."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"the package {self.distribution} is not installed"
        if self.program is not None and find_program(self.program) is None:
            return f"there is no {self.program} on PATH"
        return None


def find_program(name: str) -> str | None:
    """Return the path of a program: from a variable such as NATS_SERVER, or from PATH."""
    return os.environ.get(name.upper().replace("-", "_")) or shutil.which(name)


def _ours(name: str, transport: str, label: str, *, compiled: bool) -> Peer:
    options = {"transport": transport}
    return Peer(name, label, "bench.network.peers.ours", options=options, compiled=compiled)


def _zenoh(link: str) -> Peer:
    return Peer(
        f"zenoh-{link}",
        f"zenoh publisher and subscriber over {link.upper()}",
        "bench.network.peers.over_zenoh",
        "zenoh",
        "eclipse-zenoh",
        options={"link": link},
    )


def _zenoh_with_priorities(link: str) -> Peer:
    return replace(
        _zenoh(link),
        name=f"zenoh-{link}-prio",
        label=f"zenoh over {link.upper()}, bulk with the lowest and probes with the highest "
        "priority",
        options={"link": link, "priorities": True},
        skips=("R100", "R1K", "T64K", "L", "H"),
    )


_NO_BULK = ("BULK", f"BULK{CROWDED}")


PEERS = (
    _ours(OURS, "quic", "Aqueduct over QUIC, ordered channel of `bytes`", compiled=True),
    _zenoh("quic"),
    _ours(OVER_TCP, "tcp", "the same over TCP", compiled=True),
    _zenoh("tls"),
    _ours(PURE, "quic", "over QUIC without a compiled core", compiled=False),
    _zenoh_with_priorities("quic"),
    _zenoh_with_priorities("tls"),
    Peer(
        "zmq",
        "pyzmq with asyncio and CURVE, PUSH/PULL and DEALER/ROUTER",
        "bench.network.peers.over_zmq",
        "zmq",
        "pyzmq",
        uvloop=False,  # measured faster without
        skips=_NO_BULK,
    ),
    Peer(
        "grpc",
        "grpc.aio over TLS, bytes without protobuf",
        "bench.network.peers.over_grpc",
        "grpc",
        "grpcio",
    ),
    Peer(
        "nats",
        "nats-py over TLS, through a nats-server",
        "bench.network.peers.over_nats",
        "nats",
        "nats-py",
        "nats-server",
        skips=_NO_BULK,
    ),
    Peer(
        "streams",
        "asyncio streams over TLS, small frames joined by hand",
        "bench.network.peers.over_streams",
        skips=_NO_BULK,
    ),
)

IPC_PEERS = (
    Peer(
        IPC_OURS,
        "Aqueduct's ScalableIPC over UDP on loopback",
        "bench.network.peers.our_ipc",
        options={"server": "udp://127.0.0.1:0", "client": "udp://127.0.0.1:0"},
        compiled=True,
    ),
    Peer(
        "ipc-tls",
        "the same over TLS on loopback",
        "bench.network.peers.our_ipc",
        options={"server": "tls://127.0.0.1:0", "client": "tls://"},
        compiled=True,
    ),
    Peer(
        "ipc-pure",
        "over UDP without a compiled core",
        "bench.network.peers.our_ipc",
        options={"server": "udp://127.0.0.1:0", "client": "udp://127.0.0.1:0"},
    ),
    Peer(
        "zmq-router",
        "pyzmq with asyncio, DEALER and ROUTER over its ipc://, an empty answer to each message",
        "bench.network.peers.over_router",
        "zmq",
        "pyzmq",
    ),
    Peer(
        "unix",
        "asyncio.Protocol on a UNIX socket, a length before each message, a byte for an answer",
        "bench.network.peers.over_unix",
    ),
)

INGEST_PEERS = (
    Peer(
        OURS,
        "an ingest server and its producers by their public API, all limits at their defaults",
        "bench.ingest.ours",
        "pyarrow",
        "pyarrow",
        compiled=True,
    ),
    Peer(
        "jetstream",
        "nats-py over TLS, a stream of NATS JetStream in files; asynchronous publishes, all of "
        "them acknowledged",
        "bench.ingest.jetstream",
        "nats",
        "nats-py",
        "nats-server",
    ),
    Peer(
        "floor",
        "no server: one process makes Arrow batches as large as our groups, appends them to a "
        "file and syncs it",
        "bench.ingest.floor",
        "pyarrow",
        "pyarrow",
        skips=(f"STORE{CROWD}", "PACE"),
    ),
)

SPARK_PEERS = (
    Peer(
        OURS,
        'Spark with `format("aqueduct")`: from the directory of an ingest server, from the server, '
        "and into it",
        "bench.spark.ours",
        "pyspark",
        "pyspark",
        compiled=True,
    ),
    Peer(
        "own",
        "Spark's own Parquet reader, file stream source and Parquet writer, on the same files; "
        "what it writes is not synced",
        "bench.spark.own",
        "pyspark",
        "pyspark",
    ),
)
