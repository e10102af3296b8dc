"""The measurements, and the rows of the table that they fill."""

from dataclasses import dataclass
from enum import Enum, StrEnum

CHANNELS = 100_000
"""Live channels whose memory is measured."""
FLIGHT = 256
"""Messages of ScalableIPC that are sent and not yet acknowledged."""
CROWD = 8
"""Concurrent producer processes of an ingest server."""
PROBES = {
    "message": "100-byte message on another channel",
    "cancel": "cancel of another channel",
    "datagram": "100-byte unreliable message",
}
"""What has to arrive soon while one channel of the connection sends as much as it can."""
BULK_SIZE = 64 * 1024
"""Bytes of the messages of that channel."""
CROWDED = 16
"""Channels in bulk that together fill the connection window."""
GOAL_RATE = 150_000
"""The goal for an ingest server on two cores, in records per second."""
DELAY_RATE = 10_000
"""The load of a streaming query, in records per second."""


class Manner(StrEnum):
    """How a stream of messages is sent and received; peers support only the first."""

    PLAIN = "plain"
    MANY = "many"
    TYPED = "typed"
    UNORDERED = "unordered"
    UNRELIABLE = "unreliable"


class Kind(Enum):
    """What the processes do in a measurement."""

    STREAM = "stream"
    TRIPS = "trips"
    CALLS = "calls"
    FRESH = "fresh"
    HOLD = "hold"
    BULK = "bulk"
    DELIVER = "deliver"
    STORE = "store"
    PACE = "pace"
    RECOVER = "recover"
    PEAK = "peak"
    SCAN = "scan"
    SERVE = "serve"
    FILES = "files"
    SINK = "sink"
    DELAY = "delay"


@dataclass(frozen=True)
class Measure:
    """One measurement of one peer."""

    name: str
    kind: Kind
    size: int
    manner: Manner = Manner.PLAIN
    flight: int = 1
    """Messages in flight, where each is acknowledged; or channels in bulk."""
    producers: int = 1
    """Concurrent producer processes, where records are stored."""
    rate: int = 0
    """Records per second, where the rate is fixed."""

    @property
    def ours_only(self) -> bool:
        return self.manner is not Manner.PLAIN or self.kind in (
            Kind.CALLS,
            Kind.HOLD,
            Kind.RECOVER,
            Kind.SERVE,
        )

    @property
    def once(self) -> bool:
        """Whether one run is enough, because it is long and varies little."""
        return self.kind in (Kind.HOLD, Kind.RECOVER)

    @property
    def large(self) -> bool:
        return self.size > 4096


