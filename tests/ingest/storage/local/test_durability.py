"""Missing acknowledged rows are damage; the incomplete group that a crash leaves is not."""

import os
from pathlib import Path

import pytest

from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.storage.local import topic_storage
from aqueduct.ingest.storage.local.durability import CLOSED
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.wal import Scan
from tests.ingest.storing import (
    fill,
    killed,
    opened,
    parts_of,
    put,
    read_only_topic,
    records,
    retain,
    rolled,
    sequences,
    stored,
)


def six_groups(directory: Path, *, late: bool = False, roll: int | None = None) -> Path:
    """Store groups in both partitions, optionally one more in 1; return the log of 0."""
    with opened(directory) as store:
        for group in range(6):
            topic = store.topic_to_write("t", 2)
            keys = [b"1", b"2", b"3", b"4"]
            stored(store, records(4 * group + 1, 4, keys=keys))
            assert all(part.next_offset for part in topic.partitions)
        if late:
            stored(store, records(25, partition=1))
        if roll is not None:
            parts_of(topic)[roll].rotate()
            parts_of(topic)[roll].roll()
    (path,) = (directory / "t" / "part=0").glob("*.wal")
    return path


def flip_last(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    fill(path, data)


def cut_to_two_blocks(path: Path) -> None:
    os.truncate(path, list(Scan(path).blocks())[2].position)


def cut_last(path: Path) -> None:
    os.truncate(path, list(Scan(path).blocks())[-1].position)


def everything(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def check_refused(directory: Path, log: Path) -> None:
    """Check that the topic is out of use, the log is named, and nothing was changed."""
    before = everything(directory / "t")
    with opened(directory) as store:
        topic = store.topics["t"]
        assert topic.fault.startswith(f"{log}, byte ")
        assert topic.partitions[0].fault == topic.fault
        assert topic.partitions[1].fault == ""
        with pytest.raises(IngestError, match="out of use"):
            put(store, records(26))
        assert rolled(store) == 0
        retain(store)
    assert everything(directory / "t") == before
    assert read_only_topic(directory / "t").fault


@pytest.mark.parametrize("damage", [flip_last, cut_to_two_blocks, cut_last, Path.unlink])
@pytest.mark.parametrize("how", ["killed, with a later group", "killed, and 1 rolled", "closed"])
def test_missing_acknowledged_rows_are_damage(tmp_path: Path, how: str, damage: object) -> None:
    roll = 1 if "rolled" in how else None
    log = six_groups(tmp_path, late="later" in how, roll=roll)
    if how != "closed":
        killed(tmp_path)
    damage(log)  # type: ignore[operator]
    check_refused(tmp_path, log)


@pytest.mark.parametrize("damage", [cut_to_two_blocks, Path.unlink])
def test_missing_groups_before_the_last_are_damage_after_a_crash(
    tmp_path: Path, damage: object
) -> None:
    log = six_groups(tmp_path)
    killed(tmp_path)
    damage(log)  # type: ignore[operator]
    check_refused(tmp_path, log)


@pytest.mark.parametrize("damage", [flip_last, cut_last])
def test_the_last_group_of_a_server_that_was_killed_may_be_incomplete(
    tmp_path: Path, damage: object
) -> None:
    log = six_groups(tmp_path)
    killed(tmp_path)
    damage(log)  # type: ignore[operator]
    with opened(tmp_path) as store:
        assert sequences(store.topics["t"]) == list(range(1, 21))
        stored(store, records(21, 4))


def test_a_torn_tail_is_damage_if_the_server_was_closed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.topic_to_write("t", 1)
        stored(store, records(1, 3))
        stored(store, records(4, 3))
    (path,) = tmp_path.rglob("*.wal")
    flip_last(path)
    with opened(tmp_path) as store:
        assert store.topics["t"].fault.startswith(f"{path}, byte ")


def test_the_closed_mark_exists_exactly_while_nothing_is_written(tmp_path: Path) -> None:
    mark = tmp_path / "t" / CLOSED
    with opened(tmp_path) as store:
        stored(store, records(1, 4))
        assert not mark.exists()
    assert mark.exists()
    with opened(tmp_path) as store:
        rolled(store)
        stored(store, records(1, 4))
        assert mark.exists()
        stored(store, records(5))
        assert not mark.exists()
    assert mark.exists()


def test_a_damaged_closed_mark_still_means_that_the_server_was_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = six_groups(tmp_path)
    fill(tmp_path / "t" / CLOSED, b"{}")
    with opened(tmp_path) as store:
        assert f"{CLOSED}, byte 0" in caplog.text
        assert sequences(store.topics["t"]) == list(range(1, 25))
    flip_last(log)
    check_refused(tmp_path, log)


def test_a_directory_reader_reads_again_what_a_high_water_mark_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        stored(store, records(1, 4, keys=[b"1", b"2", b"3", b"4"]))

        def late(path: Path, number: int, *, read_only: bool) -> object:
            if number == 1:
                for first in (5, 9):
                    stored(store, records(first, 4, keys=[b"1", b"2", b"3", b"4"]))
            return Partition(path, number, read_only=read_only)

        monkeypatch.setattr(topic_storage, "Partition", late)
        looking = read_only_topic(tmp_path / "t")
        assert looking.fault == ""
