"""The two streaming queries: every record into one table, aggregates of windows into another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aqueduct.spark.jobs.pipeline.batches import SENT, History
from aqueduct.spark.jobs.pipeline.faults import PipelineError
from aqueduct.spark.jobs.pipeline.gateway import MARK
from aqueduct.spark.jobs.pipeline.settings import WATERMARK, WINDOW, Settings
from aqueduct.spark.source.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SCHEMA = (
    "device string, mode string, number bigint, event bigint, sent bigint, value double, "
    "late string"
)
_ACCURACY = 1_000
_REASON = 600
"""Characters of what Spark says of an error; the rest is a trace of Java's stack."""


class Tables:
    """The tables ``readings`` and ``windows``, and the queries that write them."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        options: Mapping[str, str],
        start: Mapping[str, Mapping[str, int]],
        producer_id: str,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._options = {
            **options,
            "subscribe": ",".join(settings.topics),
            "startingOffsets": json.dumps(start),
        }
        self._producer_id = producer_id
        self._queries: dict[str, StreamingQuery] = {}
        self.histories = {"readings": History(), "windows": History()}

    def path(self, table: str) -> str:
        """Where a table is."""
        return str(self._settings.out.absolute() / table)

    def begin(self) -> None:
        """Start both queries."""
        trigger = self._settings.trigger
        self._start("readings", readings(self._records()), trigger)
        # Nobody waits for a window sooner than it closes; the processors have more to do.
        self._start("windows", windows(self._records()), max(2 * trigger, 1.0))

    def _records(self) -> DataFrame:
        rows = self._spark.readStream.format("aqueduct").options(**self._options).load()
        return parse(rows, self._producer_id)

    def _start(self, table: str, frame: DataFrame, trigger: float) -> None:
        writer = frame.writeStream.format("parquet").queryName(table)
        self._queries[table] = (
            writer.option("path", self.path(table))
            .option("checkpointLocation", str(self._settings.out.absolute() / "checkpoint" / table))
            .trigger(processingTime=f"{int(trigger * 1_000)} milliseconds")
            .start()
        )

    def look(self) -> None:
        """Take in how far the queries are; raises if one has failed."""
        for table, query in self._queries.items():
            self._take_in(query, self.histories[table])
            if not query.isActive:
                error = query.exception()
                reason = "it was stopped" if error is None else str(error)[:_REASON]
                raise PipelineError(f"the query of the table {table} ended: {reason}")

    def _take_in(self, query: StreamingQuery, history: History) -> None:
        last = query.lastProgress
        if last is None:
            return
        told = json.loads(last.json)
        if history.misses(told):
            # Spark keeps the last hundred; all of them each time would be much to carry over.
            for one in query.recentProgress:
                history.add(json.loads(one.json))
        history.add(told)

    def have_reached(self, offsets: Offsets) -> bool:
        """Whether both tables have what is at these offsets, and before."""
        self.look()
        return all(history.has_reached(offsets) for history in self.histories.values())

    def finish(self) -> None:
        """Wait until what the last watermark closes is in the table, and nothing is under way."""
        for query in self._queries.values():
            query.processAllAvailable()
        self.look()

    def stop(self) -> None:
        """Stop both queries."""
        while self._queries:
            self._queries.popitem()[1].stop()


def parse(rows: DataFrame, producer_id: str) -> DataFrame:
    """The records of this run; others may write to the same topic."""
    from pyspark.sql import functions as f

    record = f.from_json(f.col("value").cast("string"), _SCHEMA)
    return (
        rows.where(f.col("producer_id") == producer_id)
        .select("topic", "partition", "offset", record.alias("record"))
        .select(
            "record.device",
            "record.mode",
            "record.number",
            f.timestamp_micros("record.event").alias("event_time"),
            f.timestamp_micros("record.sent").alias("sent_time"),
            "record.value",
            "record.late",
            "topic",
            "partition",
            "offset",
        )
    )


def readings(records: DataFrame) -> DataFrame:
    """Every record of a device; tells on the way how many, and when the middle one was sent."""
    from pyspark.sql import functions as f

    middle = f.percentile_approx(f.unix_micros("sent_time"), 0.5, _ACCURACY)
    return records.where(f.col("mode") != MARK).observe(
        SENT, f.count(f.lit(1)).alias("rows"), middle.alias("middle")
    )


def windows(records: DataFrame) -> DataFrame:
    """Aggregates by device and mode; what is later than the watermark is left out."""
    from pyspark.sql import functions as f

    # A mark is no reading, and still tells the time. With the time in it, Spark does not move this
    # condition to where the watermark would not see marks.
    is_reading = (f.col("mode") != MARK) | (f.col("event_time") < f.timestamp_seconds(f.lit(0)))
    return (
        records.withWatermark("event_time", f"{WATERMARK} seconds")
        .where(is_reading)
        .groupBy(f.window("event_time", f"{WINDOW} seconds"), "device", "mode")
        .agg(
            f.count(f.lit(1)).alias("readings"),
            f.avg("value").alias("mean"),
            f.min("value").alias("least"),
            f.max("value").alias("greatest"),
            f.percentile_approx("value", 0.95, _ACCURACY).alias("p95"),
        )
        .select(
            "window.start",
            "window.end",
            "device",
            "mode",
            "readings",
            "mean",
            "least",
            "greatest",
            "p95",
        )
    )
