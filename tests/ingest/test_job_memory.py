"""Eviction of row ids: no row is lost or duplicated, and active jobs keep theirs."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from aqueduct.ingest.dedup import jobs, recollection, spill
from aqueduct.ingest.dedup.ledger import Ledger
from aqueduct.ingest.dedup.recollection import Recollection
from aqueduct.ingest.dedup.scope import ID_HEADER, Attempt, WriteScope, fingerprint_of
from aqueduct.ingest.dedup.spill import SpilledIds, SpillFault
from aqueduct.ingest.errors import RefusedRecords
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server import store as stores
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission, Topic
from aqueduct.ingest.settings import IngestSettings
from tests.ingest.dedup.test_jobs import begin, commit, complete, scope, send, topic_of, values_of
from tests.ingest.jobbing import RUNS, ids_of, last, records
from tests.ingest.storing import opened, rolled

FOUR = IngestSettings(low_water=0, max_ids=4)


def open_part(store: Store, topic: Topic, part: WriteScope) -> None:
    _, missing = store.begin(topic, part)
    if missing is not None:
        missing.read(topic.partitions)
        store.recall(topic, missing)


def put(store: Store, topic: Topic, part: WriteScope, *values: bytes) -> None:
    submission = Submission(part.producer_id, records(values, ids_of(values)), scope=part)
    store.commit({topic: [submission]})
    assert submission.fault is None


class Writer:
    """A producer that writes a part and stays open."""

    def __init__(self, store: Store, part: WriteScope) -> None:
        self._store = store
        self.part = part
        self.attempt = Attempt(part)

    def begin(self) -> Recollection | None:
        _, missing = self._store.begin(topic_of(self._store), self.part, attempt=self.attempt)
        return missing

    def opened(self) -> Writer:
        missing = self.begin()
        if missing is not None:
            self.adopt(missing)
        return self

    def adopt(self, missing: Recollection) -> None:
        missing.read(topic_of(self._store).partitions)
        self._store.recall(topic_of(self._store), missing)

    def put(self, *values: bytes) -> int:
        """Store rows; return how many were duplicates."""
        what = records(values, ids_of(values))
        submission = Submission(self.part.producer_id, what, scope=self.part, attempt=self.attempt)
        self._store.commit({topic_of(self._store): [submission]})
        assert submission.fault is None
        return submission.skipped

    def leave(self) -> None:
        self.attempt.is_open = False


def numbered(part: int, first: int, end: int) -> list[bytes]:
    return [b"%d of %d" % (number, part) for number in range(first, end)]


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_parts_that_are_open_are_written_whatever_fits_in_memory(
    tmp_path: Path, unique: bool, together: bool
) -> None:
    limits = IngestSettings(low_water=0, max_ids=100)
    parts = range(5)
    wanted = Counter(value for part in parts for value in numbered(part, 0, 200))
    with opened(tmp_path, limits) as store:
        jobs = topic_of(store).jobs
        for expected in (0, 20):
            writers = [Writer(store, scope(part, unique=unique)).opened() for part in parts]
            for start in range(0, 200, 20):
                for writer in () if together else writers:
                    assert writer.put(*numbered(writer.part.part, start, start + 20)) == expected
                if together:
                    sent = [
                        Submission(
                            each.part.producer_id,
                            records(rows, ids_of(rows)),
                            scope=each.part,
                            attempt=each.attempt,
                        )
                        for each in writers
                        for rows in [numbered(each.part.part, start, start + 20)]
                    ]
                    store.commit({topic_of(store): sent})
                    assert [(each.fault, each.skipped) for each in sent] == [(None, expected)] * 5
                assert jobs.ids <= 100
            if not expected:
                assert jobs.files == unique  # rows that are new are not looked up in a file
            for writer in writers:
                writer.leave()
        assert values_of(store) == wanted


@pytest.mark.parametrize("spilled", [False, True])
def test_a_second_attempt_is_opened_while_the_first_one_writes(
    tmp_path: Path, spilled: bool
) -> None:
    with opened(tmp_path, FOUR) as store:
        first = Writer(store, scope(0)).opened()
        other = Writer(store, scope(1)).opened()
        first.put(*numbered(0, 0, 4))
        other.put(*numbered(1, 0, 4))
        if spilled:
            topic_of(store).jobs.spill("job")
            first.put(*numbered(0, 4, 6))
            assert not topic_of(store).jobs._ledgers["job"].knows(0)
        second = Writer(store, scope(0))
        missing = second.begin()
        assert missing is not None
        first.put(*numbered(0, 6, 9))
        other.put(*numbered(1, 4, 8))
        first.put(*numbered(0, 9, 12))
        second.adopt(missing)
        first.put(*numbered(0, 12, 14))
        assert second.put(*numbered(0, 0, 20)) == (14 if spilled else 12)
        assert first.put(*numbered(0, 14, 20)) == 6
        assert other.put(*numbered(1, 8, 12)) == 0
        assert set(values_of(store).values()) == {1}


def test_open_writers_of_other_jobs_are_not_evicted(tmp_path: Path) -> None:
    with opened(tmp_path, FOUR) as store:
        names = [
            WriteScope(f"job-{number}", 0, RUNS[0], 0, unique=number % 2 > 0) for number in range(6)
        ]
        writers = [Writer(store, each).opened() for each in names]
        for start in range(0, 9, 3):
            for writer in writers:
                assert writer.put(*numbered(0, start, start + 3)) == 0
        again = [Writer(store, each).opened() for each in names]
        for start in range(0, 9, 3):
            for writer in again:
                assert writer.put(*numbered(0, start, start + 3)) == 3
        assert set(values_of(store).values()) == {6}


def test_ended_attempts_are_not_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for part in range(1_000):
            Writer(store, scope(part)).opened().leave()
        assert len(topic_of(store).jobs._attempts) < 100


def test_rows_stored_during_a_recall_are_known_even_if_a_group_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path, FOUR) as store:
        for part in range(3):
            begin(store, scope(part))
            send(store, scope(part), b"%d" % part, b"of %d" % part)
        topic = topic_of(store)
        _, missing = store.begin(topic, scope(0))
        assert missing is not None
        begin(store, scope(3))
        send(store, scope(3), b"stored meanwhile")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", full)
            assert commit(store, (scope(2), records([b"x"], ids_of([b"x"]))))[0].fault is not None
        missing.read(topic.partitions)
        with pytest.raises(RefusedRecords, match="send all rows of this part again"):
            store.recall(topic, missing)
        begin(store, scope(3))
        assert send(store, scope(3), b"stored meanwhile").skipped == 1
        begin(store, scope(0))
        assert send(store, scope(0), b"of 0", b"0").skipped == 2
        assert values_of(store)[b"stored meanwhile"] == 1


def test_idle_ids_are_evicted_first_across_topics(tmp_path: Path) -> None:
    with opened(tmp_path, IngestSettings(low_water=0, max_ids=6)) as store:
        busy, idle = (store.topic_to_write(name, None) for name in ("busy", "idle"))
        left = WriteScope("left", 0, RUNS[0], 0)
        open_part(store, idle, left)
        put(store, idle, left, b"1", b"2", b"3", b"4")
        for part in range(2):
            open_part(store, busy, scope(part))
        for number in range(3):
            for part in range(2):
                put(store, busy, scope(part), b"%d" % number)
        assert (busy.jobs.ids, idle.jobs.ids) == (6, 0)


def test_later_runs_spill_their_ids_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_FILES", 1)
    now = [1_000_000.0]
    with opened(tmp_path, FOUR, clock=lambda: now[0]) as store:
        jobs = topic_of(store).jobs
        first, second = (
            [WriteScope(name, 0, run, 0) for run in RUNS[:3]] for name in ("first", "second")
        )
        for runs in (first, second):
            begin(store, runs[0])
            send(store, runs[0], b"1", b"2", b"3")
        begin(store, first[1])
        assert jobs.files == 1
        with pytest.raises(RefusedRecords, match="1 jobs of this server use spill files already"):
            begin(store, second[1])
        assert send(store, first[1], b"2", b"4").skipped == 1
        # The file of an idle run is evicted for another job; the evicted job needs a new run.
        now[0] += 3_600
        begin(store, second[1])
        assert (jobs.ids, jobs.files) == (0, 1)
        assert send(store, second[1], b"3").skipped == 1
        with pytest.raises(RefusedRecords, match="by a new run"):
            begin(store, first[1])
        now[0] += 3_600
        begin(store, first[2])
        assert send(store, first[2], b"2", b"4").skipped == 2
        assert sum(values_of(store).values()) == 7
    assert list((tmp_path / ".spill").iterdir()) == []


@pytest.mark.parametrize("unique", [False, True])
def test_a_later_run_finishes_a_step_many_times_larger_than_memory(
    tmp_path: Path, unique: bool
) -> None:
    limits = IngestSettings(low_water=0, max_ids=100)
    values = [b"%d" % number for number in range(3_000)]
    with opened(tmp_path, limits) as store:
        for part in range(2):
            begin(store, scope(part, unique=unique))
            send(store, scope(part, unique=unique), *values[part * 1_000 : part * 1_000 + 900])
    with opened(tmp_path, limits) as store:
        jobs = topic_of(store).jobs
        skipped = 0
        for part in range(3):
            begin(store, scope(part, run=1, unique=unique))
            for start in range(part * 1_000, part * 1_000 + 1_000, 50):
                again = send(store, scope(part, run=1, unique=unique), *values[start : start + 50])
                skipped += again.skipped
                assert jobs.ids <= 100
        assert skipped == 1_800
        store.end_step("t", "job", 1, RUNS[1], fingerprint_of(b"".join(ids_of(values))))
        assert jobs.files == 0
        assert values_of(store) == Counter(values)


def test_ids_are_read_back_without_the_values_of_their_rows(tmp_path: Path) -> None:
    values = [b"%d" % number * 100_000 for number in range(40)]
    with opened(tmp_path) as store:
        topic = topic_of(store)
        begin(store, scope())
        send(store, scope(), *values)
        for rolls in (False, True):
            if rolls:
                assert rolled(store)
            _, missing = store.begin(topic, scope(run=1 + rolls))
            assert missing is not None
            pool = pa.proxy_memory_pool(pa.default_memory_pool())
            before = pa.default_memory_pool()
            pa.set_memory_pool(pool)
            try:
                missing.read(topic.partitions)
            finally:
                pa.set_memory_pool(before)
            if rolls:
                assert pool.max_memory() < 1_000_000
            store.recall(topic, missing)
            assert send(store, scope(run=1 + rolls), *values).skipped == 40


def test_a_part_larger_than_memory_is_stored_and_attempted_again(tmp_path: Path) -> None:
    limits = IngestSettings(low_water=0, max_ids=100)
    values = [b"%d" % number for number in range(1_000)]
    with opened(tmp_path, limits) as store:
        jobs = topic_of(store).jobs
        begin(store, scope())
        for start in range(0, 500, 50):
            send(store, scope(), *values[start : start + 50])
        assert jobs.ids <= 100
        assert send(store, scope(), *reversed(values)).skipped == 500
    with opened(tmp_path, limits) as store:
        begin(store, scope())
        assert send(store, scope(), *values, b"another").skipped == 1_000
        begin(store, scope(1))
        assert send(store, scope(1), b"of part 1").skipped == 0
        assert values_of(store) == Counter([*values, b"another", b"of part 1"])


def test_a_spill_file_that_cannot_be_written_fails_only_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    values = [b"%d" % number for number in range(9)]
    with opened(tmp_path, FOUR) as store:
        begin(store, scope())
        send(store, scope(), *values)
        begin(store, scope(run=1))
        assert topic_of(store).jobs.files == 1
        plain = Submission("plain", RecordColumns(1, [b"plain"], [0]))
        mine = Submission(scope().producer_id, records([b"x"], ids_of([b"x"])), scope=scope(run=1))
        with monkeypatch.context() as patch:
            patch.setattr(SpilledIds, "_insert", lambda *_: raise_spill(full))
            store.commit({topic_of(store): [plain, mine]})
        assert plain.fault is None
        assert "could not be spilled to disk: database or disk is full" in str(mine.fault)
        with pytest.raises(RefusedRecords, match="by a new run"):
            begin(store, scope(run=1))
        begin(store, scope(run=2))
        assert send(store, scope(run=2), *values).skipped == 9


@pytest.mark.parametrize("broken", ["adopt", "complete"])
def test_ids_that_could_not_be_spilled_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    values = [b"%d" % number for number in range(20)]
    with opened(tmp_path, IngestSettings(low_water=0, max_ids=40)) as store:
        topic = topic_of(store)
        for part in (0, 1):
            begin(store, scope(part))
            send(store, scope(part), *values)
        send(store, scope(1), *(b"more of %d" % number for number in range(20)))
        _, missing = store.begin(topic, scope(0))
        assert missing is not None  # the ids of part 0 were evicted
        missing.read(topic.partitions)
        assert missing.ledger.is_spilled
        if broken == "complete":
            topic.jobs.spill("job")
        with monkeypatch.context() as patch:
            patch.setattr(SpilledIds, "_insert", lambda *_: raise_spill(full))
            patch.setattr(SpilledIds, "discard", lambda *_: raise_spill(full))
            if broken == "adopt":
                with pytest.raises(SpillFault, match="free disk space on the server"):
                    store.recall(topic, missing)
            else:
                complete(store, scope(1))
        begin(store, scope(0))
        assert send(store, scope(0), *values).skipped == 20


def raise_spill(cause: Callable[[], None]) -> None:
    with spill._faults():
        cause()


def test_messages_without_rows_take_no_memory() -> None:
    ledger = Ledger(unique=False, is_first_run=True)
    for part in range(10):
        assert not ledger.admit(part, ())
    assert ledger.parts() == []


def test_the_number_of_journaled_parts_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_PARTS", 3)
    with opened(tmp_path) as store:
        first, second = ([WriteScope(name, 0, RUNS[0], at) for at in range(2)] for name in "ab")
        for part in (*first, second[0]):
            begin(store, part)
            complete(store, part)
        begin(store, second[1])
        (refused,) = commit(store, (second[1], last()))
        assert "more than 3 completed parts" in str(refused.fault)
        store.end_step("t", "a", 0, RUNS[0])
        complete(store, second[1])


def test_an_older_producer_cannot_pass_for_a_job(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = topic_of(store)
        store.register(topic, scope().producer_id)
        begin(store, scope())
        plain = Submission(scope().producer_id, RecordColumns(1, [b"plain"], [0]))
        store.commit({topic: [plain]})
        assert "belongs to a job" in str(plain.fault)
        send(store, scope(), b"x")
    with opened(tmp_path) as store:
        begin(store, scope())
        assert send(store, scope(), b"x").skipped == 1


def test_rows_without_headers_have_no_ids() -> None:
    entry = pa.struct([("name", pa.string()), ("value", pa.binary())])
    rows = [None, [], [{"name": ID_HEADER, "value": b"id"}], [{"name": "n", "value": b"v"}]]
    assert recollection.ids_of(pa.array(rows, pa.list_(entry))) == [b"id"]
