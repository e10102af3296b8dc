"""A Spark program that runs a stream, and restarts it whenever it fails.

python -m tests.spark.crashes.driving DIRECTORY MASTER SOURCE SINK; the last two are the options of
the source and the sink, as JSON. Without options of the sink, the stream writes a table. A line on
standard input makes it read the rest, copy the table to one file, and exit.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import aqueduct.spark
from tests.ingest.crashing import say

COLUMNS = ["partition", "offset", "key", "value", "producer_id", "producer_sequence"]

EQUAL = 3
"""Rows of a producer that are copied with the same value."""

Options = dict[str, str]


def start(
    spark: SparkSession, directory: Path, source: Options, sink: Options, now: bool
) -> StreamingQuery:
    stream = spark.readStream.format("aqueduct").options(startingOffsets="earliest", **source)
    rows = stream.load()
    if sink:
        value = f"concat(producer_id, ' ', producer_sequence div {EQUAL}) as value"
        writer = rows.selectExpr(value).writeStream.format("aqueduct").options(**sink)
    else:
        writer = rows.select(*COLUMNS).writeStream.format("parquet")
        writer = writer.option("path", str(directory / "table"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    return (writer.trigger(availableNow=True) if now else writer).start()


def go_on(query: StreamingQuery, asked: threading.Event) -> bool:
    """Return whether a query ran until it was stopped."""
    while not asked.wait(0.05):
        if not query.isActive:
            say("failed", error=str(query.exception()).partition("=== Streaming")[0][-700:])
            return False
    query.stop()
    return True


def main(directory: Path, master: str, source: Options, sink: Options) -> None:
    asked = threading.Event()
    spark = aqueduct.spark.session("crashes", master, **{"spark.driver.memory": "512m"})
    java: Any = spark._jvm
    say("began", pid=os.getpid(), java=java.java.lang.ProcessHandle.current().pid())

    def wait() -> None:
        sys.stdin.readline()
        asked.set()

    threading.Thread(target=wait, daemon=True).start()
    while not go_on(start(spark, directory, source, sink, now=False), asked):
        pass
    last = start(spark, directory, source, sink, now=True)
    last.awaitTermination()
    if not sink:
        rows = spark.read.parquet(str(directory / "table")).toArrow()
        pq.write_table(rows, directory / "result.parquet")
    say("finished")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
