"""Jobs of a topic: journaled before they store rows, and recovered after a restart."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.ingest.dedup.jobs import SHOWN_STEPS
from aqueduct.ingest.dedup.scope import ID_HEADER, Fingerprint, Job, WriteScope, fingerprint_of
from aqueduct.ingest.errors import IngestError, RefusedRecords, StepConflict, UnknownTopic
from aqueduct.ingest.protocol import StepInfo
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission, Topic
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.local.files import write_checked
from tests.ingest.jobbing import RUNS, ids_of, last, records, shared_out
from tests.ingest.storing import (
    files,
    fill,
    killed,
    open_store,
    opened,
    parts_of,
    retain,
    rolled,
    rows_of,
    stored,
)

HOUR = 3_600
SEEDS = st.integers(0, 2**32)


def topic_of(store: Store) -> Topic:
    return store.topic_to_write("t", None)


def begin(store: Store, scope: WriteScope) -> bool:
    """Open a part as a server does; return whether nothing is to be sent."""
    topic = topic_of(store)
    is_done, missing = store.begin(topic, scope)
    if missing is not None:
        missing.read(topic.partitions)
        store.recall(topic, missing)
    return is_done


def commit(store: Store, *wanted: tuple[WriteScope, RecordColumns]) -> list[Submission]:
    submissions = [Submission(scope.producer_id, what, scope=scope) for scope, what in wanted]
    store.commit({topic_of(store): submissions})
    return submissions


def send(store: Store, scope: WriteScope, *values: bytes) -> Submission:
    """Store rows, which must succeed."""
    (submission,) = commit(store, (scope, records(values, ids_of(values))))
    assert submission.fault is None
    return submission


def complete(store: Store, scope: WriteScope) -> None:
    (submission,) = commit(store, (scope, last()))
    assert submission.fault is None


def write(store: Store, scope: WriteScope, *values: bytes) -> None:
    """Write a whole part."""
    if not begin(store, scope):
        send(store, scope, *values)
        complete(store, scope)


def values_of(store: Store) -> Counter[bytes]:
    return Counter(row["value"] for part in topic_of(store).partitions for row in rows_of(part))


def scope(part: int = 0, run: int = 0, step: int = 1, **other: Any) -> WriteScope:
    return WriteScope("job", step, RUNS[run], part, **other)


def test_equal_rows_are_stored_as_often_as_they_occur(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for part in (0, 1):
            begin(store, scope(part))
            assert send(store, scope(part), b"x", b"x", b"y").skipped == 0
            assert send(store, scope(part), b"y", b"x", b"x").skipped == 3
        assert values_of(store) == {b"x": 4, b"y": 2}


def test_the_id_of_a_row_is_its_last_header(tmp_path: Path) -> None:
    with opened(tmp_path, IngestSettings(low_water=0, partitions=1)) as store:
        begin(store, scope())
        ids = ids_of([b"1", b"2", b"3"])
        own = [[("a", b"b"), (ID_HEADER, b"of another topic")], [], []]
        what = RecordColumns(1, [b"1", b"2", b"3"], [0] * 3, headers=own, ids=b"".join(ids))
        plain = Submission("plain", RecordColumns(1, [b"plain"], [0]))
        submission = Submission(scope().producer_id, what, scope=scope())
        store.commit({topic_of(store): [plain, submission]})
        send(store, scope(1), b"without headers")
        (part,) = parts_of(topic_of(store))
        rows = rows_of(part)
        assert [row["headers"] for row in rows[:2]] == [
            None,
            [{"name": "a", "value": b"b"}, {"name": ID_HEADER, "value": ids[0]}],
        ]
        assert [row["headers"][-1]["value"] for row in rows[1:]] == [
            *ids,
            *ids_of([b"without headers"]),
        ]
        assert [row["producer_id"] for row in rows] == [
            "plain",
            *["job.1.00000001.0"] * 3,
            "job.1.00000001.1",
        ]
        assert list(topic_of(store).producers) == ["plain"]
        assert part.producers.keys() == {"plain"}


@pytest.mark.parametrize("how", ["log", "segments"])
@pytest.mark.parametrize("unique", [False, True])
def test_a_first_run_continues_after_a_restart(tmp_path: Path, how: str, unique: bool) -> None:
    values = [b"%d" % (number % 700) for number in range(1_000)]
    if unique:
        values = values[:700]
    with opened(tmp_path) as store:
        write(store, scope(0, unique=unique), b"of part 0")
        begin(store, scope(1, unique=unique))
        send(store, scope(1, unique=unique), *values[:600])
        if how == "segments":
            rolled(store)
    killed(tmp_path)
    with opened(tmp_path) as store:
        stored(store, RecordColumns(1, [b"of another"], [0]))
        assert begin(store, scope(0, unique=unique))
        assert not begin(store, scope(1, unique=unique))
        again = list(reversed(values))
        assert send(store, scope(1, unique=unique), *again).skipped == 600
        complete(store, scope(1, unique=unique))
        assert values_of(store) == Counter([*values, b"of part 0", b"of another"])


def test_a_new_run_may_distribute_rows_differently(tmp_path: Path) -> None:
    wanted = [b"a", b"a", b"b", b"c"]
    with opened(tmp_path) as store:
        write(store, scope(0), b"a", b"b")
        begin(store, scope(1))
        send(store, scope(1), b"a")
        for part, values in enumerate(([b"c", b"a"], [b"a"], [b"b"])):
            write(store, scope(part, run=1), *values)
        assert values_of(store) == Counter(wanted)
        with pytest.raises(RefusedRecords, match="run 00000001 of step 1 of job 'job' was supers"):
            begin(store, scope(1))
        (zombie,) = commit(store, (scope(1), records([b"z"], ids_of([b"z"]))))
        assert "was superseded" in str(zombie.fault)
        assert values_of(store) == Counter(wanted)


def test_a_second_run_must_be_replaced_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, scope(0), b"a", b"b")
        begin(store, scope(0, run=1))
        assert send(store, scope(0, run=1), b"a").skipped == 1
    with opened(tmp_path) as store:
        with pytest.raises(RefusedRecords, match=r"has to be run again by a new run \(restart"):
            begin(store, scope(0, run=1))
        write(store, scope(0, run=2), b"a")
        write(store, scope(1, run=2), b"b", b"a")
        assert values_of(store) == {b"a": 2, b"b": 1}


def test_an_abandoned_recall_is_repeated(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, scope(0), b"a", b"b")
        topic = topic_of(store)
        assert store.begin(topic, scope(0, run=1))[1] is not None
        _, missing = store.begin(topic, scope(0, run=1))
        assert missing is not None
        missing.read(topic.partitions)
        begin(store, scope(0, run=2))
        with pytest.raises(RefusedRecords, match="another run of job 'job' began during the read"):
            topic.jobs.install(missing, 0)
        assert send(store, scope(0, run=2), b"a", b"b").skipped == 2


def test_a_lower_step_is_rejected_and_a_higher_one_starts(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for step in (1, 2):
            write(store, scope(step=step), b"x")
        with pytest.raises(RefusedRecords, match="step 1 of job 'job' came after its step 2"):
            begin(store, scope(step=1, run=1))
        with pytest.raises(RefusedRecords, match="step 1 of job 'job' came after its step 2"):
            store.end_step("t", "job", 1, RUNS[0])
        assert values_of(store) == {b"x": 2}


def test_an_ended_step_accepts_no_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        begin(store, scope(0))
        send(store, scope(0), b"x")
        store.end_step("t", "job", 1, RUNS[0])
        store.end_step("t", "job", 1, RUNS[0])
        assert send(store, scope(0), b"late").skipped == 1
    with opened(tmp_path) as store:
        for run in (0, 1):
            assert begin(store, scope(7, run=run))
        store.end_step("t", "job", 3, RUNS[0])
        assert begin(store, scope(step=3))
        store.end_step("nowhere", "job", 1, RUNS[0])
        assert list(store.topics) == ["t"]
        assert values_of(store) == {b"x": 1}


def test_only_the_current_run_of_a_step_may_end_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        begin(store, scope())
        begin(store, scope(run=1))
        with pytest.raises(RefusedRecords, match="was superseded"):
            store.end_step("t", "job", 1, RUNS[0])
        for job, step, run in (("a/b", 1, RUNS[0]), ("job", -1, RUNS[0]), ("job", 1, "?")):
            with pytest.raises(RefusedRecords):
                store.end_step("t", job, step, run)


def test_completed_parts_are_recognised_and_take_no_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for part in (5, 1, 3, 1):
            write(store, scope(part), b"x")
        jobs = topic_of(store).jobs
        assert jobs._jobs["job"].parts == [1, 3, 5]
        assert jobs._ledgers["job"].size == 0
        assert send(store, scope(3), b"x", b"whatever").skipped == 2
        assert not begin(store, scope(2))
        assert values_of(store) == {b"x": 3}


def test_a_step_keeps_its_mode(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        begin(store, scope())
        with pytest.raises(RefusedRecords, match="was begun with content ids"):
            begin(store, scope(run=1, unique=True))
        begin(store, scope(step=2, unique=True))


def test_ids_of_idle_jobs_are_evicted_and_read_back(tmp_path: Path) -> None:
    first, second = (WriteScope(name, 1, RUNS[0], 0) for name in ("first", "second"))
    with opened(tmp_path, IngestSettings(low_water=0, max_ids=4)) as store:
        begin(store, first)
        send(store, first, b"a", b"b", b"c")
        begin(store, second)
        send(store, second, b"a", b"b")
        assert topic_of(store).jobs.ids == 2
        (submission,) = commit(store, (first, records([b"a"], ids_of([b"a"]))))
        assert "send all rows of this part again" in str(submission.fault)
        begin(store, first)
        for value in (b"c", b"b", b"a"):
            send(store, first, value)
        complete(store, first)
        assert values_of(store) == Counter({b"a": 2, b"b": 2, b"c": 1})


def test_rows_whose_ids_exceed_memory_are_stored(tmp_path: Path) -> None:
    jobs = [WriteScope(name, 1, RUNS[0], 0) for name in ("first", "second")]
    rows = records([b"a", b"b"], ids_of([b"a", b"b"]))
    with opened(tmp_path, IngestSettings(low_water=0, max_ids=3)) as store:
        for each in jobs:
            begin(store, each)
        for _ in range(3):
            assert all(
                each.fault is None for each in commit(store, *((each, rows) for each in jobs))
            )
            for each in jobs:
                begin(store, each)
        assert values_of(store) == Counter([b"a", b"b", b"a", b"b"])


def test_a_step_may_have_more_rows_than_ids_fit_in_memory(tmp_path: Path) -> None:
    limits = IngestSettings(low_water=0, max_ids=4)
    rows = {part: [b"%d %d" % (part, number) for number in range(3)] for part in range(5)}
    wanted = Counter(value for values in rows.values() for value in values)
    with opened(tmp_path, limits) as store:
        for part, values in rows.items():
            begin(store, scope(part))
            send(store, scope(part), *values)
        assert topic_of(store).jobs.ids <= 4
        assert values_of(store) == wanted
    with opened(tmp_path, limits) as store:
        for part, values in rows.items():
            begin(store, scope(part))
            for value in reversed(values):
                assert send(store, scope(part), value).skipped == 1
        begin(store, scope(5))
        send(store, scope(5), b"new")
        assert values_of(store) == wanted + Counter([b"new"])


def test_only_expired_jobs_are_evicted(tmp_path: Path) -> None:
    now = [1_000_000.0]
    limits = IngestSettings(low_water=0, max_jobs=2, producer_memory=10 * HOUR)
    with opened(tmp_path, limits, clock=lambda: now[0]) as store:

        def begin_job(name: str, step: int = 0) -> None:
            begin(store, WriteScope(name, step, RUNS[0], 0))

        begin_job("batch")
        store.end_step("t", "batch", 0, RUNS[0])
        begin_job("stream", step=1)
        with pytest.raises(RefusedRecords, match=r"2 jobs write to this topic already \(max_jobs"):
            begin_job("third")
        begin_job("stream", step=2)
        now[0] += 2 * HOUR
        begin_job("third")
        with pytest.raises(RefusedRecords, match="max_jobs"):
            begin_job("fourth")
        now[0] += 11 * HOUR
        begin_job("fourth")
        assert list(topic_of(store).jobs._jobs) == ["fourth"]


def test_an_ordinary_producer_cannot_pass_for_a_job(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        begin(store, scope())
        with pytest.raises(RefusedRecords, match="belongs to a job; use another id"):
            store.register(topic_of(store), scope().producer_id)
        store.register(topic_of(store), "other.1.00000001.0")


@pytest.mark.parametrize("what", ["pwritev", "fdatasync"])
def test_a_group_that_fails_is_known_not_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as store:
        begin(store, scope())
        send(store, scope(), b"a")
        with monkeypatch.context() as patch:
            patch.setattr(os, what, full)
            (submission,) = commit(store, (scope(), records([b"b"], ids_of([b"b"]))))
        assert "nothing of these records was stored" in str(submission.fault)
        (submission,) = commit(store, (scope(), last()))
        assert "send all rows of this part again" in str(submission.fault)
        begin(store, scope())
        assert send(store, scope(), b"b", b"a").skipped == 1
        begin(store, scope(run=1))
        with monkeypatch.context() as patch:
            patch.setattr(os, what, full)
            commit(store, (scope(run=1), records([b"c"], ids_of([b"c"]))))
        with pytest.raises(RefusedRecords, match="by a new run"):
            begin(store, scope(run=1))
        write(store, scope(run=2), b"a", b"b", b"c")
        assert values_of(store) == {b"a": 1, b"b": 1, b"c": 1}


def test_a_part_is_complete_only_when_it_is_journaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as store:
        begin(store, scope())
        send(store, scope(), b"a")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            (submission,) = commit(store, (scope(), last()))
            with pytest.raises(IngestError, match=r"jobs\.log could not be written"):
                begin(store, scope(run=1))
        assert "jobs.log could not be written" in str(submission.fault)
        assert not begin(store, scope())
        complete(store, scope())
        assert begin(store, scope())


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("jobs.json", b'{"checksum":1,"content":{}}'),
        ("jobs.log", b"00000000 {}\n00000000 {}\n"),
    ],
)
def test_a_damaged_journal_rejects_jobs_and_no_other_producer(
    tmp_path: Path, file: str, content: bytes
) -> None:
    with opened(tmp_path) as store:
        write(store, scope(), b"a")
    (tmp_path / "t" / "jobs.log").unlink(missing_ok=True)
    fill(tmp_path / "t" / file, content)
    with opened(tmp_path) as store:
        with pytest.raises(RefusedRecords, match="progress of the jobs of this topic is unknown"):
            begin(store, scope(1))
        with pytest.raises(RefusedRecords, match="the progress of the jobs"):
            store.end_step("t", "job", 1, RUNS[0])
        stored(store, RecordColumns(1, [b"plain"], [0]))
        assert values_of(store) == {b"a": 1, b"plain": 1}


def test_rows_after_a_repair_are_deduplicated(tmp_path: Path) -> None:
    limits = IngestSettings(low_water=0, partitions=1)
    with opened(tmp_path, limits) as store:
        stored(store, RecordColumns(1, [b"%d" % number for number in range(10)], [0] * 10))
        begin(store, scope())
    killed(tmp_path)
    (log,) = files(tmp_path, "*.wal")
    fill(log, b"")
    with opened(tmp_path, limits) as store:
        assert not values_of(store)
        begin(store, scope())
        send(store, scope(), b"a", b"b")
    with opened(tmp_path, limits) as store:
        begin(store, scope())
        assert send(store, scope(), b"b", b"a").skipped == 2


def test_a_job_without_runs_is_damage(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic_of(store)
    write_checked(tmp_path / "t" / "jobs.json", {"job": Job(1, [], False, {}, 0)})
    with opened(tmp_path) as store, pytest.raises(RefusedRecords, match="a job without runs"):
        begin(store, scope())


def test_retention_keeps_rows_of_an_unfinished_step(tmp_path: Path) -> None:
    now = [1_000_000.0]
    limits = IngestSettings(low_water=0, partitions=1, retention_age=1, producer_memory=HOUR)
    with opened(tmp_path, limits, clock=lambda: now[0]) as store:
        stored(store, RecordColumns(1, [b"old"], [0]))
        rolled(store)
        begin(store, scope())
        send(store, scope(), b"a")
        rolled(store)
        now[0] += 10
        assert retain(store) > 0
        assert values_of(store) == {b"a": 1}
        now[0] += 2 * HOUR
        assert retain(store) > 0
        assert values_of(store) == Counter()


def rows(*values: bytes) -> Fingerprint:
    return fingerprint_of(b"".join(ids_of(values)))


def end(store: Store, scope: WriteScope, *values: bytes, **more: Any) -> None:
    """End a step as a server does."""
    topic = topic_of(store)
    what = ("t", scope.job, scope.step, scope.run, rows(*values))
    missing = store.end_step(*what, **more)
    if missing is not None:
        missing.read(topic.partitions)
        store.end_step(*what, **more, read=missing)


def test_a_step_replayed_with_other_rows_is_an_error_and_stores_nothing(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        write(store, scope(0), b"a", b"b", b"b")
        end(store, scope(), b"a", b"b", b"b")
        end(store, scope(), b"b", b"b", b"a")
    with opened(tmp_path) as store:
        assert begin(store, scope(run=1))
        (other,) = commit(store, (scope(run=1), records([b"c"], ids_of([b"c"]))))
        assert (other.fault, other.skipped) == (None, 1)
        end(store, scope(run=1), b"b", b"a", b"b")
        for values, words in (((b"a", b"b", b"c"), "3 different rows"), ((b"a",), "1"), ((), "0")):
            sentence = f"step 1 of job 'job' ended with 3 rows and was replayed with {words}:"
            with pytest.raises(StepConflict, match=sentence):
                end(store, scope(run=1), *values)
        assert values_of(store) == {b"a": 1, b"b": 2}


def test_steps_of_an_older_checkpoint_are_compared_one_by_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for step in range(1, 6):
            write(store, scope(step=step), b"%d" % step)
            end(store, scope(step=step), b"%d" % step)
    with opened(tmp_path) as store:
        for step in (3, 4, 5):
            assert begin(store, scope(step=step, run=1))
            end(store, scope(step=step, run=1), b"%d" % step)
        with pytest.raises(
            StepConflict, match="step 4 of job 'job' ended with 1 rows and was replayed"
        ):
            end(store, scope(step=4, run=1), b"4", b"5")
        write(store, scope(step=6, run=1), b"6")
        assert sum(values_of(store).values()) == 6
        with pytest.raises(RefusedRecords, match="step 0 of job 'job' came after its step 6"):
            begin(store, scope(step=0, run=1))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("unique", [False, True])
def test_a_step_does_not_end_with_rows_of_a_run_that_had_others(
    tmp_path: Path, restarted: bool, unique: bool
) -> None:
    with opened(tmp_path) as store:
        begin(store, scope(unique=unique))
        send(store, scope(unique=unique), b"a", b"b")
        begin(store, scope(run=1, unique=unique))
        send(store, scope(run=1, unique=unique), b"b", b"c")
        if not restarted:
            found = "step 1 of job 'job' has 3 stored rows, but run 00000002 ends it with 2"
            with pytest.raises(StepConflict, match=found):
                end(store, scope(run=1), b"b", b"c")
    with opened(tmp_path) as store:
        with pytest.raises(StepConflict, match="has 3 stored rows"):
            end(store, scope(run=1), b"b", b"c")
        assert topic_of(store).jobs.unfinished()
        end(store, scope(run=1), b"b", b"c", allow_extra=True)
        end(store, scope(run=2), b"b", b"c")
        assert not topic_of(store).jobs.unfinished()


def test_equal_ids_of_a_unique_step_are_one_row_and_no_conflict(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for part in range(2):
            begin(store, scope(part, unique=True))
            send(store, scope(part, unique=True), b"a", b"b")
        end(store, scope(), b"a", b"b", b"a", b"b")
        with pytest.raises(StepConflict, match="ended with 4 rows and was replayed with 2:"):
            end(store, scope(run=1), b"a", b"b")
        assert values_of(store) == {b"a": 1, b"b": 1}


def test_a_unique_step_does_not_end_with_as_many_other_rows_or_none_at_all(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        begin(store, scope(unique=True))
        with pytest.raises(StepConflict, match=r"has 0 stored rows, .*: the server has lost rows"):
            end(store, scope(), b"a", allow_extra=True)
        send(store, scope(unique=True), b"a", b"b")
        begin(store, scope(run=1, unique=True))
        send(store, scope(run=1, unique=True), b"b", b"c")
    with opened(tmp_path) as store:  # rows that the run has not sent again are no longer known
        with pytest.raises(StepConflict, match=r"has 3 stored rows, .* with 3 others: an earlier"):
            end(store, scope(run=1), b"b", b"b", b"c")
        end(store, scope(run=1), b"b", b"b", b"c", allow_extra=True)


def test_rows_that_a_run_has_sent_and_the_server_has_not_are_an_error(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, scope(), b"a")
        with pytest.raises(
            StepConflict, match=r"has 1 stored rows, .* with 2: the server has lost"
        ):
            end(store, scope(), b"a", b"b", allow_extra=True)
        with pytest.raises(StepConflict, match="step 2 of job 'job' has 0 stored rows"):
            end(store, scope(step=2), b"a")
        with pytest.raises(UnknownTopic, match="ends with 1 rows in topic gone"):
            store.end_step("gone", "job", 1, RUNS[0], rows(b"a"))
        end(store, scope(), b"a")
        end(store, scope(step=2))
        with pytest.raises(StepConflict, match="step 2 of job 'job' ended with 0 rows"):
            end(store, scope(step=2, run=1), b"a")


def test_steps_without_fingerprints_are_ended_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        write(store, scope(), b"a")
        store.end_step("t", "job", 1, RUNS[0])
        assert not caplog.text
        end(store, scope(run=1), b"b")
        assert "step 1 of job 'job' was ended again, and the server cannot" in caplog.text
        begin(store, scope(step=2))
        caplog.clear()
        begin(store, scope(step=3))
        assert "step 3 of job 'job' begins before its step 2 has ended" in caplog.text


def test_more_than_a_thousand_jobs_fit_in_a_topic(tmp_path: Path) -> None:
    with opened(tmp_path, IngestSettings(low_water=0, partitions=1)) as store:
        jobs = topic_of(store).jobs
        end(store, WriteScope("first", 3, RUNS[0], 0))
        size = (tmp_path / "t" / "jobs.log").stat().st_size
        with unsynced():
            for number in range(3_000):
                end(store, WriteScope(f"query-{number}", 3, RUNS[0], 0))
        # Each is written once, not all of them each time.
        assert (tmp_path / "t" / "jobs.log").stat().st_size < 3_002 * (size + 10)
    with opened(tmp_path) as store:
        jobs = topic_of(store).jobs
        assert len(jobs._jobs) == 3_001
        assert begin(store, WriteScope("query-17", 3, RUNS[1], 0))
        with pytest.raises(StepConflict, match="step 3 of job 'query-17' ended with 0 rows"):
            end(store, WriteScope("query-17", 3, RUNS[1], 0), b"a")


@contextmanager
def unsynced() -> Iterator[None]:
    """Disable syncs, so that tests do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def test_an_abandoned_step_is_listed_with_the_rows_it_keeps(tmp_path: Path) -> None:
    now = [1_000_000.0]
    limits = IngestSettings(low_water=0, partitions=1, producer_memory=HOUR)
    with opened(tmp_path, limits, clock=lambda: now[0]) as store:
        stored(store, RecordColumns(1, [b"old"], [0]))
        begin(store, scope())
        now[0] += 60
        send(store, scope(), b"a")
        begin(store, WriteScope("other", 0, RUNS[0], 0))
        end(store, WriteScope("other", 0, RUNS[0], 0))
        (info,) = store.info()
        began, used = 1_000_000 * 10**6, 1_000_060 * 10**6
        until = used + HOUR * 10**6
        assert info.steps == [StepInfo("job", 1, 1, began, used, {0: 1}, until)]
        assert info.unfinished_steps == 1
        assert topic_of(store).jobs.needed(0, used) == [1]
        assert topic_of(store).jobs.needed(0, used + 1) == []
    (info,) = DirectoryReader(tmp_path).topics("t")
    assert info.steps == [StepInfo("job", 1, 1, began, began, {0: 1})]