ALL = (
    Measure("R100", Kind.STREAM, 100),
    Measure("R1K", Kind.STREAM, 1024),
    Measure("T64K", Kind.STREAM, 64 * 1024),
    Measure("L", Kind.TRIPS, 100),
    Measure("H", Kind.FRESH, 100),
    Measure("BULK", Kind.BULK, 100),
    Measure(f"BULK{CROWDED}", Kind.BULK, 100, flight=CROWDED),
    Measure("CALL", Kind.CALLS, 100),
    Measure("MANY", Kind.STREAM, 100, Manner.MANY),
    Measure("TYPED", Kind.STREAM, 100, Manner.TYPED),
    Measure("UNORDERED", Kind.STREAM, 100, Manner.UNORDERED),
    Measure("UNRELIABLE", Kind.STREAM, 100, Manner.UNRELIABLE),
    Measure("MEMORY", Kind.HOLD, 100),
)


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of a measurement."""

    measure: str
    figure: str
    what: str
    unit: str

    @property
    def name(self) -> str:
        return f"{self.measure}.{self.figure}"


ROWS = (
    Row("R100", "rate", "100-byte messages", "messages/s"),
    Row("R1K", "rate", "1-KiB messages", "messages/s"),
    Row("T64K", "megabytes", "64-KiB messages", "MB/s"),
    Row("L", "p50", "round trip of 100 bytes, p50", "µs"),
    Row("L", "p99", "round trip of 100 bytes, p99", "µs"),
    Row("H", "median", "connect and first answer", "ms"),
    *(
        Row(name, f"{probe}_{figure}", f"{what}, {how}", unit)
        for name, bulk in (("BULK", "bulk"), (f"BULK{CROWDED}", f"{CROWDED} channels in bulk"))
        for probe, what in PROBES.items()
        for figure, how, unit in (
            ("idle", "idle, p99", "µs"),
            ("p50", f"beside {bulk}, p50", "µs"),
            ("p99", f"beside {bulk}, p99", "µs"),
            ("share", "of 3 times idle p99 + 2 ms", "times"),
        )
    ),
    Row("BULK", "megabytes", "bulk meanwhile, 64-KiB messages", "MB/s"),
    Row(f"BULK{CROWDED}", "megabytes", f"{CROWDED} channels in bulk meanwhile", "MB/s"),
    Row("CALL", "p50", "`call` with a channel for the answer, p50", "µs"),
    Row("MANY", "rate", "100-byte messages, `receive_many`", "messages/s"),
    Row("TYPED", "rate", "typed messages of 5 fields", "messages/s"),
    Row("UNORDERED", "rate", "100-byte messages, unordered", "messages/s"),
    Row("UNRELIABLE", "rate", "100-byte messages, unreliable", "messages/s"),
    Row("UNRELIABLE", "lost", "of these lost", "%"),
    Row("MEMORY", "client", "live channels, peak memory of the client", "MB"),
    Row("MEMORY", "server", "live channels, peak memory of the server", "MB"),
)

IPC_ALL = (
    Measure("S100", Kind.DELIVER, 100),
    Measure("F100", Kind.DELIVER, 100, flight=FLIGHT),
    Measure("S64K", Kind.DELIVER, 64 * 1024),
    Measure("F64K", Kind.DELIVER, 64 * 1024, flight=FLIGHT),
)

IPC_ROWS = (
    Row("S100", "p50", "100 bytes, one at a time, p50", "µs"),
    Row("S100", "p99", "100 bytes, one at a time, p99", "µs"),
    Row("S100", "rate", "100 bytes, one at a time", "messages/s"),
    Row("F100", "rate", f"100 bytes, {FLIGHT} in flight", "messages/s"),
    Row("F100", "p50", f"100 bytes, {FLIGHT} in flight, p50", "µs"),
    Row("F100", "p99", f"100 bytes, {FLIGHT} in flight, p99", "µs"),
    Row("S64K", "p50", "64 KiB, one at a time, p50", "µs"),
    Row("S64K", "p99", "64 KiB, one at a time, p99", "µs"),
    Row("S64K", "megabytes", "64 KiB, one at a time", "MB/s"),
    Row("F64K", "megabytes", f"64 KiB, {FLIGHT} in flight", "MB/s"),
    Row("F64K", "p50", f"64 KiB, {FLIGHT} in flight, p50", "µs"),
    Row("F64K", "p99", f"64 KiB, {FLIGHT} in flight, p99", "µs"),
)

INGEST_ALL = (
    # First, before greater loads leave logs to be made into segments.
    Measure("PACE", Kind.PACE, 100, rate=GOAL_RATE // 2),
    Measure("STORE1", Kind.STORE, 100),
    Measure(f"STORE{CROWD}", Kind.STORE, 100, producers=CROWD),
    Measure("STORE10K", Kind.STORE, 10 * 1024),
    Measure("PEAK", Kind.PEAK, 0),
    Measure("RECOVER", Kind.RECOVER, 100),
)

INGEST_ROWS = (
    Row("STORE1", "rate", "100-byte records, 1 producer", "records/s"),
    Row(f"STORE{CROWD}", "rate", f"100-byte records, {CROWD} producers", "records/s"),
    Row("PACE", "p50", "from send until stored, p50", "ms"),
    Row("PACE", "p99", "from send until stored, p99", "ms"),
    Row("PACE", "rate", "at a load of", "records/s"),
    Row("STORE10K", "megabytes", "10-KiB records, 1 producer", "MB/s"),
    Row("PEAK", "server", "peak memory of the server", "MB"),
    Row("PEAK", "producer", "peak memory of a producer", "MB"),
    Row("RECOVER", "seconds", "recovery from the log", "s/GB"),
    Row("RECOVER", "peak", "peak memory while it recovers", "MB"),
)

SPARK_ALL = (
    Measure("SCAN", Kind.SCAN, 100),
    Measure("SERVE", Kind.SERVE, 100),
    Measure("FILES", Kind.FILES, 100),
    Measure("SINK", Kind.SINK, 100),
    Measure("DELAY", Kind.DELAY, 100, rate=DELAY_RATE),
)

SPARK_ROWS = (
    Row("SCAN", "rate", "read a directory", "rows/s"),
    Row("SERVE", "rate", "read from a server", "rows/s"),
    Row("FILES", "rate", "stream over 500 files", "rows/s"),
    Row("SINK", "rate", "write, durable", "rows/s"),
    Row("DELAY", "p50", "from send to a committed row, p50", "s"),
    Row("DELAY", "p99", "from send to a committed row, p99", "s"),
    Row("DELAY", "batch", "of that a micro-batch, median", "ms"),
    Row("DELAY", "rate", "at a load of", "records/s"),
)
