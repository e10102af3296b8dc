"""Clock jumps: detected and logged once; retention and reading by time continue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.ingest.server.clock import TOLERANCE, Clock
from aqueduct.ingest.server.store import Store
from tests.ingest.storing import LIMITS, opened, records, retain, rolled, rows_of, stored

START = 1_700_000_000.0
HOURS = 3_600.0
JUMP = 2 * HOURS


class Time:
    """A clock that the test advances; the wall clock may be off."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.off = 0.0

    def wall(self) -> float:
        return START + self.elapsed + self.off

    def clock(self, hold: float = HOURS) -> Clock:
        return Clock(self.wall, lambda: self.elapsed, hold=hold)


def test_a_reverted_jump_is_logged_once_in_each_direction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    clock = time.clock()
    for _ in range(1_000):  # a synchronised clock drifts, and does not jump
        time.elapsed += TOLERANCE
        time.off += TOLERANCE / 10
        assert clock.cautious() == clock.now() == time.wall()
    assert caplog.text == ""
    before, time.off = time.off, time.off + JUMP
    for _ in range(3):
        assert clock.now() == time.wall()
        assert clock.cautious() == pytest.approx(time.wall() - JUMP)
        time.elapsed += 60.0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "jumped forward by 7200 s, from 2023-11-15 " in caplog.text
    time.off = before
    for _ in range(3):
        assert clock.cautious() == clock.now() == time.wall()
    assert len(caplog.records) == 2
    assert "returned to the time before the jump" in caplog.text


def test_a_lasting_jump_is_accepted_after_the_hold(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    clock = time.clock()
    time.off = JUMP
    assert clock.cautious() == START
    time.elapsed = HOURS
    assert clock.cautious() == time.wall()
    assert len(caplog.records) == 2
    time.off = 0.0
    assert clock.cautious() == clock.now() == clock.noticed == time.wall()
    assert "jumped back by 7200 s" in caplog.text
    assert len(caplog.records) == 3


def minutes(store: Store, time: Time, count: int) -> None:
    """Store a record each minute, each in its own segment."""
    for _ in range(count):
        time.elapsed += 60.0
        first = store.topics["t"].ends()[0] + 1 if "t" in store.topics else 1
        stored(store, records(first, partition=0))
        rolled(store)


def ahead_then_back(store: Store, time: Time) -> None:
    """Store ten records at the right time, ten two hours ahead, and ten at the right time again."""
    minutes(store, time, 10)
    time.off = JUMP
    minutes(store, time, 10)
    time.off = 0.0
    minutes(store, time, 10)


@pytest.mark.parametrize("hold", [HOURS, 0.0], ids=["taken back in time", "taken back late"])
def test_a_clock_that_was_ahead_does_not_stop_retention(tmp_path: Path, hold: float) -> None:
    time = Time()
    limits = replace(LIMITS, retention_age=15 * 60.0 + 1)
    with opened(tmp_path, replace(limits, retention_age=None), time.clock(hold)) as store:
        ahead_then_back(store, time)
        part = store.topics["t"].partitions[0]
        store.limits = limits
        retain(store)
        # The last 15 minutes stay; rows stored ahead expire with the row stored next.
        assert 10 <= part.first_offset <= 20
        time.elapsed += 10 * 60.0
        retain(store)
        assert part.first_offset == 24
        assert [row["producer_sequence"] for row in rows_of(part)] == [25, 26, 27, 28, 29, 30]


def test_a_clock_that_is_ahead_removes_nothing_early(tmp_path: Path) -> None:
    time = Time()
    with opened(tmp_path, replace(LIMITS, retention_age=HOURS), time.clock()) as store:
        minutes(store, time, 10)
        time.off = JUMP
        minutes(store, time, 10)
        retain(store)
        assert len(rows_of(store.topics["t"].partitions[0])) == 20
        time.elapsed += 2 * HOURS
        retain(store)
        assert len(rows_of(store.topics["t"].partitions[0])) == 0


@pytest.mark.parametrize("before", [JUMP, 0.0], ids=["while it is ahead", "not at all"])
@pytest.mark.parametrize("after", [None, -1.5, -30.0], ids=["stays", "slips", "is set back"])
def test_new_rows_do_not_expire_if_the_clock(
    tmp_path: Path, before: float, after: float | None
) -> None:
    time = Time()
    with opened(tmp_path, replace(LIMITS, retention_age=HOURS), time.clock()) as store:
        time.elapsed = 10 * HOURS  # the clock was right for longer than rows are kept
        retain(store)
        time.off = before
        minutes(store, time, 1)
        for _ in range(3):
            time.off += after or 0.0
            retain(store)
        assert len(rows_of(store.topics["t"].partitions[0])) == 1
        time.elapsed += 5 * HOURS
        retain(store)
        assert len(rows_of(store.topics["t"].partitions[0])) == 0


@pytest.mark.parametrize("roll", [True, False], ids=["segments", "log"])
def test_a_clock_that_was_ahead_does_not_stop_reading_by_time(tmp_path: Path, roll: bool) -> None:
    time = Time()

    def check(offset_at: Callable[[float], int]) -> None:
        assert offset_at(START + 21 * 60.0) <= 20
        for minute in range(22, 30):
            assert offset_at(START + minute * 60.0) == minute - 1
        assert offset_at(START + 5 * 60.0) == 4
        assert offset_at(START + 30 * 60.0 + 1) == 30

    with opened(tmp_path, LIMITS, time.clock()) as store:
        if roll:
            ahead_then_back(store, time)
        else:
            for minute in range(30):
                time.elapsed += 60.0
                time.off = JUMP * (10 <= minute < 20)
                stored(store, records(minute + 1, partition=0))
        part = store.topics["t"].partitions[0]
        check(lambda when: part.offset_at(int(when * 1e6)))
    check(lambda when: DirectoryReader(tmp_path).offsets_at("t", when)[0])
    with opened(tmp_path, LIMITS, time.clock()) as store:  # the state is on disk
        part = store.topics["t"].partitions[0]
        check(lambda when: part.offset_at(int(when * 1e6)))
        times = [row["ingest_time"] for row in rows_of(part)]
        assert times == sorted(times)


def test_rows_stored_while_the_clock_was_ahead_at_start_expire(tmp_path: Path) -> None:
    time = Time()
    time.off = JUMP
    limits = replace(LIMITS, retention_age=10 * 60.0)
    with opened(tmp_path, limits, time.clock()) as store:
        minutes(store, time, 5)
    time.off = 0.0
    with opened(tmp_path, limits, time.clock()) as store:
        retain(store)
        assert len(rows_of(store.topics["t"].partitions[0])) == 5
        time.elapsed += 11 * 60.0
        retain(store)
        assert rows_of(store.topics["t"].partitions[0]) == []
