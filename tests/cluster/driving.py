"""A Spark program on a cluster that reads from ingest servers and writes to them on command.

python -m tests.cluster.driving MASTER, then lines of JSON: each has the name of one of `ORDERS`,
and its arguments. The program reports events as lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

import aqueduct.spark
from tests.cluster.standalone import SETTINGS
from tests.ingest.crashing import say

SLICE = 10
"""The number of rows in each batch of a slow task."""
Options = dict[str, str]


def tell(batch: DataFrame, number: int) -> None:
    rows = [
        (row.partition, row.offset, row.producer_sequence)
        for row in batch.select("partition", "offset", "producer_sequence").collect()
    ]
    say("batch", number=number, rows=rows)


def where(_: Row) -> str:
    """Return the directory of the executor that runs this."""
    return os.getcwd()


def read(spark: SparkSession, source: Options, checkpoint: str, limit: int) -> None:
    """Report each batch of a stream until a line arrives, then read the rest and all in a batch."""
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(limit)}
    stream = spark.readStream.format("aqueduct").options(**source, **limits).load()
    query = stream.writeStream.foreachBatch(tell).option("checkpointLocation", checkpoint).start()
    sys.stdin.readline()
    query.processAllAvailable()
    query.stop()
    frame = spark.read.format("aqueduct").options(minPartitions="8", **source).load()
    say("read", executors=frame.rdd.map(where).distinct().collect())


def slow(
    notes: str, pause: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that yields rows slowly, and records the process of each task.

    Task 0 ends, so that rows are stored; the others wait for a file ``go`` before they end.
    """
    go_on = Path(notes, "go")

    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task = f"{context.partitionId()}.{context.attemptNumber()}"
        Path(notes, f"{task}.{os.getpid()}").touch()
        for batch in batches:
            for start in range(0, batch.num_rows, SLICE):
                yield batch.slice(start, SLICE)
                time.sleep(pause)
        while context.partitionId() and not go_on.exists():
            time.sleep(pause)

    return hand_on


def copy(
    spark: SparkSession, source: Options, sink: Options, checkpoint: str, notes: str, pause: float
) -> None:
    """Copy a topic to another, as a stream of one batch."""
    more = {"startingOffsets": "earliest"}
    rows = spark.readStream.format("aqueduct").options(**source, **more).load().select("value")
    query = (
        rows.mapInArrow(slow(notes, pause), "value binary")
        .writeStream.format("aqueduct")
        .options(**sink, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    say("written")


def write(spark: SparkSession, source: Options, sink: Options, notes: str, pause: float) -> None:
    """Copy a topic to another, as a batch."""
    rows = spark.read.format("aqueduct").options(**source).load().select("value")
    slowed = rows.mapInArrow(slow(notes, pause), "value binary")
    slowed.write.format("aqueduct").mode("append").options(**sink).save()
    say("written")


ORDERS: dict[str, Callable[..., None]] = {"read": read, "copy": copy, "write": write}


def main(master: str) -> None:
    # Else Spark collects thousands of rows before it gives them to a sink.
    settings = {**SETTINGS, "spark.sql.execution.arrow.maxRecordsPerBatch": str(SLICE)}
    spark = aqueduct.spark.session("tests", master, **settings)
    while line := sys.stdin.readline():
        order = json.loads(line)
        ORDERS[order.pop("order")](spark, **order)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
