"""The storage seam: the Protocols that a storage backend implements.

| Protocol | what it is |
|---|---|
| `Storage` | everything that one ingest server stores: topics by name |
| `TopicStorage` | one topic, claimed and recovered: appends groups, keeps blobs |
| `PartitionStorage` | one partition of a topic, as readers see it |
| `Blob` | a small named value of a topic, such as the offsets of its readers |

The topic above the seam decides what is stored: it deduplicates, checks owners, and keeps jobs,
named readers and the topic's identity. The storage makes it durable. Nothing here assumes files: a
replicated log can implement it, with one group in flight for each topic.

Threads: one thread calls everything that appends or changes a topic. Another one may call `roll`,
`expired` and `drop_before`, another one may write blobs of its own, and any thread may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from aqueduct.ingest.errors import IngestError, RefusedRecords
from aqueduct.ingest.identity import History
from aqueduct.ingest.protocol import NAME, PartitionInfo
from aqueduct.ingest.records import Chunk


def check_name(name: str, what: str = "topic") -> None:
    """Raise `RefusedRecords` unless every storage can use a name, also as that of a directory."""
    if not NAME.fullmatch(name):
        raise RefusedRecords(
            f"{name[:120]!r} cannot be the name of a {what}; take up to 100 letters, digits, "
            "dots, dashes and underscores, beginning with a letter or digit"
        )


class NothingStored(IngestError):
    """The group was not stored, and the topic can be appended to as before."""


class UnencodableRecords(NothingStored):
    """The group was not stored, because some of its records cannot be encoded."""


class OutcomeUnknown(IngestError):
    """The group may or may not be stored; only opening the topic again tells."""


class Fenced(IngestError):
    """Another process has claimed the topic; this one must not write to it."""


class ProducerState(NamedTuple):
    """The last stored record of a producer, from which its duplicates are detected."""

    sequence: int
    time: int
    """When it was stored, in microseconds since 1970."""
    instance: str = ""
    """The instance of the producer that sent it; empty if unknown."""


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The records of a group for one partition."""

    chunks: Sequence[Chunk]
    """In order; at least one record."""
    producers: dict[str, int]
    """The last sequence number by producer, to be stored with the records."""
    instances: dict[str, str]
    """The instance by producer, for those that have one."""


@dataclass(frozen=True, slots=True)
class Group:
    """Records that are stored together: all of them or none."""

    partitions: dict[int, PartitionRecords]
    """By partition, at least one."""
    clock: int
    """The clock reading, in microseconds since 1970."""


class Appended(NamedTuple):
    """The result of an append: the offsets and the time of a group."""

    offsets: Mapping[int, int]
    """By partition of the group, the offset of its first record."""
    time: int
    """The ``ingest_time`` of its records: the clock reading, but never less than before."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which rows retention may remove. Times are microseconds since 1970."""

    stored_before: int | None
    """Rows stored before this time are expired; None if rows do not expire by age."""
    max_bytes: int | None
    """The oldest rows beyond this size of a partition are expired; None if there is no limit."""
    latest: int
    """A time later than this was set by a wrong clock."""
    noticed: int
    """When a wrong clock was last detected: rows with a mistaken time were stored before."""


class Blob(Protocol):
    """A small named value of a topic. Methods raise `IngestError` on failure."""

    @property
    def location(self) -> str:
        """The location of the blob, for error messages."""

    def read(self) -> bytes | None:
        """Return the value; None if it was never written.

        A crash in `append` may leave a part of the appended bytes. Other values are whole.
        """

    def write(self, data: bytes) -> None:
        """Replace the value, atomically and durably."""

    def append(self, data: bytes) -> None:
        """Add bytes to the end of an existing value, durably; much cheaper than `write`."""

    def remove(self) -> None:
        """Remove the value, if there is one."""

    def close(self) -> None:
        """Release what `append` holds."""


