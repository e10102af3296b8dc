"""Batches as a query tells of them: how far they came, when they were done, how long rows took."""

from __future__ import annotations

from typing import Any

from aqueduct.spark.pipeline.progress import QueryProgress, read_batch
from aqueduct.spark.source.offsets import TopicPartition

FIRST, SECOND = TopicPartition("telemetry", 0), TopicPartition("telemetry", 1)


def progress(number: int, ends: tuple[int, int], rows: int = 3, **more: Any) -> dict[str, Any]:
    return {
        "batchId": number,
        "timestamp": f"2026-01-02T03:04:{number:02d}.500Z",
        "durationMs": {"addBatch": 100, "triggerExecution": 250},
        "sources": [
            {
                "endOffset": {
                    "version": 1,
                    "topics": {"telemetry": {"0": ends[0], "1": ends[1]}},
                }
            }
        ],
        "observedMetrics": {"sent": {"rows": rows, "middle": 1_767_323_040_000_000}},
        **more,
    }


def test_a_batch_is_done_when_its_trigger_is() -> None:
    batch = read_batch(progress(1, (10, 20)))
    assert batch is not None
    assert batch.committed == 1_767_323_041.75
    assert batch.latency_p50 == 1.75
    assert batch.ends == {FIRST: 10, SECOND: 20}


def test_a_look_without_new_rows_is_no_batch() -> None:
    assert read_batch(progress(1, (1, 1), durationMs={"triggerExecution": 1})) is None


def test_a_batch_of_marks_has_no_latency() -> None:
    batch = read_batch(progress(1, (1, 1), observedMetrics={"sent": {"rows": 0, "middle": None}}))
    assert batch is not None
    assert (batch.rows, batch.latency_p50) == (0, None)
    assert read_batch(progress(1, (1, 1), observedMetrics=None)) is not None


def test_a_history_takes_each_batch_once() -> None:
    history = QueryProgress()
    for one in (progress(0, (5, 5)), progress(0, (5, 5)), progress(1, (9, 7))):
        history.add(one)
    assert (history.batches, history.rows, history.last) == (2, 6, 1)
    assert history.latency_p50 == 1.75


def test_a_history_knows_that_it_has_not_heard_of_a_batch() -> None:
    history = QueryProgress()
    assert not history.misses(progress(0, (5, 5)))
    assert history.misses(progress(1, (5, 5)))
    history.add(progress(0, (5, 5)))
    assert not history.misses(progress(0, (5, 5)))
    assert not history.misses(progress(1, (5, 5), durationMs={"triggerExecution": 1}))
    assert history.misses(progress(2, (5, 5), durationMs={"triggerExecution": 1}))


def test_what_is_reached_is_behind_the_row_of_each_partition() -> None:
    history = QueryProgress()
    assert not history.has_reached({FIRST: 0})
    history.add(progress(0, (5, 7)))
    assert history.has_reached({FIRST: 4, SECOND: 6})
    assert not history.has_reached({FIRST: 5, SECOND: 6})


def test_commits_rise_and_leave_out_what_a_batch_did_not_touch() -> None:
    history = QueryProgress()
    for number, ends in enumerate([(5, 5), (5, 9), (8, 9)]):
        history.add(progress(number, ends))
    assert {where: list(ends) for where, (ends, _) in history.commits().items()} == {
        FIRST: [5, 8],
        SECOND: [5, 9],
    }
