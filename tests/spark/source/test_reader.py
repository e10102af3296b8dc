"""The readers, called without Spark: batches depend only on their offsets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import StringType, StructField, StructType

from aqueduct.spark.errors import DataLoss, SourceError, WrongOption
from aqueduct.spark.source import fetch
from aqueduct.spark.source.reader import BatchReader, StreamReader
from aqueduct.spark.source.rows import row_schema
from tests.spark.landing import Landing

ROWS = row_schema(include_headers=True)


@pytest.fixture(autouse=True)
def no_retry_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "RETRY_DELAYS", (0.0, 0.0))


def batch(landing: Landing, **more: str) -> BatchReader:
    return BatchReader({"path": landing.path, "subscribe": "logs", **more}, ROWS)


def stream(landing: Landing, **more: str) -> StreamReader:
    given = {"path": landing.path, "startingOffsets": "earliest", **more}
    given |= {} if "subscribePattern" in more else {"subscribe": "logs"}
    return StreamReader(given, ROWS)


def rows(reader: BatchReader | StreamReader, partitions: Any) -> list[tuple[str, int, int]]:
    """Return the rows that tasks read, each with its own copy of the reader."""
    return [
        (row["topic"], row["partition"], row["offset"])
        for partition in pickle.loads(pickle.dumps(partitions))
        for read in pickle.loads(pickle.dumps(reader)).read(partition)
        for row in read.to_pylist()
    ]


def everything(landing: Landing, *topics: str) -> list[tuple[str, int, int]]:
    return [
        (topic, partition, offset)
        for topic in topics
        for partition, end in landing.ends(topic).items()
        for offset in range(end)
    ]


def positions(landing: Landing, **ends: int) -> str:
    return json.dumps({"logs": {name.removeprefix("p"): at for name, at in ends.items()}})


def test_a_batch_has_every_row_once(landing: Landing) -> None:
    landing.write("logs", 40)
    landing.write("logs", 40, roll=False)
    reader = batch(landing)
    assert rows(reader, reader.partitions()) == everything(landing, "logs")
    many = batch(landing, minPartitions="7")
    partitions = many.partitions()
    assert len(partitions) == 7
    assert rows(many, partitions) == everything(landing, "logs")


def test_a_batch_can_start_and_end_at_any_offset(landing: Landing) -> None:
    landing.write("logs", 80)
    reader = batch(
        landing,
        startingOffsets=positions(landing, p0=3, p1=-2),
        endingOffsets=positions(landing, p0=5, p1=-1),
    )
    end = landing.ends("logs")[1]
    expected = [("logs", 0, 3), ("logs", 0, 4)] + [("logs", 1, at) for at in range(end)]
    assert rows(reader, reader.partitions()) == expected


def test_a_batch_can_start_at_a_timestamp(landing: Landing) -> None:
    landing.write("logs", 40)
    before = landing.ends("logs")
    landing.write("logs", 40)
    reader = batch(landing, startingTimestamp="1001500")
    expected = [row for row in everything(landing, "logs") if row[2] >= before[row[1]]]
    assert rows(reader, reader.partitions()) == expected
    later = batch(landing, startingTimestamp="99000000")
    assert rows(later, later.partitions()) == []


def test_a_task_without_an_input_partition_reads_nothing(landing: Landing) -> None:
    assert list(batch(landing).read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"startingOffsets": '{"logs": {"0": 1}}'}, "none for logs partition 1; -2 is the earl"),
        ({"startingOffsets": '{"x": {"0": 1}}'}, "names x partition 0, which is not subscribed"),
        ({"endingOffsets": '{"logs": {"0": 1, "1": 1, "2": 1}}'}, "names logs partition 2"),
    ],
)
def test_offsets_must_match_the_subscribed_partitions(
    landing: Landing, more: dict[str, str], fault: str
) -> None:
    landing.write("logs", 10)
    with pytest.raises(WrongOption, match=fault):
        batch(landing, **more).partitions()


def test_a_batch_with_a_pattern_that_matches_no_topic_is_an_error(landing: Landing) -> None:
    landing.write("logs", 10)
    reader = BatchReader({"path": landing.path, "subscribePattern": "log"}, ROWS)
    with pytest.raises(SourceError, match=r"option subscribePattern: no topic on .* matches 'log'"):
        reader.partitions()


def test_missing_rows_are_data_loss_before_the_job_starts(landing: Landing) -> None:
    landing.write("logs", 40)
    gone = landing.ends("logs")[0]
    landing.write("logs", 40)
    landing.drop("logs", 0)
    start = positions(landing, p0=1, p1=0)
    with pytest.raises(DataLoss, match=f"logs partition 0: offsets 1 up to .* offsets {gone} up"):
        batch(landing, startingOffsets=start).partitions()
    reader = batch(landing, startingOffsets=start, failOnDataLoss="false")
    expected = [row for row in everything(landing, "logs") if row[1] == 1 or row[2] >= gone]
    assert rows(reader, reader.partitions()) == expected
    beyond = positions(landing, p0=-1, p1=1_000)
    with pytest.raises(DataLoss, match="logs partition 1: offsets 0 up to 1000"):
        batch(landing, endingOffsets=beyond).partitions()


@pytest.mark.parametrize("file", ["part=0/manifest.json", "topic.json"])
def test_a_damaged_topic_is_reported_before_the_job_starts(landing: Landing, file: str) -> None:
    landing.write("logs", 10)
    path = landing.directory / "logs" / file
    path.write_text("{}")
    with pytest.raises(SourceError, match=file):
        batch(landing).partitions()


def test_unknown_columns_are_rejected(landing: Landing) -> None:
    wrong = StructType([StructField("name", StringType())])
    given = {"path": landing.path, "subscribe": "logs"}
    with pytest.raises(SourceError, match="there is no column 'name'"):
        BatchReader(given, wrong)
    with pytest.raises(SourceError, match="there is no column 'name'"):
        StreamReader(given, wrong).initialOffset()


def run(
    reader: StreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    """Run one batch; return its end offsets and its rows."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return end, rows(reader, reader.partitions(start, end))


