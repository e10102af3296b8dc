"""The contract of the storage seam: a suite that every implementation of `Storage` passes.

Subclass `StorageContract` in a test module and give it a fixture `backend`, which opens, kills and
breaks the implementation (see `Backend`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from aqueduct.ingest.errors import UnknownTopic
from aqueduct.ingest.identity import History
from aqueduct.ingest.records import STORED, Chunk, RecordColumns
from aqueduct.ingest.storage.base import (
    Appended,
    Fenced,
    Group,
    NothingStored,
    OutcomeUnknown,
    PartitionRecords,
    PartitionStorage,
    ProducerState,
    Retention,
    Storage,
    TopicStorage,
    UnencodableRecords,
)

HISTORY = History("id").begun({0: 0, 1: 0, 2: 0}, 10)
SECOND = 1_000_000


class Backend(ABC):
    """One data set, and the faults of the processes that use it."""

    crash_points: Sequence[str]
    """Where in `TopicStorage.append` a process can die."""

    @abstractmethod
    def open(self) -> Storage:
        """Open the data as another process does."""

    @abstractmethod
    def kill(self, storage: Storage, topic: TopicStorage) -> None:
        """End the process that has a storage and a topic open, which then closes nothing."""

    @abstractmethod
    def die_in_append(self, topic: TopicStorage, group: Group, point: str) -> None:
        """Begin to append a group, and get stuck there; `kill` follows."""

    @abstractmethod
    def fail_append(self, topic: TopicStorage, group: Group) -> None:
        """Append a group while the medium is full, which raises."""

    @abstractmethod
    def lose_answer(self, topic: TopicStorage, group: Group) -> None:
        """Append a group such that its outcome is unknown, which raises."""


def group(clock: int, **partitions: list[str]) -> Group:
    """Return a group of producer p: ``p0=["a", "b"]`` are two values for partition 0."""
    return Group(
        {
            int(name[1:]): PartitionRecords([chunk(values)], {"p": len(values)}, {"p": "instance"})
            for name, values in partitions.items()
        },
        clock,
    )


def chunk(values: list[Any]) -> Chunk:
    encoded = [each.encode() if isinstance(each, str) else each for each in values]
    columns = RecordColumns(1, encoded, [7] * len(values))
    return Chunk("p", columns, columns.sequences)


def rows(part: PartitionStorage) -> list[dict[str, Any]]:
    """Return all rows of a partition; check dense offsets and non-decreasing times."""
    first, end = part.first_offset, part.next_offset
    part.check_range("t", first, end)
    batches = list(part.read(first, end))
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, STORED).to_pylist()
    assert [row["offset"] for row in found] == list(range(first, end))
    times = [row["ingest_time"] for row in found]
    assert times == sorted(times)
    return found


def values(topic: TopicStorage) -> list[list[str]]:
    """Return the values of each partition."""
    return [[row["value"].decode() for row in rows(part)] for part in topic.partitions]


def roll(topic: TopicStorage) -> None:
    """Roll everything into its long-term form."""
    topic.rotate(0, 0.0)
    for part in topic.partitions:
        topic.roll(part.number)


def created(storage: Storage) -> TopicStorage:
    return storage.create("t", 3, HISTORY)


class StorageContract:
    """What a topic may rely on."""

    def test_a_new_topic_is_empty_and_listed(self, backend: Backend) -> None:
        storage = backend.open()
        assert storage.names() == []
        topic = created(storage)
        assert storage.names() == ["t"]
        assert (topic.name, topic.fault, topic.read_only) == ("t", "", False)
        assert topic.history == HISTORY
        assert topic.producers() == {}
        assert [part.number for part in topic.partitions] == [0, 1, 2]
        assert values(topic) == [[], [], []]
        for part in topic.partitions:
            info = part.info()
            assert (info.first_offset, info.next_offset, info.first_time) == (0, 0, None)
            assert part.offset_at(0) == 0
        assert storage.free_bytes() > 0
        assert storage.location
        assert topic.location
        topic.close()
        storage.close()

    def test_a_group_gets_dense_offsets_in_each_of_its_partitions(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        assert topic.append(group(SECOND, p0=["a", "b"], p2=["c"])) == Appended(
            {0: 0, 2: 0}, SECOND
        )
        assert topic.append(group(2 * SECOND, p1=["d"], p0=["e"])) == Appended(
            {0: 2, 1: 0}, 2 * SECOND
        )
        assert values(topic) == [["a", "b", "e"], ["d"], ["c"]]
        row = rows(topic.partitions[0])[1]
        assert (row["producer_id"], row["producer_sequence"]) == ("p", 2)
        assert row["ingest_time"].timestamp() == 1
        info = topic.partitions[0].info()
        assert (info.next_offset, info.first_time, info.last_time) == (3, SECOND, 2 * SECOND)
        topic.close()
        storage.close()

    def test_chunks_of_a_partition_are_stored_one_after_the_other(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        records = PartitionRecords([chunk(["a"]), chunk(["b", "c"])], {"p": 2}, {})
        topic.append(Group({1: records}, SECOND))
        assert values(topic) == [[], ["a", "b", "c"], []]
        topic.close()
        storage.close()

    def test_times_repeat_while_the_clock_is_set_back(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        clocks = (5 * SECOND, 3 * SECOND, 6 * SECOND)
        times = [topic.append(group(clock, p0=["a"])).time for clock in clocks]
        assert times == [5 * SECOND, 5 * SECOND, 6 * SECOND]
        assert topic.append(group(SECOND, p1=["a"])).time == 6 * SECOND
        topic.close()
        topic = storage.open("t")
        assert topic.append(group(SECOND, p2=["a"])).time == 6 * SECOND
        topic.close()
        storage.close()

    @pytest.mark.parametrize("is_rolled", [False, True])
    def test_any_range_can_be_read(self, backend: Backend, is_rolled: bool) -> None:
        storage = backend.open()
        topic = created(storage)
        for clock in range(1, 4):
            topic.append(group(clock, p0=[f"{clock}a", f"{clock}b"]))
        if is_rolled:
            roll(topic)
            topic.append(group(4, p0=["4a"]))
        part = topic.partitions[0]
        everything = values(topic)[0]
        for start in range(len(everything) + 1):
            for end in range(start, len(everything) + 1):
                part.check_range("t", start, end)
                batches = list(part.read(start, end, ["value"]))
                found = [each.as_py() for batch in batches for each in batch.column("value")]
                assert [each.decode() for each in found] == everything[start:end]
                assert all(batch.schema.names == ["value"] for batch in batches)
        for start, end in ((0, len(everything) + 1), (-1, 1), (3, 2)):
            with pytest.raises(UnknownTopic, match="has offsets from 0 up to"):
                part.check_range("t", start, end)
        topic.close()
        storage.close()

    @pytest.mark.parametrize("is_rolled", [False, True])
    def test_the_offset_at_a_time_is_the_first_stored_then_or_later(
        self, backend: Backend, is_rolled: bool
    ) -> None:
        storage = backend.open()
        topic = created(storage)
        for number in range(1, 4):
            topic.append(group(number * SECOND, p0=["a", "b"]))
        if is_rolled:
            roll(topic)
        part = topic.partitions[0]
        wanted = {0: 0, SECOND: 0, SECOND + 1: 2, 2 * SECOND: 2, 3 * SECOND: 4, 3 * SECOND + 1: 6}
        assert {time: part.offset_at(time) for time in wanted} == wanted
        topic.close()
        storage.close()

    @pytest.mark.parametrize("how", ["closed", "killed"])
    @pytest.mark.parametrize("is_rolled", [False, True])
    def test_all_state_survives_a_restart(
        self, backend: Backend, how: str, is_rolled: bool
    ) -> None:
        storage = backend.open()
        topic = created(storage)
        topic.append(group(SECOND, p0=["a"], p1=["b"]))
        later = HISTORY.begun({0: 1, 1: 1, 2: 0}, 10)
        topic.write_history(later)
        if is_rolled:
            roll(topic)
        topic.append(group(2 * SECOND, p0=["c", "d"]))
        if how == "closed":
            topic.close()
            storage.close()
        else:
            backend.kill(storage, topic)
        storage = backend.open()
        topic = storage.open("t")
        assert topic.fault == ""
        assert values(topic) == [["a", "c", "d"], ["b"], []]
        assert topic.history == later
        assert topic.producers() == {"p": ProducerState(2, 2 * SECOND, "instance")}
        assert topic.append(group(3 * SECOND, p1=["e"])).offsets == {1: 1}
        topic.close()
        storage.close()

    def test_a_producer_that_was_forgotten_is_absent(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        for name in ("p", "q"):
            records = PartitionRecords([chunk(["a"])], {name: 1}, {})
            topic.append(Group({0: records}, SECOND))
        roll(topic)
        topic.forget_producers(["p", "unknown"])
        roll(topic)
        assert set(topic.producers()) == {"q"}
        topic.close()
        topic = storage.open("t")
        assert topic.producers() == {"q": ProducerState(1, SECOND)}
        topic.close()
        storage.close()

    def test_a_death_in_an_append_leaves_the_whole_group_or_nothing(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        expected = [["a"], ["b"], ["c"]]
        topic.append(group(SECOND, p0=["a"], p1=["b"], p2=["c"]))
        for point in backend.crash_points:
            before = topic.producers()
            backend.die_in_append(topic, group(2 * SECOND, p0=["x"], p1=["y"], p2=["z"]), point)
            backend.kill(storage, topic)
            storage = backend.open()
            topic = storage.open("t")
            assert topic.fault == ""
            whole = [[*known, new] for known, new in zip(expected, "xyz", strict=True)]
            found = values(topic)
            assert found in (expected, whole), point
            assert (topic.producers() == before) or found == whole, point
            expected = found
            ends = {part.number: part.next_offset for part in topic.partitions}
            assert topic.append(group(2 * SECOND, p0=["d"], p2=["e"])).offsets == {
                0: ends[0],
                2: ends[2],
            }
            expected = [[*expected[0], "d"], expected[1], [*expected[2], "e"]]
            assert values(topic) == expected
        topic.close()
        storage.close()

    def test_an_append_without_room_stores_nothing_and_the_next_succeeds(
        self, backend: Backend
    ) -> None:
        storage = backend.open()
        topic = created(storage)
        topic.append(group(SECOND, p0=["a"], p1=["b"]))
        with pytest.raises(NothingStored):
            backend.fail_append(topic, group(SECOND, p0=["x"], p1=["y"]))
        assert topic.fault == ""
        assert values(topic) == [["a"], ["b"], []]
        assert topic.append(group(SECOND, p1=["c"])).offsets == {1: 1}
        topic.close()
        topic = storage.open("t")
        assert values(topic) == [["a"], ["b", "c"], []]
        topic.close()
        storage.close()

    def test_records_that_cannot_be_encoded_are_distinguished(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        bad = PartitionRecords([chunk([object()])], {"p": 1}, {})
        good = PartitionRecords([chunk(["a"])], {"p": 1}, {})
        with pytest.raises(UnencodableRecords):
            topic.append(Group({0: good, 1: bad}, SECOND))
        assert topic.fault == ""
        assert values(topic) == [[], [], []]
        assert topic.append(Group({0: good}, SECOND)).offsets == {0: 0}
        topic.close()
        storage.close()

    def test_after_an_unknown_outcome_only_a_restart_tells(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        topic.append(group(SECOND, p0=["a"], p1=["b"]))
        with pytest.raises(OutcomeUnknown):
            backend.lose_answer(topic, group(SECOND, p0=["x"], p1=["y"]))
        assert topic.fault
        topic.close()
        storage.close()
        storage = backend.open()
        topic = storage.open("t")
        assert topic.fault == ""
        assert values(topic) in ([["a"], ["b"], []], [["a", "x"], ["b", "y"], []])
        topic.append(group(SECOND, p0=["c"]))
        assert values(topic)[0][-1] == "c"
        topic.close()
        storage.close()

    def test_only_one_of_two_processes_can_append(self, backend: Backend) -> None:
        """The second is fenced when it opens, or takes over and the first is fenced."""
        storage = backend.open()
        topic = created(storage)
        topic.append(group(SECOND, p0=["a"]))
        try:
            other = backend.open()
            theirs = other.open("t")
        except Fenced:
            topic.append(group(SECOND, p0=["b"]))
            assert values(topic)[0] == ["a", "b"]
        else:
            theirs.append(group(SECOND, p0=["b"]))
            with pytest.raises(Fenced):
                topic.append(group(SECOND, p0=["c"]))
            assert topic.fault
            assert values(theirs)[0] == ["a", "b"]
            theirs.close()
            other.close()
        topic.close()
        storage.close()

    def test_blobs_are_replaced_extended_and_removed(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        one, two = topic.blob("one.json"), topic.blob("two.log")
        assert one.location != two.location
        assert one.read() is two.read() is None
        one.write(b"first")
        one.write(b"second")
        two.write(b"lines:")
        for line in (b"1", b"2"):
            two.append(line)
        assert (one.read(), two.read()) == (b"second", b"lines:12")
        two.close()
        two.append(b"3")
        one.remove()
        one.remove()
        backend.kill(storage, topic)
        storage = backend.open()
        topic = storage.open("t")
        assert topic.blob("one.json").read() is None
        two = topic.blob("two.log")
        assert two.read() == b"lines:123"
        two.write(b"new")
        two.append(b"er")
        two.close()
        assert topic.blob("two.log").read() == b"newer"
        topic.close()
        storage.close()

    def test_rows_below_an_offset_are_dropped_and_offsets_stay(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        for number in range(4):
            topic.append(group(SECOND, p0=[f"{number}"], p1=["other"]))
            roll(topic)
        part = topic.partitions[0]
        assert topic.drop_before(0, 0) == 0
        assert topic.drop_before(0, 2) > 0
        assert part.first_offset == 2
        assert values(topic)[:2] == [["2", "3"], ["other"] * 4]
        with pytest.raises(UnknownTopic):
            part.check_range("t", 1, 4)
        with pytest.raises(UnknownTopic):
            list(part.read(1, 4))
        topic.close()
        topic = storage.open("t")
        assert topic.partitions[0].first_offset == 2
        assert topic.producers()["p"].sequence == 1
        topic.drop_before(0, 4)
        assert topic.append(group(SECOND, p0=["4"])).offsets == {0: 4}
        assert values(topic)[0] == ["4"]
        topic.close()
        storage.close()

    def test_rows_expire_by_age_and_by_size(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        for number in range(1, 5):
            topic.append(group(number * SECOND, p0=["a" * 100]))
            roll(topic)

        def expired(stored_before: int | None = None, max_bytes: int | None = None) -> int:
            latest = 100 * SECOND
            return topic.expired(0, Retention(stored_before, max_bytes, latest, latest))

        assert expired() == 0
        assert [expired(number * SECOND) for number in range(1, 6)] == [0, 1, 2, 3, 4]
        size = topic.partitions[0].info().size
        assert expired(max_bytes=size) == 0
        assert expired(max_bytes=size - 1) == 1
        assert expired(max_bytes=0) == 4
        # A row that a wrong clock stored in the future expires by when the clock was noticed.
        wrong = Retention(3 * SECOND, None, latest=SECOND // 2, noticed=2 * SECOND)
        assert topic.expired(0, wrong) == 4
        topic.close()
        storage.close()

    def test_rolled_rows_read_the_same(self, backend: Backend) -> None:
        storage = backend.open()
        topic = created(storage)
        topic.append(group(SECOND, p0=["a", "b"], p1=["c"]))
        before = [rows(part) for part in topic.partitions]
        topic.rotate(1 << 40, float("inf"))
        assert sum(topic.roll(part.number) for part in topic.partitions) == 0
        roll(topic)
        assert [rows(part) for part in topic.partitions] == before
        assert [part.log_bytes for part in topic.partitions] == [0, 0, 0]
        assert topic.append(group(SECOND, p0=["d"])).offsets == {0: 2}
        topic.close()
        storage.close()
