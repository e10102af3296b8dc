"""Positions and histories: whether offsets belong to a topic, decided without a server."""

from __future__ import annotations

import itertools
import random
import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.ingest.errors import TopicReplaced
from aqueduct.ingest.identity import MAX_OFFSETS, Epoch, History, TopicPosition
from aqueduct.ingest.storage.local.files import write_checked
from aqueduct.ingest.storage.local.topic_storage import read_history
from tests.ingest.storing import LIMITS, advance, opened, records, stored

HISTORY = History("id", [Epoch("a", [0, 0]), Epoch("b", [10, 5]), Epoch("c", [20, 5])])


@pytest.mark.parametrize(
    ("offsets", "epoch"),
    [
        ({0: 0, 1: 0}, ""),
        ({0: 1, 1: 0}, "a"),
        ({0: 10, 1: 5}, "a"),
        ({0: 0, 1: 6}, "c"),
        ({0: 11}, "b"),
        ({0: 21, 1: 0}, "c"),
    ],
)
def test_a_position_has_the_newest_epoch_that_it_reaches_into(
    offsets: dict[int, int], epoch: str
) -> None:
    position = HISTORY.position(offsets)
    assert position == TopicPosition("id", epoch, offsets)
    assert HISTORY.mismatch(position, {0: 30, 1: 30}) == ""
    assert TopicPosition.from_text(position.to_text()) == position