def test_steps_that_keep_rows_are_listed_first(tmp_path: Path) -> None:
    now = [1_000_000.0]
    limits = IngestSettings(low_water=0, partitions=1, producer_memory=HOUR)
    with opened(tmp_path, limits, clock=lambda: now[0]) as store:
        with unsynced():
            for number in range(SHOWN_STEPS + 1):
                begin(store, WriteScope(f"dead-{number}", 0, RUNS[0], 0))
        now[0] += HOUR + 1
        begin(store, WriteScope("dying", 0, RUNS[0], 0))
        now[0] += 60
        begin(store, WriteScope("alive", 0, RUNS[0], 0))
        (info,) = store.info()
        assert [step.job for step in info.steps[:3]] == ["dying", "alive", "dead-0"]
        assert len(info.steps) == SHOWN_STEPS
        assert info.unfinished_steps == SHOWN_STEPS + 3


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), SEEDS.map(random.Random))
@settings(max_examples=15, deadline=None)
def test_the_stored_rows_are_the_expected_rows(
    tmp_path_factory: pytest.TempPathFactory, contents: list[int], rng: random.Random
) -> None:
    directory = tmp_path_factory.mktemp("data")
    wanted = [b"row %d" % each for each in contents]
    store = open_store(directory)
    run = 0
    parts: list[list[bytes]] = []

    def share_out() -> None:
        nonlocal run, parts
        run += 1
        count = rng.randint(1, 3)
        parts = shared_out(wanted, [rng.randrange(count) for _ in wanted], count)

    def attempt(part: int, dies: bool) -> None:
        values = rng.sample(parts[part], len(parts[part]))
        who = scope(part, run=run)
        if begin(store, who):
            return
        if dies:
            values = values[: rng.randint(0, len(values))]
        ids = ids_of(values)
        at = rng.randint(0, len(values))
        commit(store, (who, records(values[:at], ids[:at])), (who, records(values[at:], ids[at:])))
        if not dies:
            complete(store, who)

    try:
        share_out()
        for _ in range(rng.randint(1, 8)):
            try:
                attempt(rng.randrange(len(parts)), dies=rng.random() < 0.6)
            except RefusedRecords:
                share_out()
            if rng.random() < 0.2:
                share_out()
            if rng.random() < 0.3:
                rolled(store)
            if rng.random() < 0.3:
                store.close()
                killed(directory)
                store = open_store(directory)
            assert values_of(store) <= Counter(wanted)
        share_out()
        for part in range(len(parts)):
            attempt(part, dies=False)
        assert values_of(store) == Counter(wanted)
    finally:
        store.close()
