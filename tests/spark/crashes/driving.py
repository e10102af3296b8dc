"""A Spark program that keeps a stream going into a table, and starts it again whenever it fails.

python -m tests.spark.crashes.driving DIRECTORY MASTER OPTIONS; the options are those of the source,
as JSON. A line to read has it come to its end: all is read, and the table is copied to one file.
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
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Most of these drivers live for seconds: what Java does to be fast later is too much for them."""


def start(
    spark: SparkSession, directory: Path, options: dict[str, str], now: bool
) -> StreamingQuery:
    source = spark.readStream.format("aqueduct").options(startingOffsets="earliest", **options)
    sink = (
        source.load()
        .select(*COLUMNS)
        .writeStream.format("parquet")
        .option("path", str(directory / "table"))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    return (sink.trigger(availableNow=True) if now else sink).start()


def go_on(query: StreamingQuery, asked: threading.Event) -> bool:
    """Whether a query lived until somebody asked for its end."""
    while not asked.wait(0.05):
        if not query.isActive:
            say("failed", error=str(query.exception()).partition("=== Streaming")[0][-700:])
            return False
    query.stop()
    return True


def main(directory: Path, master: str, options: dict[str, str]) -> None:
    asked = threading.Event()
    spark = aqueduct.spark.session(
        "crashes", master, **{"spark.driver.extraJavaOptions": JAVA, "spark.driver.memory": "512m"}
    )
    java: Any = spark._jvm
    say("began", pid=os.getpid(), java=java.java.lang.ProcessHandle.current().pid())

    def wait() -> None:
        sys.stdin.readline()
        asked.set()

    threading.Thread(target=wait, daemon=True).start()
    while not go_on(start(spark, directory, options, now=False), asked):
        pass
    last = start(spark, directory, options, now=True)
    last.awaitTermination()
    rows = spark.read.parquet(str(directory / "table")).toArrow()
    pq.write_table(rows, directory / "result.parquet")
    say("finished")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
