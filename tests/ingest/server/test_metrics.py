"""The metrics of a server, in the text format of Prometheus."""

from __future__ import annotations

import math
import re

from aqueduct.ingest.errors import RefusedRecords
from aqueduct.ingest.protocol import PartitionInfo, StepInfo, TopicInfo
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.metrics import BUCKETS, Metrics, Now
from aqueduct.ingest.server.topic import Submission
from tests.ingest.lab import Lab

_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="[^"\\\n]*",?)*)\})? (\S+)')


def parse(text: str) -> dict[str, dict[str, float]]:
    """Return the samples by metric and labels; raise for what Prometheus would reject."""
    kinds: dict[str, str] = {}
    samples: dict[str, dict[str, float]] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            assert what in ("HELP", "TYPE")
            if what == "TYPE":
                assert name not in kinds
                assert rest in ("counter", "gauge", "histogram")
                kinds[name] = rest
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        family = re.sub("_(bucket|sum|count)$", "", name)
        assert name in kinds or kinds.get(family) == "histogram", name
        assert name.endswith("_total") == (kinds.get(name) == "counter")
        known = samples.setdefault(name, {})
        assert (labels or "") not in known
        known[labels or ""] = float(value)
    return samples


def submission(count: int, skipped: int = 0, offsets: dict[int, int] | None = None) -> Submission:
    records = RecordColumns(1, [b"x"] * count, [0] * count)
    return Submission("p", records, offsets or {}, skipped)


def test_records_duplicates_and_refusals_are_counted_apart() -> None:
    metrics = Metrics()
    metrics.committed(submission(5, 2, {0: 0}), 0.002)
    metrics.committed(submission(3, 3), 0.002)
    refused = submission(7)
    refused.fault = RefusedRecords("no")
    metrics.committed(refused, 0.002)
    assert (metrics.records, metrics.duplicates, metrics.refused) == (3, 5, 7)
    assert (metrics.bytes, metrics.commits) == (3, 2)  # without duplicates


def test_the_text_can_be_parsed_and_buckets_add_up() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.02, 7.0):
        metrics.committed(submission(1, 0, {0: 0}), seconds)
    topics = [
        TopicInfo("a.b-c_d", [PartitionInfo(0, 0, 12, size=34), PartitionInfo(1, 0, 0)]),
        TopicInfo("other", [PartitionInfo(0, 5, 6)]),
    ]
    samples = parse(metrics.text(topics, Now(0, 0, 0, 0.0)))
    buckets = samples["aqueduct_ingest_commit_seconds_bucket"]
    bounds = [float(label.split('"')[1]) for label in buckets]
    assert bounds == [*BUCKETS, math.inf]
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets['le="0.001"'] == 2
    assert buckets['le="+Inf"'] == 4 == samples["aqueduct_ingest_commit_seconds_count"][""]
    assert samples["aqueduct_ingest_next_offset"]['topic="a.b-c_d",partition="0"'] == 12
    assert samples["aqueduct_ingest_partition_bytes"]['topic="a.b-c_d",partition="0"'] == 34
    assert len(samples["aqueduct_ingest_next_offset"]) == 3


async def test_a_server_counts_records_rows_and_segments(lab: Lab) -> None:
    async with lab.serve() as server:
        assert parse(server.metrics_text())["aqueduct_ingest_records_total"] == {"": 0}
        async with lab.producer(server) as producer:
            for _ in range(10):
                await producer.send(b"12345")
        await lab.rows(server)
        samples = parse(server.metrics_text())
        assert server.statistics() is server.metrics
    assert samples["aqueduct_ingest_records_total"] == {"": 10}
    assert samples["aqueduct_ingest_rows_read_total"] == {"": 10}
    assert samples["aqueduct_ingest_bytes_total"][""] >= 50
    assert samples["aqueduct_ingest_next_offset"]['topic="topic",partition="0"'] == 10


async def test_metrics_report_the_current_state(lab: Lab) -> None:
    async with lab.serve(partitions=1) as server, lab.producer(server) as producer:
        for _ in range(10):
            await producer.send(b"12345")
        await producer.flush()
        async with lab.reader(server) as reader:
            await reader.advance("reports", "topic", {0: 4})
        samples = parse(server.metrics_text())
        assert samples["aqueduct_ingest_streams"] == {"": 1}
        assert samples["aqueduct_ingest_topics_out_of_use"] == {"": 0}
        assert samples["aqueduct_ingest_free_bytes"][""] > 0
        assert samples["aqueduct_ingest_log_bytes"][""] > 50
        where = 'topic="topic",partition="0",reader="reports"'
        assert samples["aqueduct_ingest_reader_lag"] == {where: 6}


def test_topics_out_of_use_are_counted_once() -> None:
    parts = [PartitionInfo(0, 0, 0, fault="bad"), PartitionInfo(1, 0, 0, fault="bad")]
    topics = [TopicInfo("a", parts), TopicInfo("b", [], fault="bad"), TopicInfo("c", [])]
    samples = parse(Metrics().text(topics, Now(0, 0, 0, 0.0)))
    assert samples["aqueduct_ingest_topics_out_of_use"] == {"": 2}


def test_unfinished_steps_are_shown_with_the_rows_they_keep() -> None:
    parts = [PartitionInfo(0, 10, 100), PartitionInfo(1, 0, 50)]
    steps = [
        StepInfo("gone", 1, 1, 0, 100_000_000, {0: 0, 1: 5}, 900_000_000),
        StepInfo("dead", 3, 2, 0, 200_000_000, {0: 70}, 1_200_000_000),
    ]
    topics = [TopicInfo("a", parts, steps=steps, unfinished_steps=2), TopicInfo("b", parts)]
    samples = parse(Metrics().text(topics, Now(0, 0, 0, 1_000.0)))
    assert samples["aqueduct_ingest_unfinished_steps"] == {'topic="a"': 2, 'topic="b"': 0}
    idle = samples["aqueduct_ingest_unfinished_step_idle_seconds"]
    assert idle == {'topic="a"': 900, 'topic="b"': 0}
    kept = samples["aqueduct_ingest_unfinished_step_rows"]
    assert kept['topic="a",partition="0"'] == 30
    assert kept['topic="a",partition="1"'] == 50
    assert kept['topic="b",partition="0"'] == 0
