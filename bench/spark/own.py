"""Spark's own: its Parquet reader and writer, and its file stream source, on the same files."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.network.peer import Json, Setting

_PORTION = 0.25
"""Seconds between two files that arrive."""
_SEGMENTS = {"pathGlobFilter": "*.parquet"}


class Reading:
    def __init__(self, spark: SparkSession, setting: Setting, info: Json) -> None:
        del info
        self._spark = spark
        self._directory = Path(setting.options["directory"])

    def table(self, topic: str) -> DataFrame:
        return self._spark.read.options(**_SEGMENTS).parquet(f"{self._directory}/landing/{topic}")

    def stream(self, topic: str) -> DataFrame:
        place = f"{self._directory}/landing/{topic}"
        schema = self.table(topic).schema
        return self._spark.readStream.schema(schema).options(**_SEGMENTS).parquet(place)

    def write(self, rows: DataFrame, place: str) -> None:
        rows.write.parquet(f"{self._directory}/{place}")

    def arriving(self) -> DataFrame:
        (self._directory / "arriving").mkdir()
        schema = "value binary, timestamp timestamp"
        return self._spark.readStream.schema(schema).parquet(f"{self._directory}/arriving")

    def send(self, seconds: float, rate: int, size: int) -> None:
        """Files, each with what came since the one before."""
        directory = self._directory / "arriving"
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
