"""All topics of a server: limits, disk space, time, retention, and isolation of faults."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aqueduct.ingest.errors import CorruptFile, DiskLow, IngestError, RefusedRecords, UnknownTopic
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission
from aqueduct.ingest.storage.base import Fenced
from aqueduct.ingest.storage.local import files, partition, segments
from aqueduct.ingest.storage.local.lock import LOCK
from aqueduct.ingest.storage.local.manifest import NAME
from tests.ingest.storing import (
    LIMITS,
    Crash,
    advance,
    crash,
    fill,
    open_store,
    opened,
    parts_of,
    put,
    records,
    retain,
    rolled,
    rows_of,
    sequences,
    spread,
    stored,
    submit,
)

# The directory


def test_a_second_server_on_a_directory_is_fenced(tmp_path: Path) -> None:
    taken = f"another server has {tmp_path}; a directory is for one"
    with opened(tmp_path), pytest.raises(Fenced, match=taken):
        open_store(tmp_path)
    with opened(tmp_path):
        pass


def test_an_unwritable_directory_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(IngestError, match=f"cannot store anything in {path}: .*; give a dir"):
            open_store(path)

    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(IngestError, match=f"cannot store anything in {tmp_path}: Read-only"):
        open_store(tmp_path)


def test_entries_that_are_not_topics_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "a file").touch()
    with opened(tmp_path) as store:
        assert (store.topics, store.faults) == ({}, {})
    assert {path.name for path in tmp_path.iterdir()} == {"lost+found", "a file", LOCK}
    assert "lost+found is not a topic, and is left alone" in caplog.text


@pytest.mark.parametrize("step", ["mkdir", "fsync", "replace"])
def test_a_topic_whose_creation_crashed_can_be_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with opened(tmp_path) as store:
        if step == "mkdir":
            (tmp_path / "t").mkdir()
        else:
            monkeypatch.setattr(os, step, crash)
            with pytest.raises(Crash):
                store.topic_to_write("t", 3)
            monkeypatch.undo()
    with opened(tmp_path) as store:
        assert (store.topics, store.faults) == ({}, {})
        assert len(store.topic_to_write("t", 2).partitions) == 2
        stored(store, spread(1, 5))
    with opened(tmp_path) as store:
        assert sequences(store.topics["t"]) == [1, 2, 3, 4, 5]


def test_a_topic_that_cannot_be_created_is_an_error_that_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as store:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(IngestError, match=f"topic t could not be made in {tmp_path}: No space"):
            store.topic_to_write("t", None)
        monkeypatch.undo()
        stored(store, records(1))


def test_a_missing_directory_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: object) -> None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    with opened(tmp_path) as store:
        stored(store, records(1))
        monkeypatch.setattr(os, "statvfs", gone)
        assert f"{tmp_path} is not there: No such file" in str(put(store, records(2)).fault)


# Faults of one topic


@pytest.mark.parametrize("name", ["topic.json", f"part=0/{NAME}", "log", "segment"])
def test_damage_to_one_topic_leaves_the_others_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with opened(tmp_path) as store:
        for topic in ("bad", "good"):
            stored(store, spread(1, 40), topic)
        rolled(store)
        for topic in ("bad", "good"):
            stored(store, spread(41, 20), topic)
            stored(store, spread(61, 20), topic)
            advance(store.topics[topic], "r", {0: 1})
    directory = tmp_path / "bad"
    wanted = {"log": "part=0/*.wal", "segment": "part=0/*.parquet"}.get(name, name)
    (path,) = directory.glob(wanted)
    data = path.read_bytes()
    fill(path, data[:20] + bytes((data[20] ^ 4,)) + data[21:])
    with opened(tmp_path) as store:
        assert sequences(store.topics["good"]) == list(range(1, 81))
        stored(store, spread(81, 1), "good")
        rolled(store)
        if name == "segment":  # found when it is read
            with pytest.raises(CorruptFile, match=str(path)):
                rows_of(store.topics["bad"].partitions[0])
            return
        assert f"{path}, byte 0" in caplog.text
        with pytest.raises(IngestError, match=f"topic bad is out of use: .*{path}, byte 0"):
            store.topic_to_write("bad", None)
        if name.endswith(".json") and "part" not in name:
            with pytest.raises(IngestError, match="topic bad is out of use"):
                store.topic_to_read("bad")
        else:
            with pytest.raises(IngestError, match="bad partition 0 is out of use"):
                store.topic_to_read("bad").partitions[0].check_range("bad", 0, 1)


def test_damage_found_by_a_roll_stops_only_its_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20), "bad")
        stored(store, spread(1, 20), "good")
        path = next(iter((tmp_path / "bad").rglob("part=0/*.wal")))
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes((last[0] ^ 1,)))
        assert rolled(store) == 3
        assert path.exists()
        assert f"{path}, byte 0" in store.topics["bad"].fault
        assert f"{path}, byte 0" in caplog.text
        assert "out of use" in str(
            submit(store, store.topics["bad"], ("p", spread(21, 1)))[0].fault
        )
        stored(store, spread(21, 20), "good")


def test_a_roll_on_a_full_disk_continues_with_the_next_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = segments.write_segment

    def full(path: Path, batches: object) -> tuple[int, int]:
        if "part=0" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, batches)  # type: ignore[arg-type]

    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        monkeypatch.setattr(partition, "write_segment", full)
        assert rolled(store) == 1
        assert rolled(store) == 0
        assert caplog.text.count("is not a segment yet") == 1
        monkeypatch.undo()
        assert store.roll() == 1
        assert sequences(store.topics["t"]) == list(range(1, 21))


# Limits


def test_each_limit_is_named_in_its_error(tmp_path: Path) -> None:
    limits = replace(LIMITS, max_topics=2, max_partitions=8, max_producers=2)
    with opened(tmp_path, limits) as store:
        topic = store.topic_to_write("a", 3)
        assert store.topic_to_write("a", None) is store.topic_to_write("a", 3) is topic
        with pytest.raises(
            RefusedRecords, match="topic a has 3 partitions, not 4; the number cannot be"
        ):
            store.topic_to_write("a", 4)
        for count in (0, -1, 9):
            with pytest.raises(RefusedRecords, match=f"from 1 to 8 partitions, not {count}"):
                store.topic_to_write("b", count)
        assert len(store.topic_to_write("b", None).partitions) == 2
        with pytest.raises(RefusedRecords, match=r"there are 2 topics already \(max_topics\)"):
            store.topic_to_write("c", None)
        for producer in ("p", "q"):
            submit(store, topic, (producer, records(1)))
        with pytest.raises(RefusedRecords, match=r"remembers 2 producers already \(max_producers"):
            store.register(topic, "r")
        assert store.register(topic, "p") == 1


def test_an_expired_producer_is_forgotten_to_make_room(tmp_path: Path) -> None:
    times = [1_000.0]
    limits = replace(LIMITS, max_producers=2, producer_memory=100)
    with opened(tmp_path, limits, lambda: times[0]) as store:
        topic = store.topic_to_write("t", 1)
        for producer in ("old", "new"):
            assert store.register(topic, producer) == 0
            submit(store, topic, (producer, records(1, 3)))
            times[0] += 90
        assert store.register(topic, "next") == 0
        assert set(topic.producers) == {"new", "next"}
        rolled(store)
    with opened(tmp_path, limits, lambda: times[0]) as store:
        topic = store.topics["t"]
        assert set(topic.producers) == {"new"}
        assert store.register(topic, "old") == 0


def test_producers_without_records_are_forgotten_to_make_room(tmp_path: Path) -> None:
    with opened(tmp_path, replace(LIMITS, max_producers=3)) as store:
        topic = store.topic_to_write("t", 1)
        submit(store, topic, ("kept", records(1)))
        for number in range(50):
            assert store.register(topic, f"idle-{number}") == 0
            assert len(topic.producers) <= 3
        assert store.register(topic, "kept") == 1


def test_low_disk_space_rejects_writes_and_serves_reads(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, spread(1, 20))
        store.limits = replace(LIMITS, low_water=10**18)
        fault = put(store, spread(21, 20)).fault
        assert isinstance(fault, DiskLow)
        assert f"{tmp_path} has " in str(fault)
        assert "less than 1,000,000,000,000,000,000 (low_water)" in str(fault)
        with pytest.raises(DiskLow):
            store.topic_to_write("another", None)
        assert sequences(store.topic_to_read("t")) == list(range(1, 21))
        store.limits = LIMITS
        stored(store, spread(21, 20))


FULL = """
import resource, sys
from pathlib import Path
from tests.ingest.storing import opened, put, rolled, sequences, spread, stored

