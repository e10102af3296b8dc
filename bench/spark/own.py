"""Spark's own Parquet reader and writer, and its file stream source, on the same files."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from bench.spark import reading

_PORTION = 0.25
"""Seconds between two files that arrive."""
_SEGMENTS = {"pathGlobFilter": "*.parquet"}


class Reading(reading.Reading):
    def table(self, topic: str) -> DataFrame:
        return self.spark.read.options(**_SEGMENTS).parquet(f"{self.directory}/landing/{topic}")

    def stream(self, topic: str) -> DataFrame:
        path = f"{self.directory}/landing/{topic}"
        schema = self.table(topic).schema
        return self.spark.readStream.schema(schema).options(**_SEGMENTS).parquet(path)

    def write(self, rows: DataFrame, target: str) -> None:
        rows.write.parquet(f"{self.directory}/{target}")

    def arriving(self) -> DataFrame:
        Path(self.directory, "arriving").mkdir()
        schema = "value binary, timestamp timestamp"
        return self.spark.readStream.schema(schema).parquet(f"{self.directory}/arriving")

    def send(self, seconds: float, rate: int, size: int) -> None:
        """Periodically write a file with the rows since the previous one."""
        directory = Path(self.directory, "arriving")
        count = round(rate * _PORTION)
        pool = [os.urandom(size) for _ in range(count)]
        began = time.time()
        for number in range(round(seconds / _PORTION)):
            due = began + (number + 1) * _PORTION
            time.sleep(max(due - time.time(), 0.0))
            sent = [int((due - _PORTION * (count - at) / count) * 1e6) for at in range(count)]
            times = pa.array(sent, pa.timestamp("us", tz="UTC"))
            rows = pa.table({"value": pa.array(pool, pa.binary()), "timestamp": times})
            pq.write_table(rows, directory / f".{number}")
            (directory / f".{number}").rename(directory / f"{number}.parquet")
