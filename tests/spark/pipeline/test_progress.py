"""Progress of a query: end offsets, commit times and latency of batches."""

from __future__ import annotations

from typing import Any

from aqueduct.spark.pipeline.progress import QueryProgress
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


def test_a_batch_is_committed_when_its_trigger_ends() -> None:
    history = QueryProgress()
    history.add(progress(1, (10, 20)))
    found = {each: (list(ends), list(times)) for each, (ends, times) in history.commits().items()}
    assert found == {
        FIRST: ([10], [1_767_323_041.75]),
        SECOND: ([20], [1_767_323_041.75]),
    }
    assert history.latency_p50 == 1.75


def test_a_trigger_without_new_rows_is_not_a_batch() -> None:
    history = QueryProgress()
    history.add(progress(1, (1, 1), durationMs={"triggerExecution": 1}))
    assert history == QueryProgress()


def test_a_batch_of_markers_has_no_latency() -> None:
    history = QueryProgress()
    history.add(progress(1, (1, 1), observedMetrics={"sent": {"rows": 0, "middle": None}}))
    history.add(progress(2, (2, 2), observedMetrics=None))
    assert (history.batches, history.rows, history.latency_p50) == (2, 0, None)


def test_each_batch_is_counted_once() -> None:
    history = QueryProgress()
    for one in (progress(0, (5, 5)), progress(0, (5, 5)), progress(1, (9, 7))):
        history.add(one)
    assert (history.batches, history.rows, history.last) == (2, 6, 1)
    assert history.latency_p50 == 1.75


def test_missed_batches_are_detected() -> None:
    history = QueryProgress()
    assert not history.misses(progress(0, (5, 5)))
    assert history.misses(progress(1, (5, 5)))
    history.add(progress(0, (5, 5)))
    assert not history.misses(progress(0, (5, 5)))
    assert not history.misses(progress(1, (5, 5), durationMs={"triggerExecution": 1}))
    assert history.misses(progress(2, (5, 5), durationMs={"triggerExecution": 1}))


def test_offsets_are_reached_when_all_partitions_are_past_them() -> None:
    history = QueryProgress()
    assert not history.has_reached({FIRST: 0})
    history.add(progress(0, (5, 7)))
    assert history.has_reached({FIRST: 4, SECOND: 6})
    assert not history.has_reached({FIRST: 5, SECOND: 6})


def test_commits_omit_partitions_without_new_rows() -> None:
    history = QueryProgress()
    for number, ends in enumerate([(5, 5), (5, 9), (8, 9)]):
        history.add(progress(number, ends))
    assert {where: list(ends) for where, (ends, _) in history.commits().items()} == {
        FIRST: [5, 8],
        SECOND: [5, 9],
    }