class PartitionStorage(Protocol):
    """One partition: rows with dense offsets. All members may be used by any thread."""

    @property
    def number(self) -> int:
        """The number of the partition in its topic."""

    @property
    def fault(self) -> str:
        """Why the partition is out of use; empty if it is in use."""

    @property
    def first_offset(self) -> int:
        """The first offset that retention has not removed."""

    @property
    def next_offset(self) -> int:
        """The offset of the next row."""

    @property
    def log_bytes(self) -> int:
        """Bytes that `TopicStorage.roll` has yet to turn into segments; 0 without segments."""

    def check_range(self, topic: str, start: int, end: int) -> None:
        """Raise `UnknownTopic` unless all rows from ``start`` up to ``end`` exist."""

    def read(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets from ``start`` up to ``end``; only ``columns``, if given.

        Raises `CorruptFile` for damaged rows, `UnknownTopic` for rows that retention has removed.
        """

    def offset_at(self, timestamp: int) -> int:
        """Return the first offset stored at or after a time; `next_offset` if there is none."""

    def info(self) -> PartitionInfo:
        """Return the offsets, times and size of the partition."""


class TopicStorage(Protocol):
    """One topic, claimed and recovered."""

    @property
    def name(self) -> str:
        """The name of the topic."""

    @property
    def location(self) -> str:
        """The location of the topic, for error messages."""

    @property
    def read_only(self) -> bool:
        """Whether another process may append to the topic, and this one may not."""

    @property
    def partitions(self) -> Sequence[PartitionStorage]:
        """The partitions by number; as many as the topic was created with."""

    @property
    def history(self) -> History:
        """The identity of the topic; replaced as a whole, so that any thread may read it."""

    @property
    def fault(self) -> str:
        """Why the topic cannot be appended to; empty if it can be."""

    def write_history(self, history: History) -> None:
        """Replace the identity of the topic, atomically and durably."""

    def producers(self) -> dict[str, ProducerState]:
        """Return the producers that were stored with groups and not forgotten."""

    def forget_producers(self, names: Iterable[str]) -> None:
        """Remove producers; they may reappear after a crash."""

    def append(self, group: Group) -> Appended:
        """Store a group durably: after a crash all of it is stored, or nothing.

        Offsets are dense: a row has the next offset of its partition. Raises `NothingStored`,
        `OutcomeUnknown` or `Fenced`; after the last two the topic has a `fault`.
        """

    def blob(self, name: str) -> Blob:
        """Return the blob with a name, whether or not it was ever written."""

    def rotate(self, size: int, age: float) -> None:
        """Finish logs of at least ``size`` bytes or ``age`` seconds, so that `roll` takes them.

        Called by the thread that appends. Does nothing in a storage without logs.
        """

    def roll(self, partition: int) -> int:
        """Turn the finished logs of a partition into segments; return how many were made.

        Logs failures, and retries them with the next call.
        """

    def expired(self, partition: int, retention: Retention) -> int:
        """Return the offset below which the rows of a partition are expired."""

    def drop_before(self, partition: int, offset: int) -> int:
        """Remove rows below an offset, as far as the storage can; return the bytes freed.

        A storage may keep some of them, but no row at or above the offset is removed. Logs
        failures.
        """

    def close(self) -> None:
        """Close the topic; what was appended is durable."""


class Storage(Protocol):
    """Everything that one ingest server stores."""

    @property
    def location(self) -> str:
        """The location of the topics, for error messages."""

    def names(self) -> list[str]:
        """Return the names of all topics, also of those that cannot be opened."""

    def create(self, name: str, partitions: int, history: History) -> TopicStorage:
        """Create a topic, claim it and open it; after a crash it exists with its history or not.

        Raises `IngestError` if that fails.
        """

    def open(self, name: str) -> TopicStorage:
        """Claim a topic and recover it: remove what an unfinished `append` left.

        Raises `Fenced` if another process has claimed the topic and keeps it, `IngestError` if it
        cannot be opened at all. A topic with damaged rows opens with a `TopicStorage.fault`. A
        storage may claim all topics when it is constructed.
        """

    def free_bytes(self) -> int:
        """Return the bytes that can still be stored."""

    def close(self) -> None:
        """Give up all claims. Close the topics first."""
