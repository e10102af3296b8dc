"""Stores for tests: short ways to make records and to read all that is stored."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from aqueduct.ingest.identity import TopicPosition
from aqueduct.ingest.records import Chunk, RecordColumns
from aqueduct.ingest.server.clock import Clock
from aqueduct.ingest.server.named_readers import Move
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission, Topic
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import PartitionStorage
from aqueduct.ingest.storage.local.durability import CLOSED
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.storage import LocalStorage
from aqueduct.ingest.storage.local.topic_storage import LocalTopicStorage

LIMITS = IngestSettings(low_water=0, partitions=2)


class Crash(BaseException):
    """A simulated crash of the process."""


def crash(*_: object, **__: object) -> Any:
    raise Crash


def records(first: int, count: int = 1, **other: Any) -> RecordColumns:
    """Return records with their sequence numbers as values."""
    sequences = range(first, first + count)
    values = [b"value %d" % each for each in sequences]
    return RecordColumns(first, values, [1_000_000 + each for each in sequences], **other)


def chunk_of(
    producer: str, sequences: Sequence[int], values: list[bytes], timestamps: list[int], *more: Any
) -> Chunk:
    """Return records of one producer for one partition; ``more`` are keys and headers."""
    return Chunk(producer, RecordColumns(sequences[0], values, timestamps, *more), sequences)


def spread(first: int, count: int) -> RecordColumns:
    """Return records with keys, which go to all partitions."""
    return records(first, count, keys=[b"%d" % each for each in range(first, first + count)])


def submit(store: Store, topic: Topic, *wanted: tuple[str, RecordColumns]) -> list[Submission]:
    """Commit records as one group, and return their outcomes."""
    submissions = [Submission(producer, each) for producer, each in wanted]
    store.commit({topic: submissions})
    return submissions


def put(store: Store, what: RecordColumns, topic: str = "t", producer: str = "p") -> Submission:
    """Commit records of one producer."""
    return submit(store, store.topic_to_write(topic, None), (producer, what))[0]


def stored(store: Store, what: RecordColumns, topic: str = "t", producer: str = "p") -> Submission:
    """Commit records, which must succeed."""
    submission = put(store, what, topic, producer)
    assert submission.fault is None
    return submission


def open_store(
    directory: Path,
    limits: IngestSettings = LIMITS,
    clock: Clock | Callable[[], float] | None = None,
    mode: int | None = None,
) -> Store:
    """Open a store of a local directory."""
    return Store(LocalStorage(directory, mode=mode), limits, clock, scratch=directory)


def read_only_topic(directory: Path) -> Topic:
    """Open a topic as a directory reader does."""
    return Topic(LocalTopicStorage(directory, read_only=True), scratch=directory.parent)


def parts_of(topic: Topic) -> list[Partition]:
    """Return the local partitions of a topic."""
    return cast(list[Partition], topic.partitions)


def advance(
    topic: Topic,
    reader: str,
    offsets: dict[int, int],
    max_readers: int = LIMITS.max_readers,
    position: TopicPosition | None = None,
) -> None:
    """Advance a named reader; raise the error if that fails."""
    (fault,) = topic.readers.advance_all([Move(reader, offsets, position=position)], max_readers)
    if fault is not None:
        raise fault


def retain(store: Store) -> int:
    """Remove what retention may remove, and return the bytes that this freed."""
    return sum(
        store._retain(topic, number)
        for topic in store.topics.values()
        for number in range(len(topic.partitions))
    )


@contextmanager
def opened(
    directory: Path,
    limits: IngestSettings = LIMITS,
    clock: Clock | Callable[[], float] | None = None,
) -> Iterator[Store]:
    """Open a store, and close it at the end."""
    store = open_store(directory, limits, clock)
    try:
        yield store
    finally:
        store.close()


def killed(directory: Path) -> None:
    """Make the directory look as if the server was killed instead of closed."""
    for mark in directory.rglob(CLOSED):
        mark.unlink()


def rolled(store: Store) -> int:
    """Turn all logs into segments."""
    store.rotate_old(everything=True)
    return store.roll()


def rows_of(part: PartitionStorage) -> list[dict[str, Any]]:
    """Return all rows of a partition; check dense offsets."""
    first, end = part.first_offset, part.next_offset
    part.check_range("t", first, end)
    batches = list(part.read(first, end))
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    assert [row["offset"] for row in rows] == list(range(first, end))
    times = [row["ingest_time"] for row in rows]
    assert times == sorted(times)
    return rows


def sequences(topic: Topic, producer: str = "p") -> list[int]:
    """Return the stored sequence numbers of a producer, over all partitions."""
    found = [row for part in topic.partitions for row in rows_of(part)]
    for row in found:
        assert row["value"] == b"value %d" % row["producer_sequence"]
    return sorted(row["producer_sequence"] for row in found if row["producer_id"] == producer)


def files(directory: Path, pattern: str) -> list[Path]:
    """Return the files of the topic, oldest first."""
    return sorted(directory.rglob(pattern))


def fill(path: Path, data: bytes | bytearray) -> None:
    """Recreate a file: truncating a written one makes some file systems wait for the disk."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
