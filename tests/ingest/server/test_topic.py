"""One topic: atomic groups, and each record stored once."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aqueduct.ingest.errors import CorruptFile, IngestError, RefusedRecords
from aqueduct.ingest.records import RecordColumns, make_batch
from aqueduct.ingest.server import topic as topics
from aqueduct.ingest.server.topic import split
from aqueduct.ingest.storage.base import Group, NothingStored, OutcomeUnknown, check_name
from aqueduct.ingest.storage.local import partition
from aqueduct.ingest.storage.local.manifest import NAME, read_manifest
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.topic_storage import LocalTopicStorage
from tests.ingest.storing import (
    Crash,
    advance,
    fill,
    killed,
    opened,
    parts_of,
    put,
    read_only_topic,
    records,
    rolled,
    rows_of,
    sequences,
    spread,
    stored,
    submit,
)

# Names


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../t", "a/b", "/a", "a\\b", ".hidden", "-a", "_a", "a" * 101, "a\0"),
        *("a\n", "\u00fc", "a b", "a:b", "a*", "\ud800", "\u0661"),
    ],
)
def test_a_name_that_could_escape_the_directory_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedRecords, match="cannot be the name of a topic; take up to 100"):
        check_name(name)
    with opened(tmp_path) as store:
        with pytest.raises(RefusedRecords, match="cannot be the name of a topic"):
            store.topic_to_write(name, 1)
        topic = store.topic_to_write("t", 1)
        with pytest.raises(RefusedRecords, match="cannot be the name of a producer"):
            store.register(topic, name)
        with pytest.raises(RefusedRecords, match="cannot be the name of a reader"):
            advance(topic, name, {0: 1})


@pytest.mark.parametrize("name", ["a", "0", "A.b-c_d", "a" * 100, "a..b"])
def test_a_plain_name_is_accepted(name: str) -> None:
    check_name(name)


# Duplicates and gaps


def test_duplicates_are_acknowledged_and_not_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert stored(store, spread(1, 10)).skipped == 0
        again = stored(store, spread(1, 10))
        assert (again.skipped, again.offsets) == (10, {})
        part = stored(store, spread(6, 10))
        assert part.skipped == 5
        assert sum(len(rows_of(each)) for each in store.topics["t"].partitions) == 15
    with opened(tmp_path) as store:
        assert stored(store, spread(1, 15)).skipped == 15
        assert stored(store, spread(15, 2)).skipped == 1
        rolled(store)
    with opened(tmp_path) as store:
        assert store.register(store.topics["t"], "p") == 16
        assert stored(store, spread(10, 8)).skipped == 7
        assert sequences(store.topics["t"]) == list(range(1, 18))


def test_the_offsets_in_an_answer_are_those_of_the_first_new_record(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", 2)
        first, second, third = submit(
            store,
            topic,
            ("p", records(1, 3, partition=0)),
            ("q", records(1, 2, partition=0)),
            ("p", records(2, 4, partition=0)),
        )
        assert (first.offsets, second.offsets, third.offsets) == ({0: 0}, {0: 3}, {0: 5})
        assert third.skipped == 2
        assert [row["producer_sequence"] for row in rows_of(topic.partitions[0])] == [
            *(1, 2, 3),
            *(1, 2),
            *(4, 5),
        ]


def test_a_gap_is_rejected_and_the_rest_of_the_group_is_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", 2)
        gap, after, other = submit(
            store, topic, ("p", records(2)), ("p", records(3)), ("q", spread(1, 4))
        )
        for fault in (gap.fault, after.fault):
            assert isinstance(fault, RefusedRecords)
            assert "came after 0: the records between were not sent" in str(fault)
        assert other.fault is None
        assert sequences(topic) == []
        assert sequences(topic, "q") == [1, 2, 3, 4]
        assert "came after 4" in str(put(store, records(6), producer="q").fault)


def test_an_empty_submission_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert stored(store, RecordColumns(1, [], [])).offsets == {}
        assert not list(tmp_path.rglob("*.wal"))


def test_an_invalid_timestamp_fails_only_its_own_submission(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", 2)
        for time in (2**64 - 1, 2**63, -(2**63), 253_402_300_800_000_000):
            bad, good = submit(
                store,
                topic,
                ("bad", RecordColumns(1, [b"x"], [time])),
                ("p", records(topic.producers.get("p", (0, 0))[0] + 1)),
            )
            assert "not within the years 1 to 9999" in str(bad.fault)
            assert good.fault is None
        assert sequences(topic) == [1, 2, 3, 4]


def test_records_go_to_the_given_partition_or_that_of_their_key(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", 4)
        stored(store, records(1, 3, partition=3, keys=[b"a", None, b"b"]))
        assert [row["key"] for row in rows_of(topic.partitions[3])] == [b"a", None, b"b"]
        stored(store, records(4, 2, keys=[b"device-1", b"device-2"], headers=[[("h", b"v")], []]))
        (row,) = rows_of(topic.partitions[1])
        assert (row["key"], row["headers"]) == (b"device-1", [{"name": "h", "value": b"v"}])


# A crash between the partitions of a group


def crash_in(number: int, what: str) -> Callable[[Partition], None]:
    """Make a step of one partition crash."""
    step = getattr(Partition, what)

    def stepping(part: Partition) -> None:
        if part.number == number:
            raise Crash
        step(part)

    return stepping


@pytest.mark.parametrize("is_rolled", [False, True])
@pytest.mark.parametrize("missing", [0, 1])
def test_an_incomplete_group_is_removed_from_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int, is_rolled: bool
) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        if is_rolled:
            part = parts_of(store.topics["t"])[missing]
            part.rotate()
            part.roll()
        wal = next(iter(tmp_path.rglob(f"part={1 - missing}/*.wal")))
        before = wal.stat().st_size
        monkeypatch.setattr(Partition, "write", crash_in(missing, "write"))
        if missing == 0:  # partition 1 is written first then
            reverse = reversed_parts(LocalTopicStorage.append)
            monkeypatch.setattr(LocalTopicStorage, "append", reverse)
        with pytest.raises(Crash):
            put(store, spread(21, 20))
        monkeypatch.undo()
        assert wal.stat().st_size > before
    with opened(tmp_path) as store:
        topic = store.topics["t"]
        assert wal.stat().st_size == before
        assert sequences(topic) == list(range(1, 21))
        assert store.register(topic, "p") == 20
        assert stored(store, spread(15, 26)).skipped == 6
        assert sequences(topic) == list(range(1, 41))
    with opened(tmp_path) as store:
        assert sequences(store.topics["t"]) == list(range(1, 41))


def reversed_parts(append: Callable[..., Any]) -> Callable[..., Any]:
    def appended(self: LocalTopicStorage, group: Group) -> Any:
        partitions = dict(sorted(group.partitions.items(), reverse=True))
        return append(self, Group(partitions, group.clock))

    return appended


def test_a_group_torn_in_one_partition_is_removed_from_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        stored(store, spread(21, 20), producer="p")
        submit(store, store.topics["t"], ("q", spread(1, 20)), ("p", spread(41, 5)))
    path = next(iter(tmp_path.rglob("part=1/*.wal")))
    fill(path, path.read_bytes()[:-1])
    killed(tmp_path)
    with opened(tmp_path) as store:
        topic = store.topics["t"]
        assert sequences(topic) == list(range(1, 41))
        assert sequences(topic, "q") == []
        assert (store.register(topic, "p"), store.register(topic, "q")) == (40, 0)


def test_a_crash_while_a_group_is_removed_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        topic = store.topic_to_write("t", None)
        submit(store, topic, ("p", spread(21, 20)))
    path = next(iter(tmp_path.rglob("part=1/*.wal")))
    fill(path, path.read_bytes()[:-1])
    killed(tmp_path)
    monkeypatch.setattr(Partition, "cut_last", crash_in(0, "cut_last"))
    with pytest.raises(Crash), opened(tmp_path):
        pass
    monkeypatch.undo()
    with opened(tmp_path) as store:
        assert sequences(store.topics["t"]) == list(range(1, 21))


def test_a_group_that_is_complete_in_logs_and_segments_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        part = parts_of(store.topics["t"])[1]
        part.rotate()
        part.roll()
    with opened(tmp_path) as store:
        assert sequences(store.topics["t"]) == list(range(1, 21))


# Disk errors


def failing(
    call: Callable[..., Any], code: int, first: int, count: int = 10**6
) -> Callable[..., Any]:
    """Return a system call that fails a number of times, from a given call on."""
    numbers = iter(range(10**6))

    def fails(*arguments: Any) -> Any:
        if first <= next(numbers) < first + count:
            raise OSError(code, os.strerror(code))
        return call(*arguments)

    return fails


@pytest.mark.parametrize(
    "failure", ["short then full", "second write", "first sync", "second sync"]
)
def test_a_full_disk_fails_the_group_and_the_next_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        topic = store.topics["t"]
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.wal")}
        write, sync = os.pwritev, os.fdatasync
        if failure == "short then full":

            def short(file: int, views: list[memoryview], position: int) -> int:
                return write(file, [views[0][:9]], position)

            monkeypatch.setattr(os, "pwritev", failing(short, errno.ENOSPC, 3))
        elif failure == "second write":
            monkeypatch.setattr(os, "pwritev", failing(write, errno.ENOSPC, 1))
        else:
            number = 0 if failure == "first sync" else 1
            monkeypatch.setattr(os, "fdatasync", failing(sync, errno.ENOSPC, number))
        fault = put(store, spread(21, 20)).fault
        monkeypatch.undo()
        assert type(fault) is NothingStored
        assert "topic t could not be written in" in str(fault)
        assert "nothing of these records was stored" in str(fault)
        assert "No space left on device" in str(fault)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*.wal")} == before
        assert sequences(topic) == list(range(1, 21))
        assert stored(store, spread(21, 20)).skipped == 0
        assert sequences(topic) == list(range(1, 41))
    with opened(tmp_path) as store:
        assert sequences(store.topics["t"]) == list(range(1, 41))


@pytest.mark.parametrize("what", ["pwritev", "fsync", "fdatasync"])
def test_a_full_disk_at_the_first_record_leaves_a_topic_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with opened(tmp_path) as store:
        store.topic_to_write("t", None)
        monkeypatch.setattr(os, what, failing(getattr(os, what), errno.ENOSPC, 0, 1))
        assert "No space left" in str(put(store, spread(1, 20)).fault)
        monkeypatch.undo()
        stored(store, spread(1, 20))
        rolled(store)
        assert sequences(store.topics["t"]) == list(range(1, 21))
    with opened(tmp_path) as store:
        assert sequences(store.topics["t"]) == list(range(1, 21))


@pytest.mark.parametrize("number", [0, 1])
def test_a_sync_that_fails_puts_the_topic_out_of_use_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        stored(store, records(1), "other")
        topic = store.topics["t"]
        monkeypatch.setattr(os, "fdatasync", failing(os.fdatasync, errno.EIO, number))
        fault = put(store, spread(21, 20)).fault
        monkeypatch.undo()
        assert isinstance(fault, OutcomeUnknown)
        assert "out of use until a restart of the server recovers it" in str(fault)
        assert "Input/output error" in str(fault)
        again = submit(store, topic, ("p", spread(21, 20)))[0].fault
        assert "topic t is out of use" in str(again)
        with pytest.raises(IngestError, match="topic t is out of use"):
            store.topic_to_write("t", None)
        assert all("could not be synced" in part.fault for part in topic.info().partitions)
        assert sequences(topic) == list(range(1, 21))
        stored(store, records(2), "other")
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", None)
        known = store.register(topic, "p")
        assert known in (20, 40)
        stored(store, spread(21, 20))
        assert sequences(topic) == list(range(1, 41))


def test_a_group_that_cannot_be_reverted_puts_the_topic_out_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        monkeypatch.setattr(os, "pwritev", failing(os.pwritev, errno.ENOSPC, 1))
        monkeypatch.setattr(os, "ftruncate", failing(os.ftruncate, errno.EIO, 0))
        assert "could not be cut back" in str(put(store, spread(21, 20)).fault)
        monkeypatch.undo()
        assert store.topics["t"].fault
    with opened(tmp_path) as store:
        stored(store, spread(21, 20))
        assert sequences(store.topics["t"]) == list(range(1, 41))


def test_an_unexpected_error_in_a_group_puts_the_topic_out_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Partition) -> None:
        raise RuntimeError("unforeseen")

    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        monkeypatch.setattr(Partition, "seal", broken)
        fault = put(store, spread(21, 20)).fault
        assert isinstance(fault, OutcomeUnknown)
        assert "unforeseen" in str(fault)
        monkeypatch.undo()
        with pytest.raises(IngestError, match="unknown whether the last group is stored"):
            put(store, spread(21, 20))
    with opened(tmp_path) as store:
        assert stored(store, spread(21, 20)).skipped == 20
        assert sequences(store.topics["t"]) == list(range(1, 41))


# Damage


def test_a_flipped_byte_in_the_description_of_a_topic_is_detected(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        advance(store.topics["t"], "r", {0: 5, 1: 3})
    path = tmp_path / "t" / "topic.json"
    good = path.read_bytes()
    for at in range(len(good)):
        fill(path, good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :])
        with pytest.raises(CorruptFile) as caught:
            read_only_topic(path.parent)
        assert caught.value.path == path
    fill(path, good)
    assert read_only_topic(path.parent).readers.offsets == {"r": {0: 5, 1: 3}}


def test_a_partition_whose_directory_is_missing_is_damage(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.topic_to_write("t", 2)
    (tmp_path / "t" / "part=1").rmdir()
    with pytest.raises(CorruptFile, match="the directory of a partition is missing"):
        LocalTopicStorage(tmp_path / "t")


def test_one_damaged_partition_rejects_writes_and_the_others_can_be_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        rolled(store)
    (tmp_path / "t" / "part=0" / NAME).write_bytes(b"{}")
    with opened(tmp_path) as store:
        topic = store.topics["t"]
        with pytest.raises(IngestError, match=r"manifest\.json, byte 0: not a manifest"):
            rows_of(topic.partitions[0])
        assert len(rows_of(topic.partitions[1])) > 0
        fault = submit(store, topic, ("p", spread(21, 1)))[0].fault
        assert "topic t is out of use" in str(fault)


# Producers and readers


def test_the_latest_state_of_a_producer_counts(tmp_path: Path) -> None:
    times = [1_000.0]
    with opened(tmp_path, clock=lambda: times[0]) as store:
        topic = store.topic_to_write("t", 2)
        stored(store, records(1, 100, partition=0))
        rolled(store)
        times[0] = 2_000.0
        topic.forget_producers(1_500 * 10**6)
        assert store.register(topic, "p") == 0
        stored(store, records(1, 3, partition=1))
    with opened(tmp_path, clock=lambda: times[0]) as store:
        topic = store.topics["t"]
        assert store.register(topic, "p") == 3
        stored(store, records(4, 1, partition=1))
        assert len(rows_of(topic.partitions[1])) == 4


def test_a_forgotten_producer_is_absent_from_all_partitions(tmp_path: Path) -> None:
    times = [1_000.0]
    with opened(tmp_path, clock=lambda: times[0]) as store:
        topic = store.topic_to_write("t", 2)
        stored(store, spread(1, 20), producer="old")
        rolled(store)
        times[0] = 2_000.0
        stored(store, spread(1, 20), producer="new")
        topic.forget_producers(1_500 * 10**6)
        rolled(store)
        for part in parts_of(topic):
            assert set(part.producers) == {"new"}
            assert set(read_manifest(part.directory).producers) == {"new"}
    with opened(tmp_path) as store:
        assert set(store.topics["t"].producers) == {"new"}


def test_offsets_of_named_readers_are_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 40))
        topic = store.topics["t"]
        advance(topic, "r", {0: 5})
        advance(topic, "r", {0: 3, 1: 1})
        advance(topic, "s", {0: 1})
        advance(topic, "gone", {1: 1})
        advance(topic, "gone", {})
        advance(topic, "never-there", {})
        with pytest.raises(RefusedRecords, match="t has no partition 2"):
            advance(topic, "r", {2: 1})
        end = topic.partitions[0].next_offset
        for offset in (end + 1, -1):
            with pytest.raises(
                RefusedRecords, match=f"invalid offset .*: offsets go from 0 to {end}"
            ):
                advance(topic, "r", {0: offset})
        advance(topic, "s", {0: end})
        assert topic.info().readers == {"r": {0: 3, 1: 1}, "s": {0: end}}
    with opened(tmp_path) as store:
        assert store.topics["t"].readers.offsets == {"r": {0: 3, 1: 1}, "s": {0: end}}


def test_there_is_a_limit_to_named_readers(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", 2)
        advance(topic, "a", {0: 0}, 2)
        advance(topic, "b", {0: 0}, 2)
        advance(topic, "a", {1: 0}, 2)
        with pytest.raises(RefusedRecords, match="topic t has 2 readers already"):
            advance(topic, "c", {0: 0}, 2)
        advance(topic, "b", {}, 2)
        advance(topic, "c", {0: 0}, 2)


def test_a_reader_keeps_its_offsets_if_an_advance_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        topic = store.topics["t"]
        advance(topic, "a", {0: 1})
        monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.ENOSPC, 0))
        with pytest.raises(IngestError, match=r"readers\.json could not be written"):
            advance(topic, "a", {0: 2})
        monkeypatch.undo()
        assert topic.readers.offsets == {"a": {0: 1}}


def test_a_read_only_topic_can_leave_out_the_last_group(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        stored(store, spread(21, 20))
        looking = read_only_topic(tmp_path / "t")
        assert isinstance(looking.storage, LocalTopicStorage)
        looking.storage.leave_last_group()
        assert sequences(looking) == list(range(1, 21))
        assert sequences(store.topics["t"]) == list(range(1, 41))


@pytest.mark.parametrize("guilty", range(4))
@pytest.mark.parametrize("where", ["split", "stage"])
def test_an_error_in_one_submission_fails_it_and_its_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guilty: int, where: str
) -> None:
    """Wherever an unexpected error occurs, the rest of the group is stored."""
    names = ["a", "b", "a", "c"]
    firsts = [1, 1, 3, 1]
    poison = f"value {firsts[guilty]}".encode() + names[guilty].encode()

    def failing(call: Any) -> Any:
        def checked(*arguments: Any, **more: Any) -> Any:
            found = [each.columns for each in arguments[0]] if where == "stage" else [arguments[1]]
            if any(poison in each.values for each in found):
                raise OverflowError("int too big to convert")
            return call(*arguments, **more)

        return checked

    def made(name: str, first: int) -> RecordColumns:
        values = [f"value {number}{name}".encode() for number in (first, first + 1)]
        return RecordColumns(first, values, [0, 0], partitions=[0, 1])

    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", None)
        if where == "stage":
            monkeypatch.setattr(partition, "make_batch", failing(make_batch))
            monkeypatch.setattr(topics, "make_batch", failing(make_batch))
        else:
            monkeypatch.setattr(topics, "split", failing(split))
        wanted = [(name, made(name, first)) for name, first in zip(names, firsts, strict=True)]
        results = submit(store, topic, *wanted)
        failed = [at for at, each in enumerate(results) if each.fault is not None]
        assert failed == ([0, 2] if guilty == 0 else [guilty])
        assert not any(results[at].offsets for at in failed)
        good = [(name, at) for at, name in enumerate(names) if at not in failed]
        rows = [row for part in topic.partitions for row in rows_of(part)]
        assert len(rows) == 2 * len(good)
        for name, at in good:
            for number, offset in results[at].offsets.items():
                assert rows_of(topic.partitions[number])[offset]["producer_id"] == name
        monkeypatch.undo()
        again = submit(store, topic, *(wanted[at] for at in failed))
        assert not any(each.fault for each in again)
    with opened(tmp_path) as store:
        assert len([row for part in store.topics["t"].partitions for row in rows_of(part)]) == 8
