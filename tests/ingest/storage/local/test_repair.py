"""Repair of a topic with damaged logs: reports the loss, and cuts it off only if asked to."""

from pathlib import Path

import pytest

from aqueduct.ingest.errors import CorruptFile, IngestError, UnknownTopic
from aqueduct.ingest.storage.local.manifest import NAME
from aqueduct.ingest.storage.local.repair import repair
from aqueduct.ingest.storage.local.wal import Scan
from tests.ingest.storage.local.test_durability import (
    cut_last,
    cut_to_two_blocks,
    everything,
    flip_last,
    six_groups,
)
from tests.ingest.storing import fill, opened, records, rolled, rows_of, stored


def flip_third(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[list(Scan(path).blocks())[2].body + 5] ^= 1
    fill(path, data)


@pytest.mark.parametrize(
    "damage", [flip_last, flip_third, cut_to_two_blocks, cut_last, Path.unlink]
)
@pytest.mark.parametrize("late", [False, True])
def test_a_repaired_topic_is_used_again(tmp_path: Path, damage: object, late: bool) -> None:
    log = six_groups(tmp_path, late=late)
    damage(log)  # type: ignore[operator]
    before = everything(tmp_path / "t")
    (loss,) = repair(tmp_path, "t")
    assert loss.path == log
    assert str(loss).startswith(str(log))
    assert everything(tmp_path / "t") == before
    assert repair(tmp_path, "t", cut=True) == [loss]
    for _ in range(2):
        with opened(tmp_path) as store:
            topic = store.topics["t"]
            assert topic.fault == ""
            assert topic.partitions[1].next_offset >= 6
            known = store.register(topic, "p")
            assert known >= 20
            stored(store, records(known + 1, 3, partition=0))
            rows_of(topic.partitions[0])
    assert repair(tmp_path, "t") == []


def test_logs_after_the_damaged_one_are_removed_too(tmp_path: Path) -> None:
    log = six_groups(tmp_path)
    with opened(tmp_path) as store:
        stored(store, records(25, 3, partition=0))
    flip_third(log)
    first, second = repair(tmp_path, "t", cut=True)
    assert (first.path, second.position) == (log, 0)
    assert not second.path.exists()
    with opened(tmp_path) as store:
        known = store.register(store.topics["t"], "p")
        stored(store, records(known + 1, 3, partition=0))


def test_only_logs_can_be_repaired(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, records(1, 3, partition=0))
        rolled(store)
        with pytest.raises(IngestError, match="another server has"):
            repair(tmp_path, "t")
    fill(tmp_path / "t" / "part=0" / NAME, b"{}")
    with pytest.raises(CorruptFile, match="manifest"):
        repair(tmp_path, "t", cut=True)
    with pytest.raises(UnknownTopic, match="there is no topic 'u'"):
        repair(tmp_path, "u")