def test_a_stream_reads_only_new_rows(landing: Landing) -> None:
    landing.write("logs", 40)
    reader = stream(landing)
    at, first = run(reader, reader.initialOffset())
    assert first == everything(landing, "logs")
    assert run(reader, at) == (at, [])
    landing.write("logs", 40, roll=False)
    at, second = run(reader, at)
    assert sorted(first + second) == everything(landing, "logs")
    assert reader.reportLatestOffset() == at


def test_a_stream_starts_at_the_latest_offset_by_default(landing: Landing) -> None:
    landing.write("logs", 40)
    reader = stream(landing, startingOffsets="latest")
    start = reader.initialOffset()
    assert run(reader, start) == (start, [])


def test_a_planned_batch_is_the_same_in_another_process(landing: Landing) -> None:
    landing.write("logs", 40)
    reader = stream(landing, minPartitions="5")
    start = reader.initialOffset()
    end, first = run(reader, start)
    landing.write("logs", 40)
    again = stream(landing, minPartitions="5")
    kept = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    assert again.partitions(*kept) == reader.partitions(start, end)
    assert rows(again, again.partitions(*kept)) == first


def test_a_row_limit_is_shared_by_all_partitions(landing: Landing) -> None:
    landing.write("logs", 40)
    reader = stream(landing, maxOffsetsPerTrigger="10")
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    at, seen = reader.initialOffset(), []
    sizes = []
    while (batch_ := run(reader, at))[1]:
        at, more = batch_
        sizes.append(len(more))
        seen += more
        if len(sizes) == 1:
            assert [sum(row[1] == part for row in more) for part in (0, 1)] == [5, 5]
    assert sizes == [10, 10, 10, 10]
    assert sorted(seen) == everything(landing, "logs")