class Counted(list[int]):
    """The start of an epoch, with a count of its lookups."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        Counted.looks += 1
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        Counted.looks += 1
        return super().__getitem__(index)


def test_a_long_history_is_scanned_once_for_all_partitions() -> None:
    history = History("id", [Epoch(f"{number}", Counted([0] * 64)) for number in range(1_000)])
    position = TopicPosition("id", "unknown", dict.fromkeys(range(MAX_OFFSETS), 0))
    Counted.looks = 0
    assert history.mismatch(position, dict.fromkeys(range(64), 0)) == ""
    assert Counted.looks <= 1_000


@pytest.mark.parametrize("count", [MAX_OFFSETS, MAX_OFFSETS + 1, 100 * MAX_OFFSETS])
def test_a_position_takes_little_memory_whatever_it_names(count: int) -> None:
    offsets = {number: 2**62 + number for number in range(count)}
    data = msgspec.msgpack.encode(TopicPosition("id", "epoch", offsets))
    decode = msgspec.msgpack.Decoder(TopicPosition).decode
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.ValidationError) if count > MAX_OFFSETS else nullcontext():
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 128 * 1024


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (TopicPosition("other", "a", {0: 1}), "it was recreated: its id is id"),
        (TopicPosition("id", "a", {0: 11}), "partition 0 was at offset 11"),
        (TopicPosition("id", "b", {0: 15, 1: 6}), "partition 1 was at offset 6"),
        (TopicPosition("id", "lost", {0: 15, 1: 0}), "has only the rows before 0"),
        (TopicPosition("id", "c", {0: 31}), "has only the rows before 30"),
        (TopicPosition("id", "c", {2: 1}), "partition 2 was at offset 1"),
        (TopicPosition("", "", {0: 99}), ""),
    ],
)
def test_a_position_of_other_rows_is_a_mismatch(position: TopicPosition, reason: str) -> None:
    found = HISTORY.mismatch(position, {0: 30, 1: 30})
    assert reason in found
    assert bool(reason) == bool(found)


def test_rows_are_new_from_where_a_copy_diverged() -> None:
    firsts = {0: 3, 1: 0}
    assert HISTORY.common(TopicPosition("id", "b", {0: 25, 1: 5}), firsts) == {0: 20, 1: 5}
    assert HISTORY.common(TopicPosition("id", "lost", {0: 25, 1: 5}), firsts) == firsts
    assert HISTORY.common(TopicPosition("other", "b", {0: 25, 1: 5}), firsts) == firsts


def test_an_epoch_without_rows_makes_room_and_the_oldest_are_dropped() -> None:
    history = History()
    for end in (0, 0, 5, 5, 9, 12):
        history = history.begun({0: end}, 3)
    assert [epoch.starts for epoch in history.epochs] == [[5], [9], [12]]
    assert len(history.topic_id) == 32
    old = TopicPosition(history.topic_id, "dropped", {0: 5})
    assert history.mismatch(old, {0: 20}) == ""
    assert history.mismatch(replaced_offsets(old, 6), {0: 20})


def replaced_offsets(position: TopicPosition, offset: int) -> TopicPosition:
    return TopicPosition(position.topic_id, position.epoch, {0: offset})


Rows = tuple[list[int], list[int]]


def copied(rows: Rows) -> Rows:
    return list(rows[0]), list(rows[1])


def ends_of(rows: Rows) -> dict[int, int]:
    return {0: len(rows[0]), 1: len(rows[1])}


@pytest.mark.parametrize("max_epochs", [50, 2])
@given(st.randoms(use_true_random=False))
def test_a_position_matches_exactly_the_copies_that_have_its_rows(
    max_epochs: int, rng: random.Random
) -> None:
    """Servers start on any copy, write, and are copied at any time, also while they write."""
    copies: list[tuple[History, Rows]] = [(History("id"), ([], []))]
    positions: list[tuple[TopicPosition, Rows]] = []
    numbers = itertools.count()
    for _ in range(8):
        history, rows = rng.choice(copies)
        rows = copied(rows)
        history = history.begun(ends_of(rows), max_epochs)
        for _ in range(rng.randrange(4)):
            rows[rng.randrange(2)].append(next(numbers))
            read = {at: rng.randint(0, end) for at, end in ends_of(rows).items()}
            positions.append((history.position(read), (rows[0][: read[0]], rows[1][: read[1]])))
            if rng.random() < 0.3:
                copies.append((history, copied(rows)))
        copies.append((history, rows))
    for position, read_rows in positions:
        for history, rows in copies:
            has = all(rows[at][: len(read_rows[at])] == read_rows[at] for at in (0, 1))
            found = history.mismatch(position, ends_of(rows))
            # A short history may accept a mismatch, and has no epoch for positions before it.
            if max_epochs == 50 or (has and position.epoch):
                assert (found == "") == has, (position, history)


def test_repeated_restarts_do_not_change_the_identity(tmp_path: Path) -> None:
    positions = []
    limits = replace(LIMITS, max_epochs=3)
    for start in range(10):
        with opened(tmp_path, limits) as store:
            stored(store, records(1 + start * 5, 5, partition=0))
            topic = store.topics["t"]
            positions.append(topic.history.position(topic.ends()))
            for position in positions:
                topic.check_position(position)
    assert len(DirectoryReader(tmp_path).history("t").epochs) == 3


def test_readers_alone_do_not_begin_an_epoch(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, records(1, 5))
        before = store.topics["t"].history
    with opened(tmp_path) as store:
        assert store.topics["t"].history == before
        assert store.info()[0].epoch == before.epochs[-1].id


def test_a_topic_of_a_version_without_ids_gets_one_when_it_is_opened(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, records(1, 5, partition=0))
        advance(store.topics["t"], "reports", {0: 3})
    write_checked(tmp_path / "t" / "topic.json", {"partitions": 2, "version": 1})
    write_checked(tmp_path / "t" / "readers.json", {"reports": {"0": 3}})
    assert DirectoryReader(tmp_path).history("t") == History()
    with opened(tmp_path) as store:
        topic = store.topics["t"]
        assert topic.readers.offsets == {"reports": {0: 3}}
        position = topic.history.position({0: 5, 1: 0})
        assert (position.topic_id, position.epoch) == (store.info()[0].id, "")
        assert position.topic_id
        advance(topic, "reports", {0: 4})
    with opened(tmp_path) as store:
        stored(store, records(6, 5, partition=0))
        store.topics["t"].check_position(position)
        assert store.topics["t"].readers.offsets == {"reports": {0: 4}}
        with pytest.raises(TopicReplaced, match="restored from an older copy"):
            store.topics["t"].check_position(replaced_offsets(position, 6))


def test_a_crash_after_an_epoch_has_begun_leaves_positions_valid(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored(store, records(1, 5, partition=0))
        position = store.topics["t"].history.position({0: 5, 1: 0})
    for _ in range(3):
        with opened(tmp_path) as store:
            store.topic_to_write("t", None)
            store.topics["t"].check_position(position)
    assert [epoch.starts for epoch in read_history(tmp_path / "t").epochs] == [[0, 0], [5, 0]]


def test_a_directory_is_checked_as_a_server_is(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        stored(store, records(1, 5, partition=0))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with opened(tmp_path / "data") as store:
        stored(store, records(6, 5, partition=0))
    position = DirectoryReader(tmp_path / "data").position("t", {0: 10})
    with opened(tmp_path / "copy") as store:
        stored(store, records(6, 50, partition=0))
    (rows,) = DirectoryReader(tmp_path / "data").read("t", 0, 0, 5, position=position)
    assert rows.num_rows == 5
    with pytest.raises(TopicReplaced, match="partition 0 was at offset 10"):
        next(DirectoryReader(tmp_path / "copy").read("t", 0, 0, 5, position=position))
