"""A storage without files passes the contract, and a whole server store runs on it.

It behaves like a replicated log: messages in order, a claim that the newest opener takes over, and
values that are rolled up. So the seam assumes nothing about a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import UnknownTopic
from aqueduct.ingest.identity import History
from aqueduct.ingest.protocol import PartitionInfo
from aqueduct.ingest.records import STORED, make_batch
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.storage.base import (
    Appended,
    Fenced,
    Group,
    NothingStored,
    OutcomeUnknown,
    ProducerState,
    Retention,
    Storage,
    TopicStorage,
    UnencodableRecords,
)
from tests.ingest.storage.contract import Backend, StorageContract
from tests.ingest.storing import LIMITS, advance, records, rolled, sequences, stored


@dataclass
class Stream:
    """A topic in the log."""

    history: History
    batches: list[list[pa.RecordBatch]]
    firsts: list[int]
    producers: dict[str, ProducerState] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    claim: int = 0
    is_full: bool = False
    loses_answers: bool = False


class StreamBlob:
    def __init__(self, stream: Stream, name: str) -> None:
        self._stream = stream
        self.location = name

    def read(self) -> bytes | None:
        return self._stream.blobs.get(self.location)

    def write(self, data: bytes) -> None:
        self._stream.blobs[self.location] = data

    def append(self, data: bytes) -> None:
        self._stream.blobs[self.location] += data

    def remove(self) -> None:
        self._stream.blobs.pop(self.location, None)

    def close(self) -> None:
        pass


class StreamPartition:
    fault = ""
    log_bytes = 0

    def __init__(self, stream: Stream, number: int) -> None:
        self._stream = stream
        self.number = number

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_batches(self._stream.batches[self.number], STORED)

    @property
    def first_offset(self) -> int:
        return self._stream.firsts[self.number]

    @property
    def next_offset(self) -> int:
        return self.first_offset + int(self.table.num_rows)

    def check_range(self, topic: str, start: int, end: int) -> None:
        if not self.first_offset <= start <= end <= self.next_offset:
            raise UnknownTopic(
                f"{topic} partition {self.number} has offsets from {self.first_offset} up to "
                f"{self.next_offset}, not from {start} up to {end}"
            )

    def read(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        self.check_range("", start, end)
        wanted = self.table.slice(start - self.first_offset, end - start)
        yield from (wanted if columns is None else wanted.select(columns)).to_batches()

    def times(self) -> list[int]:
        return [each.value for each in self.table.column("ingest_time")]

    def offset_at(self, timestamp: int) -> int:
        return self.first_offset + sum(time < timestamp for time in self.times())

    def info(self) -> PartitionInfo:
        times = self.times()
        first, last = (times[0], times[-1]) if times else (None, None)
        return PartitionInfo(
            self.number, self.first_offset, self.next_offset, first, last, self.table.nbytes
        )


class StreamTopic:
    read_only = False

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = self.location = name
        self.stream = stream
        stream.claim += 1
        self._claim = stream.claim
        self.fault = ""
        self.partitions = [StreamPartition(stream, at) for at in range(len(stream.batches))]

    @property
    def history(self) -> History:
        return self.stream.history

    def write_history(self, history: History) -> None:
        self.stream.history = history

    def producers(self) -> dict[str, ProducerState]:
        return dict(self.stream.producers)

    def forget_producers(self, names: Iterable[str]) -> None:
        for name in names:
            self.stream.producers.pop(name, None)

    def append(self, group: Group) -> Appended:
        if self._claim != self.stream.claim:
            self.fault = "taken over"
            raise Fenced(self.fault)
        if self.stream.is_full:
            raise NothingStored("no room")
        time = max([group.clock, *(time for part in self.partitions for time in part.times())])
        offsets = {number: self.partitions[number].next_offset for number in group.partitions}
        try:
            batches = {
                number: make_batch(theirs.chunks, offsets[number], time)
                for number, theirs in group.partitions.items()
            }
        except Exception as error:
            raise UnencodableRecords(repr(error)) from error
        for number, batch in batches.items():
            self.stream.batches[number].append(batch)
        for theirs in group.partitions.values():
            for name, sequence in theirs.producers.items():
                state = ProducerState(sequence, time, theirs.instances.get(name, ""))
                self.stream.producers[name] = state
        if self.stream.loses_answers:
            self.fault = "no answer"
            raise OutcomeUnknown(self.fault)
        return Appended(offsets, time)

    def blob(self, name: str) -> StreamBlob:
        return StreamBlob(self.stream, name)

    def rotate(self, size: int, age: float) -> None:
        pass

    def roll(self, partition: int) -> int:
        return 0

    def expired(self, partition: int, retention: Retention) -> int:
        end = self.stream.firsts[partition]
        size = self.partitions[partition].info().size
        for batch in self.stream.batches[partition]:
            time = batch.column("ingest_time")[-1].value
            time = retention.noticed if time > retention.latest else time
            is_old = retention.stored_before is not None and time < retention.stored_before
            if not is_old and (retention.max_bytes is None or size <= retention.max_bytes):
                break
            end += batch.num_rows
            size -= batch.nbytes
        return end

    def drop_before(self, partition: int, offset: int) -> int:
        part = self.partitions[partition]
        kept = part.table.slice(max(offset - part.first_offset, 0))
        freed = int(part.table.nbytes - kept.nbytes)
        self.stream.batches[partition] = kept.to_batches()
        self.stream.firsts[partition] = max(offset, part.first_offset)
        return freed

    def close(self) -> None:
        pass


class ReplicatedStorage:
    location = "a replicated log"

    def __init__(self, streams: dict[str, Stream]) -> None:
        self._streams = streams

    def names(self) -> list[str]:
        return sorted(self._streams)

    def create(self, name: str, partitions: int, history: History) -> StreamTopic:
        self._streams[name] = Stream(history, [[] for _ in range(partitions)], [0] * partitions)
        return self.open(name)

    def open(self, name: str) -> StreamTopic:
        return StreamTopic(name, self._streams[name])

    def free_bytes(self) -> int:
        return 1 << 40

    def close(self) -> None:
        pass


class ReplicatedBackend(Backend):
    """A log that outlives the clients that open it."""

    crash_points = ("before", "after")

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}

    def open(self) -> Storage:
        return ReplicatedStorage(self._streams)

    def kill(self, storage: Storage, topic: TopicStorage) -> None:
        pass

    def die_in_append(self, topic: TopicStorage, group: Group, point: str) -> None:
        if point == "after":
            topic.append(group)

    def fail_append(self, topic: TopicStorage, group: Group) -> None:
        stream = self._streams[topic.name]
        stream.is_full = True
        try:
            topic.append(group)
        finally:
            stream.is_full = False

    def lose_answer(self, topic: TopicStorage, group: Group) -> None:
        stream = self._streams[topic.name]
        stream.loses_answers = True
        try:
            topic.append(group)
        finally:
            stream.loses_answers = False


class TestReplicatedStorage(StorageContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return ReplicatedBackend()


def test_a_store_runs_without_a_disk(tmp_path: Path) -> None:
    backend = ReplicatedBackend()
    store = Store(backend.open(), LIMITS, scratch=tmp_path)
    stored(store, records(1, 10))
    assert stored(store, records(6, 10)).skipped == 5
    advance(store.topics["t"], "reader", {0: 1})
    scope = WriteScope("job", 0, "0" * 32, 0)
    assert store.begin(store.topics["t"], scope)[0] is False
    store.end_step("t", "job", 0, "0" * 32)
    assert rolled(store) == 0
    store.close()
    store = Store(backend.open(), LIMITS, scratch=tmp_path)
    topic = store.topics["t"]
    assert sequences(topic) == list(range(1, 16))
    assert topic.readers.offsets == {"reader": {0: 1}}
    assert list(topic.jobs.names) == ["job"]
    assert stored(store, records(10, 10)).skipped == 6
    assert sequences(topic) == list(range(1, 20))
    store.close()
