"""The two tables, computed from rows of the source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from aqueduct.spark.pipeline.settings import PipelineError, PipelineSettings
from aqueduct.spark.pipeline.tables import Tables, parse, readings, windows

pytestmark = pytest.mark.xdist_group("spark")

START = 1_767_323_040


def row(number: int, mode: str = "ordered", event: float | None = 0.0, **more: Any) -> Any:
    moment = None if event is None else int((START + event) * 1e6)
    record = {
        "device": "one",
        "mode": mode,
        "number": number,
        "event": moment,
        "sent": int((START + number) * 1e6),
        "value": float(number),
        "late": "",
    }
    value = json.dumps(record).encode()
    return (more.get("producer_id", "mine"), "telemetry", 0, number, value)


@pytest.fixture
def records(spark: SparkSession) -> DataFrame:
    rows = [
        *(row(number, event=number) for number in range(10)),
        row(10, "mark", 3.0),
        row(11, "mark", None),
        row(12, producer_id="of another"),
    ]
    schema = "producer_id string, topic string, partition int, offset long, value binary"
    return parse(spark.createDataFrame(rows, schema), "mine")


class ProgressReport:
    """A progress report of a query."""

    def __init__(self, number: int) -> None:
        progress = {
            "batchId": number,
            "timestamp": "2026-01-02T03:04:05.000Z",
            "durationMs": {"addBatch": 1, "triggerExecution": 2},
            "sources": [{"endOffset": {"version": 1, "topics": {"telemetry": {"0": number}}}}],
            "observedMetrics": {"sent": {"rows": 10}},
        }
        self.json = json.dumps(progress)


class Fast:
    """A query that does several batches between two polls."""

    isActive = True  # noqa: N815 -- Spark's name

    def __init__(self) -> None:
        self.recentProgress: list[ProgressReport] = []

    @property
    def lastProgress(self) -> ProgressReport | None:  # noqa: N802 -- Spark's name
        return self.recentProgress[-1] if self.recentProgress else None


class Stopped:
    """A query that has failed."""

    lastProgress = None  # noqa: N815 -- Spark's name
    isActive = False  # noqa: N815 -- Spark's name

    def exception(self) -> Exception:
        return ValueError("the disk is full\n" + 1_000 * "at org.apache.spark ")


def test_a_failed_query_is_reported_with_the_reason(tmp_path: Path) -> None:
    nothing: Any = None
    tables = Tables(nothing, PipelineSettings(out=tmp_path), {}, {}, "mine")
    tables._queries["readings"] = Stopped()  # type: ignore[assignment]
    with pytest.raises(PipelineError, match="table readings ended: the disk is full") as raised:
        tables.poll()
    assert len(str(raised.value)) < 700


def test_no_batch_is_missed_between_two_polls(tmp_path: Path) -> None:
    nothing: Any = None
    tables = Tables(nothing, PipelineSettings(out=tmp_path), {}, {}, "mine")
    query = Fast()
    tables._queries["readings"] = query  # type: ignore[assignment]
    history = tables.progress["readings"]
    for batches in (0, 1, 2, 7, 7, 9):
        query.recentProgress = [ProgressReport(number) for number in range(batches)][-5:]
        tables.poll()
        assert (history.batches, history.rows) == (batches, 10 * batches)


def test_readings_has_each_record_of_this_run_and_no_markers(records: DataFrame) -> None:
    found = readings(records).orderBy("offset").collect()
    assert [row["number"] for row in found] == list(range(10))
    assert found[3]["event_time"].astimezone(UTC) == datetime.fromtimestamp(START + 3, UTC)
    assert (found[3]["value"], found[3]["device"], found[3]["offset"]) == (3.0, "one", 3)


def test_windows_has_aggregates_of_five_seconds_and_no_markers(records: DataFrame) -> None:
    found = windows(records).orderBy("start").collect()
    assert [(row["readings"], row["mean"], row["least"], row["greatest"]) for row in found] == [
        (5, 2.0, 0.0, 4.0),
        (5, 7.0, 5.0, 9.0),
    ]
    assert {(row["device"], row["mode"]) for row in found} == {("one", "ordered")}
