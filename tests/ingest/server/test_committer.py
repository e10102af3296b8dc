"""Group commit: concurrent submissions share a group, and each gets an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.committer import Committer
from aqueduct.ingest.server.decoding import RECORD_OVERHEAD
from aqueduct.ingest.server.metrics import Metrics
from aqueduct.ingest.server.topic import Submission
from aqueduct.ingest.settings import IngestSettings
from tests.ingest.storing import open_store


class Bench:
    """A running committer, and the groups that it stored."""

    def __init__(self, directory: Path, **limits: Any) -> None:
        self.store = open_store(directory, IngestSettings(**{"low_water": 0, **limits}))
        self.topic = self.store.topic_to_write("topic", 2)
        self.writer = ThreadPoolExecutor(1)
        self.metrics = Metrics()
        self.committer = Committer(self.store, self.writer, self.metrics)
        self.groups: list[int] = []
        commit = self.store.commit

        def note(groups: Any) -> None:
            self.groups.append(sum(map(len, groups.values())))
            commit(groups)

        self.store.commit = note  # type: ignore[method-assign]
        self.running = asyncio.create_task(self.committer.run())

    async def submit(self, producer: str, sequence: int, value: bytes = b"x") -> Any:
        submission = Submission(producer, RecordColumns(sequence, [value], [0]))
        room = await self.committer.reserve(len(value) + RECORD_OVERHEAD)
        return submission, self.committer.submit(self.topic, submission, room)

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.wait((self.running,))
        self.writer.shutdown()
        self.store.close()


@pytest.fixture
async def benches() -> AsyncIterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        await bench.close()


async def test_concurrent_submissions_share_a_group(tmp_path: Path, benches: list[Bench]) -> None:
    benches.append(bench := Bench(tmp_path, linger=0.05))
    entries = [await bench.submit(f"p{number}", 1) for number in range(20)]
    await asyncio.gather(*(done for _, done in entries))
    assert bench.groups == [20]
    assert sorted(one.offsets[0] for one, _ in entries) == list(range(20))
    assert bench.metrics.records == 20


async def test_a_full_group_does_not_linger(tmp_path: Path, benches: list[Bench]) -> None:
    benches.append(bench := Bench(tmp_path, linger=60.0, group_size=1_000))
    _, done = await bench.submit("p", 1, bytes(2_000))
    async with asyncio.timeout(10):
        await done


async def test_a_submission_waits_for_memory(tmp_path: Path, benches: list[Bench]) -> None:
    benches.append(
        bench := Bench(tmp_path, linger=0.1, max_waiting=1_000, max_record=1_000, group_size=9_999)
    )
    first, _ = await bench.submit("a", 1, bytes(600))
    waiting = [asyncio.create_task(bench.submit(name, 1, bytes(600))) for name in "bcd"]
    gone = asyncio.create_task(bench.submit("e", 1, bytes(600)))
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in waiting)
    gone.cancel()
    for task in waiting:
        submission, done = await task
        await done
        assert submission.fault is None
    assert first.offsets
    assert sum(bench.groups) == 4
    assert "e" not in bench.topic.producers


async def test_a_cancelled_caller_does_not_delay_others(
    tmp_path: Path, benches: list[Bench]
) -> None:
    benches.append(bench := Bench(tmp_path))
    _, left = await bench.submit("a", 1)
    _, stays = await bench.submit("b", 1)
    left.cancel()
    await stays
    assert bench.topic.producers["a"][0] == 1  # stored nevertheless


async def test_a_store_failure_fails_the_group_and_the_next_is_stored(
    tmp_path: Path, benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    benches.append(bench := Bench(tmp_path))

    def fail(_: Any) -> None:
        raise ZeroDivisionError("a fault of the store")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "commit", fail)
        entries = [await bench.submit(name, 1) for name in "ab"]
        await asyncio.gather(*(done for _, done in entries))
    for submission, _ in entries:
        assert "could not be stored: ZeroDivisionError" in str(submission.fault)
    submission, done = await bench.submit("a", 1)
    await done
    assert submission.fault is None
    assert (bench.metrics.refused, bench.metrics.records) == (2, 1)


async def test_reservations_are_granted_in_order_within_the_limit(
    tmp_path: Path, benches: list[Bench]
) -> None:
    benches.append(bench := Bench(tmp_path, max_waiting=1_000, max_record=1_000))
    committer = bench.committer
    first = await committer.reserve(700)
    sizes = [600, 300, 5_000, 10]
    waiting = [asyncio.create_task(committer.reserve(size)) for size in sizes]
    looking = asyncio.create_task(committer.wait_for_room())
    await asyncio.sleep(0)
    assert committer._held == 700
    assert not any(task.done() for task in waiting)  # 300 would fit, and does not overtake 600
    committer.free(first)
    rooms = [await waiting[0], await waiting[1]]
    assert committer._held == 900
    committer.resize(rooms[0], 100)
    assert committer._held == 400
    assert not waiting[2].done()  # one larger than the limit is granted alone
    assert not looking.done()
    for room in rooms:
        committer.free(room)
    alone = await waiting[2]
    assert (committer._held, waiting[3].done()) == (5_000, False)
    committer.free(alone)
    committer.free(await waiting[3])
    await looking
    assert committer._held == 0


async def test_a_cancelled_reservation_makes_room_for_the_next(
    tmp_path: Path, benches: list[Bench]
) -> None:
    benches.append(bench := Bench(tmp_path, max_waiting=1_000, max_record=1_000))
    committer = bench.committer
    first = await committer.reserve(900)
    large, small, granted = (asyncio.create_task(committer.reserve(n)) for n in (500, 50, 40))
    await asyncio.sleep(0)
    large.cancel()
    committer.free(await small)
    await asyncio.sleep(0)
    late = asyncio.create_task(committer.reserve(500))
    await asyncio.sleep(0)
    committer.free(first)
    late.cancel()  # granted, and cancelled before it was woken
    await asyncio.wait((late, granted))
    committer.free(granted.result())
    assert committer._held == 0


async def test_records_are_freed_once_stored_even_if_the_answer_is_not_read(
    tmp_path: Path, benches: list[Bench]
) -> None:
    benches.append(bench := Bench(tmp_path))
    submission, done = await bench.submit("p", 1, bytes(1_000))
    await done
    assert submission.offsets == {0: 0}
    assert submission.records.values == []


async def test_submissions_are_grouped_by_topic_in_order(
    tmp_path: Path, benches: list[Bench]
) -> None:
    benches.append(bench := Bench(tmp_path, linger=0.1))
    commit, seen = bench.store.commit, []

    def note(groups: Any) -> None:
        seen.append({topic.name: list(each) for topic, each in groups.items()})
        commit(groups)

    bench.store.commit = note  # type: ignore[method-assign]
    other = bench.store.topic_to_write("other", 1)
    made = []
    for number, topic in enumerate((bench.topic, other, bench.topic)):
        submission = Submission(f"p{number}", RecordColumns(1, [b"x"], [0]))
        room = await bench.committer.reserve(1)
        made.append((submission, bench.committer.submit(topic, submission, room)))
    await asyncio.gather(*(done for _, done in made))
    assert seen == [{"topic": [made[0][0], made[2][0]], "other": [made[1][0]]}]


async def test_a_failure_after_the_commit_does_not_fail_stored_records(
    tmp_path: Path, benches: list[Bench]
) -> None:
    benches.append(bench := Bench(tmp_path))
    commit = bench.store.commit

    def failing(groups: Any) -> None:
        commit(groups)
        raise RuntimeError("unforeseen")

    bench.store.commit = failing  # type: ignore[method-assign]
    submission, done = await bench.submit("p", 1)
    await done
    assert submission.fault is None
    gap, done = await bench.submit("p", 7)
    await done
    assert "came after 1" in str(gap.fault)


async def test_the_committer_continues_after_an_unexpected_error(
    tmp_path: Path,
    benches: list[Bench],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    benches.append(bench := Bench(tmp_path))

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a fault of the committer")

    for broken in ("_commit", "_linger"):
        with monkeypatch.context() as patch:
            patch.setattr(bench.committer, broken, fail)
            submission, done = await bench.submit(broken.strip("_"), 1)
            if broken == "_commit":
                await done
                assert "ZeroDivisionError" in str(submission.fault)
            else:
                await asyncio.sleep(0.01)
    await done
    submission, done = await bench.submit("a", 1)
    await done
    assert submission.fault is None
    assert "the next one follows" in caplog.text


async def test_closing_fails_waiting_submissions_and_rejects_new_ones(
    tmp_path: Path, benches: list[Bench]
) -> None:
    benches.append(bench := Bench(tmp_path, linger=60.0, max_waiting=1_000, max_record=1_000))
    submission, done = await bench.submit("a", 1, bytes(900))
    late = asyncio.create_task(bench.submit("b", 1, bytes(900)))
    await asyncio.sleep(0.01)
    bench.running.cancel()
    await done
    assert "is closing and stores no more records" in str(submission.fault)
    with pytest.raises(IngestError, match="is closing and stores no more records"):
        await late
