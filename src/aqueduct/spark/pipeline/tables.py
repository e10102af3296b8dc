"""The two streaming queries: one writes every record to a table, the other windowed aggregates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aqueduct.spark.pipeline.fleet import MARKER
from aqueduct.spark.pipeline.progress import SENT, QueryProgress
from aqueduct.spark.pipeline.settings import WATERMARK, WINDOW, PipelineError, PipelineSettings
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
"""The most characters of an error of Spark; the rest is a Java stack trace."""


class Tables:
    """The tables ``readings`` and ``windows``, and the queries that write them."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
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
        self.progress = {"readings": QueryProgress(), "windows": QueryProgress()}

    def path(self, table: str) -> str:
        """Return the directory of a table."""
        return str(self._settings.out.absolute() / table)

    def start(self) -> None:
        """Start both queries."""
        trigger = self._settings.trigger
        self._start_query("readings", readings(self._records()), trigger)
        # Windows close late anyway; a longer interval leaves more CPU to the other query.
        self._start_query("windows", windows(self._records()), max(2 * trigger, 1.0))

    def _records(self) -> DataFrame:
        rows = self._spark.readStream.format("aqueduct").options(**self._options).load()
        return parse(rows, self._producer_id)

    def _start_query(self, table: str, frame: DataFrame, trigger: float) -> None:
        writer = frame.writeStream.format("parquet").queryName(table)
        self._queries[table] = (
            writer.option("path", self.path(table))
            .option("checkpointLocation", str(self._settings.out.absolute() / "checkpoint" / table))
            .trigger(processingTime=f"{int(trigger * 1_000)} milliseconds")
            .start()
        )

    def poll(self) -> None:
        """Update the progress of the queries; raise `PipelineError` if one has failed."""
        for table, query in self._queries.items():
            self._update(query, self.progress[table])
            if not query.isActive:
                error = query.exception()
                reason = "it was stopped" if error is None else str(error)[:_REASON]
                raise PipelineError(f"the query of the table {table} ended: {reason}")

    def _update(self, query: StreamingQuery, progress: QueryProgress) -> None:
        last = query.lastProgress
        if last is None:
            return
        report = json.loads(last.json)
        if progress.misses(report):
            # Spark keeps the last hundred reports; fetching them all each time is expensive.
            for one in query.recentProgress:
                progress.add(json.loads(one.json))
        progress.add(report)

    def have_reached(self, offsets: Offsets) -> bool:
        """Return whether both tables have the rows at these offsets, and all before them."""
        self.poll()
        return all(each.has_reached(offsets) for each in self.progress.values())

    def finish(self) -> None:
        """Wait until the windows that the last watermark closes are in the table."""
        for query in self._queries.values():
            query.processAllAvailable()
        self.poll()

    def stop(self) -> None:
        """Stop both queries."""
        while self._queries:
            self._queries.popitem()[1].stop()


def parse(rows: DataFrame, producer_id: str) -> DataFrame:
    """Parse the records of this run; other producers may write to the same topic."""
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
    """Select the records of devices; observe their number and median send time."""
    from pyspark.sql import functions as f

    middle = f.percentile_approx(f.unix_micros("sent_time"), 0.5, _ACCURACY)
    return records.where(f.col("mode") != MARKER).observe(
        SENT, f.count(f.lit(1)).alias("rows"), middle.alias("middle")
    )


def windows(records: DataFrame) -> DataFrame:
    """Aggregate by window, device and mode; drop records behind the watermark."""
    from pyspark.sql import functions as f

    # Markers are not readings, but must advance the watermark. The condition on event_time keeps
    # Spark from pushing this filter below the watermark.
    is_reading = (f.col("mode") != MARKER) | (f.col("event_time") < f.timestamp_seconds(f.lit(0)))
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
        .select("window.*", "device", "mode", "readings", "mean", "least", "greatest", "p95")
    )
