"""Compute the figures of the report from the finished tables, with Spark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from aqueduct.spark.pipeline.progress import Commits
from aqueduct.spark.pipeline.settings import WINDOW
from aqueduct.spark.pipeline.summary import Figures, Percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POINTS = 120
"""The most points of a line in a chart."""
BINS = 40
"""The number of bins of the histogram."""
DEVICES = 12
"""The most devices with a chart."""


def compute(spark: SparkSession, readings: str, windows: str, commits: Commits) -> Figures:
    """Compute all figures of the two tables."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(readings)
    aggregates = spark.read.parquet(windows)
    totals = rows.groupBy("mode").agg(
        f.count(f.lit(1)).alias("rows"),
        f.countDistinct("device", "number").alias("distinct"),
        f.min(f.unix_micros("sent_time")).alias("first"),
        f.max(f.unix_micros("sent_time")).alias("last"),
    )
    found = totals.collect()
    counted = {row["mode"]: row["rows"] for row in found}
    windowed = aggregates.groupBy("mode").agg(f.sum("readings").alias("n"), f.count(f.lit(1)))
    in_windows = {row["mode"]: (row["n"], row[2]) for row in windowed.collect()}
    figures = Figures(
        rows=counted,
        distinct={row["mode"]: row["distinct"] for row in found},
        windowed={mode: n for mode, (n, _) in in_windows.items()},
        too_late=_too_late(rows, aggregates),
        windows=sum(count for _, count in in_windows.values()),
        latency=None,
    )
    if not found:
        return figures
    start = min(row["first"] for row in found) / 1e6
    length = max(max(row["last"] for row in found) / 1e6 - start, 1.0)
    return _over_time(figures, rows, aggregates, commits, start, length)


def _too_late(rows: DataFrame, aggregates: DataFrame) -> dict[str, int]:
    """Count the rows that their window does not include, by mode."""
    from pyspark.sql import functions as f

    expected = rows.groupBy(
        f.window("event_time", f"{WINDOW} seconds")["start"].alias("start"), "device", "mode"
    ).agg(f.count(f.lit(1)).alias("expected"))
    both = expected.join(aggregates, ["start", "device", "mode"], "full")
    zero = f.lit(0)
    missing = f.coalesce("expected", zero) - f.coalesce("readings", zero)
    # Clamp at 0, so that a window with too many rows does not hide one with too few.
    late = f.sum(f.greatest(missing, zero))
    found = both.groupBy("mode").agg(late.alias("late")).collect()
    return {row["mode"]: row["late"] for row in found}


def _over_time(
    figures: Figures,
    rows: DataFrame,
    aggregates: DataFrame,
    commits: Commits,
    start: float,
    length: float,
) -> Figures:
    from dataclasses import replace

    from pyspark.sql import functions as f

    step = max(math.ceil(length / POINTS), 1)
    at = f.floor((f.unix_micros("sent_time") / 1e6 - start) / step)
    rates: dict[str, list[tuple[float, float]]] = {}
    for row in rows.groupBy("mode", at.alias("at")).count().orderBy("mode", "at").collect():
        # Leave out an incomplete last step, which would look like a drop.
        if not row["at"] or (row["at"] + 1) * step <= length:
            rates.setdefault(row["mode"], []).append((row["at"] * step, row["count"] / step))
    measured = rows.mapInArrow(latency_mapper(commits), "sent double, latency double").persist()
    try:
        shares = f.expr("percentile(latency, array(0.5, 0.95, 0.99))")
        ends = measured.agg(shares.alias("p"), f.max("latency").alias("most")).first()
        assert ends is not None
        at = f.floor((f.col("sent") - start) / step)
        by_time = measured.groupBy(at.alias("at")).agg(
            f.expr("percentile(latency, array(0.5, 0.95))").alias("p")
        )
        latencies = [
            (row["at"] * step, row["p"][0], row["p"][1]) for row in by_time.orderBy("at").collect()
        ]
        width = nice_width((ends["most"] or 1.0) / BINS)
        by_latency = measured.groupBy(f.floor(f.col("latency") / width).alias("at")).count()
        bins = {row["at"]: row["count"] for row in by_latency.collect()}
    finally:
        measured.unpersist()
    histogram = [
        (at * width, (at + 1) * width, bins.get(at, 0)) for at in range(max(bins, default=-1) + 1)
    ]
    return replace(
        figures,
        start=start,
        step=float(step),
        rates=rates,
        latency=None if ends["p"] is None else Percentiles(*ends["p"]),
        latencies=latencies,
        histogram=histogram,
        devices=_devices(aggregates, start, length),
    )


def _devices(
    aggregates: DataFrame, start: float, length: float
) -> dict[str, list[tuple[float, float, float, float]]]:
    from pyspark.sql import functions as f

    step = WINDOW * max(math.ceil(length / WINDOW / POINTS), 1)
    names = aggregates.select("device").distinct().orderBy("device").limit(DEVICES).collect()
    at = f.floor((f.unix_micros("start") / 1e6 - start) / step)
    recent = aggregates.where(f.col("mode") == "ordered").where(
        f.col("device").isin([row["device"] for row in names])
        # Windows of stale readings end before the run, and are not drawn.
        & (f.unix_micros("end") / 1e6 >= start)
    )
    weighted = f.sum(f.col("mean") * f.col("readings")) / f.sum("readings")
    found = recent.groupBy("device", at.alias("at")).agg(
        weighted.alias("mean"), f.min("least").alias("least"), f.max("greatest").alias("greatest")
    )
    devices: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in found.orderBy("device", "at").collect():
        point = (max((row["at"] + 0.5) * step, 0.0), row["mean"], row["least"], row["greatest"])
        devices.setdefault(row["device"], []).append(point)
    return devices


def nice_width(least: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-3)))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= least or each == 10)


def latency_mapper(
    commits: Commits,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`: the send time and the latency of each row."""
    # Plain values, which Spark pickles for its workers.
    known = {tuple(each): (list(ends), list(times)) for each, (ends, times) in commits.items()}

    def latencies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        table = {each: (np.array(ends), np.array(times)) for each, (ends, times) in known.items()}
        for batch in batches:
            sent = batch.column("sent_time").cast(pa.int64()).to_numpy() / 1e6
            topics = np.array(batch.column("topic").to_pylist())
            partitions = batch.column("partition").to_numpy()
            offsets = batch.column("offset").to_numpy()
            done = np.full(len(sent), np.nan)
            for (topic, partition), (ends, times) in table.items():
                here = (topics == topic) & (partitions == partition)
                at = np.searchsorted(ends, offsets[here], side="right")
                done[here] = np.append(times, np.nan)[at]
            keep = ~np.isnan(done)
            # Round to ms: exact percentiles keep each distinct value, millions in a long run.
            took = np.round(np.maximum(done[keep] - sent[keep], 0.0), 3)
            yield pa.record_batch([pa.array(sent[keep]), pa.array(took)], names=["sent", "latency"])

    return latencies
