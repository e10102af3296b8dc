"""The limits and delays of an ingest server, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.ingest.identity import MAX_OFFSETS
from aqueduct.settings import MIB, declare, seconds, switch, whole
from aqueduct.transport.settings import QuicSettings

MAX_WAITING = 64 * MIB
"""The upper bound of `max_waiting`: all waiting records may become one block of a log."""

CLIENT_QUIC_SETTINGS = QuicSettings(idle_timeout=6.0, keep_alive=2.0)
"""QUIC settings of clients: a killed server cannot close its connections, so they detect it by an
idle timeout of 6 s."""


@dataclass(frozen=True)
class IngestSettings:
    """The settings of an ingest server."""

    max_record: int = field(
        default=1 * MIB,
        metadata=whole(
            "bytes",
            "Key, value and headers of one record: half a message at most. Larger content belongs "
            "in an object store.",
            least=1,
            most=8 * MIB,
        ),
    )
    max_topics: int = field(
        default=1_000,
        metadata=whole(
            "topics", "Each has directories, open files and an entry in every listing.", least=1
        ),
    )
    max_partitions: int = field(
        default=64,
        metadata=whole(
            "partitions",
            "Partitions of one topic: each is a file to sync in every group that it is part of. A "
            "position in a topic names all of them.",
            least=1,
            most=MAX_OFFSETS,
        ),
    )
    partitions: int = field(
        default=4,
        metadata=whole(
            "partitions",
            "Partitions of a new topic whose producer does not ask for a number.",
            least=1,
            most="max_partitions",
        ),
    )
    max_producers: int = field(
        default=10_000,
        metadata=whole(
            "producers",
            "Producer ids remembered for a topic; those idle for `producer_memory` are evicted.",
            least=1,
        ),
    )
    producer_memory: float = field(
        default=7 * 86_400.0,
        metadata=seconds(
            "How long an idle producer is remembered, so that its retransmissions are deduplicated."
        ),
    )
    max_jobs: int = field(
        default=100_000,
        metadata=whole(
            "jobs",
            "Jobs remembered for a topic: about 500 bytes each, plus 32 for each of the last 128 "
            "steps. Jobs idle for `producer_memory` are evicted.",
            least=1,
        ),
    )
    max_ids: int = field(
        default=500_000,
        metadata=whole(
            "row ids",
            "Row ids of jobs in memory, over all topics: about 100 bytes each. Above that, the ids "
            "of the largest jobs spill to files.",
            least=1,
        ),
    )
    max_epochs: int = field(
        default=1_000,
        metadata=whole(
            "epochs",
            "Epochs in the history of a topic, one for each server start that was followed by "
            "writes: about 20 bytes, plus 10 per partition, all rewritten at such a start. Older "
            "positions no longer detect a restored copy that was restarted more often than this.",
            least=1,
        ),
    )
    max_streams: int = field(
        default=1_000, metadata=whole("producers", "Producers that send at once.", least=1)
    )
    max_connection_streams: int = field(
        default=100,
        metadata=whole("producers", "Producers of one connection that send at once.", least=1),
    )
    max_fetches: int = field(
        default=8,
        metadata=whole(
            "ranges",
            "Ranges open at once: each holds up to 16 MiB of rows. If others wait, a range whose "
            "client takes no rows is closed, and reopened when the client takes rows.",
            least=1,
        ),
    )
    max_connection_fetches: int = field(
        default=4, metadata=whole("ranges", "Ranges of one connection; the next wait.", least=1)
    )
    max_idle_bytes: int = field(
        default=64 * MIB,
        metadata=whole(
            "bytes",
            "Rows in memory for ranges whose clients take none. Above that, the ranges idle for "
            "longest free theirs, and read them again later. Enough for four ranges of the largest "
            "rows.",
            least=1,
        ),
    )
    advance_pause: float = field(
        default=0.05,
        metadata=seconds(
            "Pause after a write of named readers' offsets, in which further ones are batched: "
            "each write is two syncs, which delay the syncs of records."
        ),
    )
    max_readers: int = field(
        default=1_000,
        metadata=whole(
            "readers",
            "Named readers of a topic: all are written whenever one advances.",
            least=1,
        ),
    )
    max_waiting: int = field(
        default=16 * MIB,
        metadata=whole(
            "bytes",
            "Records that wait to be stored; above that, producers wait.",
            least="max_record",
            most=MAX_WAITING,
        ),
    )
    linger: float = field(
        default=0.002,
        metadata=seconds("How long a group waits for more records: one sync of a good disk."),
    )
    group_size: int = field(
        default=1 * MIB,
        metadata=whole("bytes", "Size of a group above which it does not wait.", least=1),
    )
    roll_size: int = field(
        default=64 * MIB, metadata=whole("bytes", "A log of this size becomes a segment.", least=1)
    )
    roll_age: float = field(
        default=5.0,
        metadata=seconds(
            "A log of this age becomes a segment, so that readers of segments lag little."
        ),
    )
    low_water: int = field(
        default=256 * MIB,
        metadata=whole("bytes", "Free disk space below which nothing is stored; reads continue."),
    )
    retention_age: float | None = field(
        default=None,
        metadata=seconds("Segments whose last row is older than this are removed.", none="never"),
    )
    clock_hold: float = field(
        default=3_600.0,
        metadata=seconds(
            "How long a forward clock jump must last before expiry by `retention_age` or "
            "`producer_memory` follows it: removal is irreversible, and an hour gives operators "
            "time to see the warning."
        ),
    )
    retention_size: int | None = field(
        default=None,
        metadata=whole(
            "bytes",
            "The oldest segments of a partition above this size are removed.",
            none="no such limit",
        ),
    )
    retention_past_readers: bool = field(
        default=False,
        metadata=switch("Whether retention may remove rows that a named reader has not read."),
    )


declare(IngestSettings)
