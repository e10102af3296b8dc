"""A process with a Spark session: reads commands as lines of JSON, and answers in the same form.

python -m bench.spark.driver driver NAME '{"authority": ..., ...}'
"""

import importlib
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from aqueduct.spark import session
from bench.network.figures import percentile
from bench.network.peer import Json, Setting
from bench.network.roster import SPARK_PEERS
from bench.network.worker import Control
from bench.spark.data import LARGE, SMALL, fill, rows_in
from bench.spark.delays import delays
from bench.spark.reading import Reading

CORES = 2
TRIGGER = "500 milliseconds"
_VALUE = "cast(lpad(cast(id as string), {size}, 'x') as binary) as value"


class Driver:
    """The measurements of one session."""

    def __init__(
        self, spark: SparkSession, reading: Reading, directory: Path, runs: int = 5
    ) -> None:
        """Measure the later half of ``runs``; the first ones warm up."""
        self._spark = spark
        self._reading = reading
        self._directory = directory
        self._runs = runs
        self._names = 0
        self._query: StreamingQuery | None = None

    def scan(self, order: Json) -> Json:
        """Read every column of every row, and discard it."""
        rows = rows_in(LARGE, order["rows"])
        return self._timed(rows, lambda: drain(self._reading.table(LARGE)))

    def serve(self, order: Json) -> Json:
        """Read the same from a server."""
        rows = rows_in(LARGE, order["rows"])
        return self._timed(rows, lambda: drain(self._reading.served(LARGE)))

    def files(self, order: Json) -> Json:
        """Stream over many small files until all are read."""
        return self._timed(rows_in(SMALL, order["rows"]), self._stream_all)

    def sink(self, order: Json) -> Json:
        """Write rows that Spark generates, until they are durable."""
        count, size = order["rows"], order["size"]
        made = self._spark.range(0, count, numPartitions=CORES).selectExpr(_VALUE.format(size=size))
        return self._timed(count, lambda: self._reading.write(made, self._name("sink")))

    def watch(self, order: Json) -> Json:
        """Start a streaming query over arriving rows."""
        directory = self._directory / self._name("delay")
        self._query = (
            self._reading.arriving()
            .writeStream.format("parquet")
            .option("path", str(directory / "table"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(processingTime=TRIGGER)
            .start()
        )
        self._reading.send(order["seconds"], order["rate"], order["size"])
        return {"directory": str(directory)}

    def delay(self, order: Json) -> Json:
        """Stop the query, and return the latency of its rows."""
        assert self._query is not None
        self._query.processAllAvailable()
        progress = [each for each in self._query.recentProgress if each["numInputRows"]]
        self._query.stop()
        directory = Path(order["directory"])
        took = delays(directory / "table", directory / "checkpoint", order["lead"])
        batches = [each["durationMs"]["triggerExecution"] for each in progress]
        return {
            "count": len(took),
            "p50": percentile(took, 50),
            "p99": percentile(took, 99),
            "batch": float(median(batches)),
        }

    def _timed(self, rows: int, work: Any) -> Json:
        """Run repeatedly; return the median of all but the runs that warm up."""
        times = []
        for _ in range(self._runs):
            began = time.monotonic()
            work()
            times.append(time.monotonic() - began)
        seconds = median(times[self._runs // 2 :])
        return {"count": rows, "seconds": seconds, "rate": rows / seconds, "times": times}

    def _stream_all(self) -> None:
        query = (
            self._reading.stream(SMALL)
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._directory / self._name("files")))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _name(self, what: str) -> str:
        self._names += 1
        return f"{what}-{self._names}"


def drain(rows: DataFrame) -> None:
    """Let Spark compute every row, and discard it."""
    rows.write.format("noop").mode("overwrite").save()


def main(name: str, setting: Setting) -> None:
    (peer,) = (peer for peer in SPARK_PEERS if peer.name == name)
    control = Control()
    directory = Path(setting.options["directory"])
    first = json.loads(sys.stdin.readline())
    if first["order"] == "fill":
        landing = directory / "landing"
        landing.mkdir()
        fill(landing, first["rows"], first["files"], first["size"])
        control.write(filled=True)
        first = json.loads(sys.stdin.readline())
    spark = session("bench", f"local[{CORES}]")
    reading = importlib.import_module(peer.module).Reading(spark, setting, first["info"])
    driver = Driver(spark, reading, directory)
    control.write(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["order"] == "quit":
            break
        control.write(**getattr(driver, order["order"])(order))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[2], Setting(**json.loads(sys.argv[3])))
