"""What is computed from the finished tables, by Spark; only what a page shows comes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from aqueduct.spark.jobs.pipeline.batches import Commits
from aqueduct.spark.jobs.pipeline.settings import WINDOW
from aqueduct.spark.jobs.pipeline.summary import Figures, Spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POINTS = 120
"""Of a line in a chart, at most."""
BINS = 40
"""Of the histogram."""
DEVICES = 12
"""Whose aggregates are shown."""


def compute(spark: SparkSession, readings: str, windows: str, commits: Commits) -> Figures:
    """Everything that a summary and its page tell of two tables."""
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
    """Rows whose window does not count them, window by window."""
    from pyspark.sql import functions as f

    expected = rows.groupBy(
        f.window("event_time", f"{WINDOW} seconds")["start"].alias("start"), "device", "mode"
    ).agg(f.count(f.lit(1)).alias("expected"))
    both = expected.join(aggregates, ["start", "device", "mode"], "full")
    zero = f.lit(0)
    missing = f.coalesce("expected", zero) - f.coalesce("readings", zero)
    # By its sign, so that one window with too much does not hide another with too little.
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
        # What was sent in a part of the last step would look like a fall.
        if not row["at"] or (row["at"] + 1) * step <= length:
            rates.setdefault(row["mode"], []).append((row["at"] * step, row["count"] / step))
    delays = rows.mapInArrow(delay_of(commits), "sent double, delay double").persist()
    try:
        shares = f.expr("percentile(delay, array(0.5, 0.95, 0.99))")
        ends = delays.agg(shares.alias("p"), f.max("delay").alias("most")).first()
        assert ends is not None
        at = f.floor((f.col("sent") - start) / step)
        by_time = delays.groupBy(at.alias("at")).agg(
            f.expr("percentile(delay, array(0.5, 0.95))").alias("p")
        )
        latencies = [
            (row["at"] * step, row["p"][0], row["p"][1]) for row in by_time.orderBy("at").collect()
        ]
        width = nice_width((ends["most"] or 1.0) / BINS)
        by_delay = delays.groupBy(f.floor(f.col("delay") / width).alias("at")).count()
        bins = {row["at"]: row["count"] for row in by_delay.collect()}
    finally:
        delays.unpersist()
    histogram = [
        (at * width, (at + 1) * width, bins.get(at, 0)) for at in range(max(bins, default=-1) + 1)
    ]
    return replace(
        figures,
        start=start,
        step=float(step),
        rates=rates,
        latency=None if ends["p"] is None else Spread(*ends["p"]),
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
        # Of what came so late that its time is before the run there is nothing to draw.
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
    """The smallest of 1, 2 and 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-3)))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= least or each == 10)


def delay_of(commits: Commits) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What gives for each row when it was sent, and how long it took to be in the table."""
    # Plain values, which Spark sends to its workers.
    known = {tuple(where): (list(ends), list(times)) for where, (ends, times) in commits.items()}

    def delays(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        table = {where: (np.array(ends), np.array(times)) for where, (ends, times) in known.items()}
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
            # Percentiles keep each value that differs, and of a long run there would be millions.
            took = np.round(np.maximum(done[keep] - sent[keep], 0.0), 3)
            yield pa.record_batch([pa.array(sent[keep]), pa.array(took)], names=["sent", "delay"])

    return delays
