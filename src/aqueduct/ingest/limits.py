"""Every limit and delay of an ingest server, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from aqueduct.ingest.identity import MAX_OFFSETS
from aqueduct.transport.quic.endpoint import QuicOptions

KIB = 1024
MIB = 1024 * KIB
MAX_WAITING = 64 * MIB
"""All that waits may become one block of a log, with what describes each row besides."""

ATTENTIVE = QuicOptions(idle_timeout=6.0, keep_alive=2.0)
"""For producers and readers: a server that was killed cannot say so, and is to be missed soon."""


@dataclass(frozen=True)
class IngestLimits:
    """What an ingest server takes, and how it stores it; times are seconds, sizes bytes."""

    max_record: int = 1 * MIB
    """Key, value and headers of one record; larger things belong in an object store."""

    max_topics: int = 1_000
    """Each has directories, open files and an entry in every listing."""

    max_partitions: int = 64
    """Of one topic: each is a file to sync in every group that it is part of."""

    partitions: int = 4
    """Of a new topic whose producer does not say how many it wants."""

    max_producers: int = 10_000
    """Producer ids remembered for a topic; those not seen for `producer_memory` make room."""

    producer_memory: float = 7 * 86_400.0
    """How long a producer that sends nothing is remembered, and what it sends again is known."""

    max_jobs: int = 100_000
    """Jobs remembered for a topic: about 500 bytes of memory each, plus 32 for each of the last 128
    steps. Jobs idle for `producer_memory` are evicted."""

    max_ids: int = 500_000
    """Row ids of jobs in memory at once, over all topics: about 100 bytes each. Above that, the ids
    of the largest jobs spill to files."""

    max_epochs: int = 1_000
    """Epochs in the history of a topic, one for each server start that was followed by writes:
    about 20 bytes, plus 10 per partition, all rewritten at such a start. Older positions no longer
    detect a restored copy that was restarted more often than this."""

    max_streams: int = 1_000
    """Producers that send at once."""

    max_connection_streams: int = 100
    """Of one connection, so that none has them all."""

    max_fetches: int = 8
    """Ranges open at once: each holds up to 16 MiB of rows. If others wait, one whose
    client takes no rows is closed, and opened again when the client takes rows."""

    max_connection_fetches: int = 4
    """Of one connection, so that none has them all; the next wait."""

    max_idle_bytes: int = 64 * MIB
    """Bytes of rows in memory for ranges whose clients take none. Above that, the ranges idle for
    longest free theirs, and read them again later. Enough for four ranges of the largest rows."""

    advance_pause: float = 0.05
    """Pause after a write of named readers' advances, in which further ones are batched: each write
    is two syncs, which delay the syncs of records."""

    max_readers: int = 1_000
    """Named readers of a topic: each is written down whenever one comes further."""

    max_waiting: int = 16 * MIB
    """Bytes of records that wait to be stored; then producers wait."""

    linger: float = 0.002
    """How long a group waits for more records: what a sync costs on a good disk."""

    group_size: int = 1 * MIB
    """Bytes in a group past which it waits no longer."""

    roll_size: int = 64 * MIB
    """A log of this size becomes a segment."""

    roll_age: float = 5.0
    """And one of this age, so that readers of segments are never far behind."""

    low_water: int = 256 * MIB
    """Free disk space below which nothing is stored any more; reading goes on."""

    retention_age: float | None = None
    """Segments whose last row is older than this are removed; None keeps them."""

    clock_hold: float = 3_600.0
    """Seconds that a forward clock jump must last before expiry by `retention_age` or
    `producer_memory` follows it: removal is irreversible, and an hour gives operators time to see
    the warning."""

    retention_size: int | None = None
    """The oldest segments of a partition past this size are removed; None keeps them."""

    retention_past_readers: bool = False
    """Whether that may remove what a named reader has not read."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in (
            "max_record",
            "max_topics",
            "max_partitions",
            "partitions",
            "max_producers",
            "max_jobs",
            "max_ids",
            "max_epochs",
            "max_streams",
            "max_connection_streams",
            "max_fetches",
            "max_connection_fetches",
            "max_idle_bytes",
            "max_readers",
            "max_waiting",
            "group_size",
            "roll_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"IngestLimits({name}={getattr(self, name)!r}): give at least 1")
        if self.partitions > self.max_partitions:
            raise ValueError("IngestLimits: partitions is no more than max_partitions")
        if self.max_partitions > MAX_OFFSETS:
            raise ValueError(
                f"IngestLimits: max_partitions is no more than {MAX_OFFSETS:,}, or positions in "
                "such a topic could not be sent"
            )
        if self.max_record > 8 * MIB:
            raise ValueError("IngestLimits: max_record is no more than 8 MiB, half a message")
        if self.max_waiting < self.max_record:
            raise ValueError("IngestLimits: max_waiting is no less than max_record")
        if self.max_waiting > MAX_WAITING:
            raise ValueError(f"IngestLimits: max_waiting is no more than {MAX_WAITING:,}")