def test_a_byte_limit_applies_together_with_a_row_limit(landing: Landing) -> None:
    landing.write("logs", 400)
    reader = stream(landing, maxBytesPerTrigger="2000")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(2_000)
    _, some = run(reader, reader.initialOffset())
    assert 0 < len(some) < 400
    both = stream(landing, maxBytesPerTrigger="2000", maxOffsetsPerTrigger="399")
    assert run(both, both.initialOffset())[1] == some
    one = stream(landing, maxBytesPerTrigger="1")
    assert len(run(one, one.initialOffset())[1]) == 1


def test_spark_can_lift_the_limit(landing: Landing) -> None:
    landing.write("logs", 40)
    reader = stream(landing, maxOffsetsPerTrigger="10", maxBytesPerTrigger="10")
    assert len(run(reader, reader.initialOffset(), ReadAllAvailable())[1]) == 40


def test_rows_stored_after_available_now_are_not_read(landing: Landing) -> None:
    landing.write("logs", 40)
    reader = stream(landing, maxOffsetsPerTrigger="30")
    reader.prepareForTriggerAvailableNow()
    landing.write("logs", 40)
    at, first = run(reader, reader.initialOffset())
    at, second = run(reader, at)
    assert len(first + second) == 40
    assert run(reader, at) == (at, [])


def test_a_new_topic_is_read_from_its_beginning(landing: Landing) -> None:
    landing.write("other", 10)
    reader = stream(landing, subscribePattern="log.*")
    at, nothing = run(reader, reader.initialOffset())
    assert nothing == []
    landing.write("logs", 10)
    at, some = run(reader, at)
    landing.write("logs2", 10)
    at, more = run(reader, at)
    assert some + more == everything(landing, "logs", "logs2")


def test_a_stream_reports_rows_that_retention_removed(landing: Landing) -> None:
    landing.write("logs", 40)
    gone = landing.ends("logs")[0]
    reader = stream(landing)
    start = reader.initialOffset()
    landing.write("logs", 40)
    landing.drop("logs", 0)
    with pytest.raises(DataLoss, match="logs partition 0: offsets 0 up to"):
        run(reader, start)
    _, left = run(stream(landing, failOnDataLoss="false"), start)
    assert left == [row for row in everything(landing, "logs") if row[1] == 1 or row[2] >= gone]


def test_a_recreated_topic_is_data_loss(landing: Landing) -> None:
    landing.write("logs", 10)
    far = {"version": 1, "topics": {"logs": {"0": 500, "1": 0}}}
    with pytest.raises(DataLoss, match=r"logs partition 0: offsets .* up to 500 .* read before"):
        run(stream(landing), far)
    careless = stream(landing, failOnDataLoss="false")
    at, _ = run(careless, far)
    assert at["topics"]["logs"]["offsets"]["0"] == landing.ends("logs")[0]


def test_a_topic_that_returns_is_not_read_again(
    landing: Landing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("logs", "other"):
        landing.write(topic, 5)
    reader = stream(landing, subscribePattern=".*", failOnDataLoss="false")
    limit = ReadAllAvailable()
    read = reader.latestOffset(reader.initialOffset(), limit)
    away = (landing.directory / "other").rename(tmp_path / "away")
    for _ in range(2):
        assert reader.latestOffset(read, limit) == read
    assert caplog.text.count("other partition 0: offsets 0 up to") == 1
    away.rename(landing.directory / "other")
    assert reader.latestOffset(read, limit) == read
    landing.write("other", 3)
    more = reader.latestOffset(read, limit)
    assert len(rows(reader, reader.partitions(read, more))) == 3
    away = (landing.directory / "other").rename(tmp_path / "away")
    with pytest.raises(DataLoss, match="other partition 0"):
        stream(landing, subscribePattern=".*").latestOffset(more, limit)


def test_invalid_options_of_a_stream_are_reported_when_it_starts(landing: Landing) -> None:
    landing.write("logs", 10)
    with pytest.raises(WrongOption, match="option endingOffsets is for a batch only"):
        stream(landing, endingOffsets="latest").initialOffset()
    with pytest.raises(SourceError, match="no topic 'nothing'"):
        StreamReader({"path": landing.path, "subscribe": "nothing"}, ROWS).initialOffset()
