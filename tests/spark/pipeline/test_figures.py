"""Figures of two tables: counts, late records, latency and measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from aqueduct.spark.pipeline.figures import BINS, compute, nice_width
from aqueduct.spark.source.offsets import TopicPartition

pytestmark = pytest.mark.xdist_group("spark")

START = 1_767_323_040
WHERE = TopicPartition("telemetry", 0)


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> tuple[str, str]:
    """Twenty rows, one each half second; one of them ten minutes old and in no window."""
    sent = f.timestamp_micros(((f.lit(START) + f.col("id") / 2) * 1e6).cast("long"))
    rows = spark.range(20).select(
        f.lit("one").alias("device"),
        f.lit("ordered").alias("mode"),
        f.col("id").alias("number"),
        f.when(f.col("id") == 7, f.timestamp_seconds(f.lit(START - 600)))
        .otherwise(sent)
        .alias("event_time"),
        sent.alias("sent_time"),
        f.col("id").cast("double").alias("value"),
        f.lit("telemetry").alias("topic"),
        f.lit(0).alias("partition"),
        f.col("id").alias("offset"),
    )
    rows.write.parquet(str(tmp_path / "readings"))
    windows = (
        rows.where("number != 7")
        .groupBy(f.window("event_time", "5 seconds").alias("w"), "device", "mode")
        .agg(
            f.count("value").alias("readings"),
            f.avg("value").alias("mean"),
            f.min("value").alias("least"),
            f.max("value").alias("greatest"),
        )
        .select("w.start", "w.end", "device", "mode", "readings", "mean", "least", "greatest")
    )
    windows.write.parquet(str(tmp_path / "windows"))
    return str(tmp_path / "readings"), str(tmp_path / "windows")


def test_figures_account_for_rows_windows_and_time(
    spark: SparkSession, tables: tuple[str, str]
) -> None:
    # Rows 0 to 9 are in a batch that is done at 6 s, the others in one that is done at 12 s.
    found = compute(spark, *tables, {WHERE: ([10, 20], [START + 6.0, START + 12.0])})
    assert (found.rows, found.distinct) == ({"ordered": 20}, {"ordered": 20})
    assert (found.windowed, found.too_late) == ({"ordered": 19}, {"ordered": 1})
    assert (found.windows, found.start, found.step) == (2, START, 1.0)
    assert found.rates == {"ordered": [(at, 2.0) for at in range(9)]}
    assert found.latency is not None
    # Row 0 took 6 s, row 9 took 1.5 s, row 10 took 7 s, row 19 took 2.5 s.
    assert found.latency.p50 == 4.25
    assert list(found.latencies[0]) == [0, 5.75, 5.975]
    assert sum(count for _, _, count in found.histogram) == 20
    assert found.histogram[-1][1] >= 7.0
    points = found.devices["one"]
    assert [(least, greatest) for _, _, least, greatest in points] == [(0.0, 9.0), (10.0, 19.0)]


def test_empty_tables_have_figures(spark: SparkSession, tables: tuple[str, str]) -> None:
    for table in tables:
        spark.read.parquet(table).limit(0).write.parquet(f"{table}-empty")
    found = compute(spark, f"{tables[0]}-empty", f"{tables[1]}-empty", {})
    assert (found.rows, found.windows, found.latency) == ({}, 0, None)


def test_bin_widths_are_round_numbers() -> None:
    for most in (0.004, 0.37, 1.0, 12.0, 480.0):
        assert most / nice_width(most / BINS) <= BINS