with opened(Path(sys.argv[1])) as store:
    stored(store, spread(1, 100))
    size = max(path.stat().st_size for path in Path(sys.argv[1]).rglob("*.wal"))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 700, hard))
    fault = put(store, spread(101, 100)).fault
    assert "nothing of these records was stored: [Errno 27]" in str(fault), fault
    assert sequences(store.topics["t"]) == list(range(1, 101))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    stored(store, spread(101, 100))
with opened(Path(sys.argv[1])) as store:
    assert sequences(store.topics["t"]) == list(range(1, 201))
"""


def test_a_write_that_exceeds_a_file_size_limit_is_reverted(
    tmp_path: Path,
) -> None:
    run = [sys.executable, "-c", FULL, str(tmp_path)]
    paths = os.pathsep.join(path for path in sys.path if path) + os.pathsep + os.getcwd()
    subprocess.run(run, check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=60)


def test_an_unknown_topic_is_rejected_with_the_existing_ones(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(UnknownTopic, match="there is no topic 'a'; topics: there are none"):
            store.topic_to_read("a")
        store.topic_to_write("b", None)
        with pytest.raises(UnknownTopic, match="there is no topic 'a'; topics: b"):
            store.topic_to_read("a")


# Time


def test_times_do_not_decrease_when_the_clock_jumps_back(tmp_path: Path) -> None:
    times = [2_000.0]
    for is_rolled in (False, True):
        with opened(tmp_path, clock=lambda: times[0]) as store:
            known = store.topics["t"].producers["p"][0] if "t" in store.topics else 0
            for at, now in enumerate((2_000.0, 1_000.0, 2_500.0 + is_rolled, 0.0)):
                times[0] = now
                stored(store, spread(known + 1 + at * 10, 10))
            if is_rolled:
                rolled(store)
    with opened(tmp_path, clock=lambda: 0.0) as store:
        stored(store, spread(81, 10))
        for part in store.topics["t"].partitions:
            row = rows_of(part)[-1]  # which checks that the times of all rows do not decrease
            assert row["ingest_time"].timestamp() == 2_501.0


def test_logs_become_segments_by_size_and_by_age(tmp_path: Path) -> None:
    with opened(tmp_path, replace(LIMITS, roll_size=1, roll_age=10_000)) as store:
        stored(store, records(1, partition=0))
        assert store.roll() == 1
    with opened(tmp_path, replace(LIMITS, roll_age=10_000)) as store:
        stored(store, records(2, partition=0))
        store.rotate_old()
        assert store.roll() == 0
        store.limits = replace(LIMITS, roll_age=0)
        store.rotate_old()
        assert store.roll() == 1
        assert sequences(store.topics["t"]) == [1, 2]


# Retention


def three_segments(store: Store, times: list[float]) -> partition.Partition:
    for number in range(3):
        times[0] = 1_000.0 + number
        stored(store, records(1 + number * 10, 10, partition=0))
        rolled(store)
    stored(store, records(31, 10, partition=0))
    return parts_of(store.topics["t"])[0]


def test_retention_by_age_removes_segments_and_keeps_logs(tmp_path: Path) -> None:
    times = [0.0]
    with opened(tmp_path, replace(LIMITS, retention_age=50), lambda: times[0]) as store:
        part = three_segments(store, times)
        assert retain(store) == 0
        times[0] = 1_051.5
        size = sum(segment.size for segment in part.manifest.segments[:2])
        assert retain(store) == size
        assert part.manifest.first == 20
        times[0] = 10**6
        assert retain(store) > 0
        assert retain(store) == 0
        assert [row["producer_sequence"] for row in rows_of(part)] == list(range(31, 41))
        assert not list(tmp_path.rglob("*.parquet"))
    with opened(tmp_path, replace(LIMITS, retention_age=50), lambda: times[0]) as store:
        assert len(rows_of(store.topics["t"].partitions[0])) == 10
        assert store.register(store.topics["t"], "p") == 40


def test_retention_by_size_removes_the_oldest_segments(tmp_path: Path) -> None:
    times = [0.0]
    with opened(tmp_path, clock=lambda: times[0]) as store:
        part = three_segments(store, times)
        assert retain(store) == 0
        sizes = [segment.size for segment in part.manifest.segments]
        store.limits = replace(LIMITS, retention_size=sum(sizes) - 1)
        assert retain(store) == sizes[0]
        store.limits = replace(LIMITS, retention_size=1)
        assert retain(store) == sizes[1] + sizes[2]
        assert part.manifest.first == 30


def test_retention_keeps_what_a_named_reader_has_not_read_unless_configured(
    tmp_path: Path,
) -> None:
    times = [0.0]
    limits = replace(LIMITS, retention_age=1, retention_size=1)
    with opened(tmp_path, clock=lambda: times[0]) as store:
        part = three_segments(store, times)
        store.limits = limits
        times[0] = 10**6
        topic = store.topics["t"]
        advance(topic, "fast", {0: part.next_offset})
        advance(topic, "slow", {1: 0})
        assert retain(store) == 0
        advance(topic, "slow", {0: 19})
        retain(store)
        assert part.manifest.first == 10
        store.limits = replace(limits, retention_past_readers=True)
        retain(store)
        assert part.manifest.first == 30


def test_a_crash_in_retention_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [0.0]
    limits = replace(LIMITS, retention_age=1)
    with opened(tmp_path, clock=lambda: times[0]) as store:
        three_segments(store, times)
        store.limits = limits
        times[0] = 10**6
        monkeypatch.setattr(partition, "remove_files", crash)
        with pytest.raises(Crash):
            retain(store)
        monkeypatch.undo()
        assert len(list(tmp_path.rglob("*.parquet"))) == 3
    with opened(tmp_path, limits, lambda: times[0]) as store:
        part = store.topics["t"].partitions[0]
        assert part.fault == ""
        assert not list(tmp_path.rglob("*.parquet"))
        assert (part.first_offset, len(rows_of(part))) == (30, 10)


# Many at once


def test_readers_see_all_rows_while_groups_are_stored_rolled_and_removed(tmp_path: Path) -> None:
    limits = replace(LIMITS, roll_size=4_000, retention_size=20_000)
    with opened(tmp_path, limits) as store:
        stored(store, spread(1, 10))
        topic = store.topics["t"]
        done = threading.Event()
        faults: list[BaseException] = []

        def read() -> None:
            while not done.is_set():
                for part in topic.partitions:
                    end = part.next_offset
                    start = max(part.first_offset, end - 60)
                    with suppress(UnknownTopic):  # it was removed meanwhile
                        batches = list(part.read(start, end))
                        found = [row["offset"] for each in batches for row in each.to_pylist()]
                        assert found == list(range(start, end))

        def keep_up() -> None:
            while not done.is_set():
                store.roll()
                retain(store)

        def noting(work: object) -> None:
            try:
                work()  # type: ignore[operator]
            except BaseException as error:  # noqa: BLE001 -- shown below
                faults.append(error)

        threads = [threading.Thread(target=noting, args=(each,)) for each in (read, read, keep_up)]
        for thread in threads:
            thread.start()
        for first in range(11, 1_500, 10):
            stored(store, spread(first, 10))
        done.set()
        for thread in threads:
            thread.join()
        assert not faults
        assert any(part.first_offset for part in topic.partitions)
        assert topic.producers["p"][0] == 1_500
    with opened(tmp_path, limits) as store:
        for part in store.topics["t"].partitions:
            rows_of(part)


# What one topic or partition does to another


def test_an_unexpected_error_fails_only_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        names = "first", "bad", "last"
        topics = {name: store.topic_to_write(name, 1) for name in names}

        def broken(*_: object) -> None:
            raise RuntimeError("unforeseen")

        monkeypatch.setattr(topics["bad"], "_arrange", broken)
        groups = {topics[name]: [Submission("p", records(1))] for name in names}
        store.commit(groups)
        assert [groups[topics[name]][0].fault is None for name in names] == [True, False, True]
        assert "unforeseen" in str(groups[topics["bad"]][0].fault)
        assert sequences(topics["last"]) == [1]


def test_a_failed_rotation_does_not_affect_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(tmp_path, replace(LIMITS, roll_size=1)) as store:
        monkeypatch.setattr(partition.Partition, "rotate", broken)
        assert stored(store, records(1)).is_done
        monkeypatch.undo()


def test_retention_continues_when_one_partition_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, replace(LIMITS, retention_size=1)) as store:
        stored(store, spread(1, 20))
        drop = partition.Partition.drop_before

        def failing(part: partition.Partition, offset: int) -> int:
            if part.number == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return drop(part, offset)

        monkeypatch.setattr(partition.Partition, "drop_before", failing)
        assert rolled(store) == 2
        topic = store.topics["t"]
        assert [len(part.manifest.segments) for part in parts_of(topic)] == [1, 0]
        assert "could not be removed" in caplog.text


def test_damaged_reader_offsets_stop_only_retention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = replace(LIMITS, retention_size=1)
    with opened(tmp_path, limits) as store:
        stored(store, spread(1, 20))
        advance(store.topics["t"], "r", {0: 0})
    fill(tmp_path / "t" / "readers.json", b"{}")
    with opened(tmp_path, limits) as store:
        assert "readers.json, byte 0" in caplog.text
        stored(store, spread(21, 20))
        rolled(store)
        assert retain(store) == 0
        assert sequences(store.topics["t"]) == list(range(1, 41))
        with pytest.raises(IngestError, match="readers cannot advance"):
            advance(store.topics["t"], "r", {0: 1})


def test_a_producer_that_is_open_is_not_forgotten(tmp_path: Path) -> None:
    times = [1_000.0]
    limits = replace(LIMITS, max_producers=2, producer_memory=10)
    with opened(tmp_path, limits, lambda: times[0]) as store:
        stored(store, spread(1, 20), producer="open")
        stored(store, spread(1, 20), producer="gone")
        times[0] = 2_000.0
        topic = store.topics["t"]
        assert store.register(topic, "new", keep={"open"}) == 0
        assert set(topic.producers) == {"open", "new"}
        with pytest.raises(RefusedRecords, match="max_producers"):
            store.register(topic, "other", keep={"open", "new"})


def test_a_shared_lock_of_a_reader_delays_the_start_briefly(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        timer = threading.Timer(0.05, lambda: fcntl.flock(file, fcntl.LOCK_UN))
        timer.start()
        with opened(tmp_path):
            timer.join()


def test_new_directories_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    with opened(tmp_path / "a" / "b"):
        assert synced == [tmp_path, tmp_path / "a"]
