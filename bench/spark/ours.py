"""``format("aqueduct")``: from the directory of an ingest server, from the server, and into it."""

from pyspark.sql import DataFrame, SparkSession

from bench.network.peer import Json, Setting
from bench.spark import reading

ARRIVING = "bench"
"""The topic that the producers of the ingest benchmark fill."""


class Reading(reading.Reading):
    def __init__(self, spark: SparkSession, setting: Setting, info: Json) -> None:
        super().__init__(spark, setting, info)
        self._path = f"{self.directory}/landing"
        self._server = {"servers": info["address"], "trustCa": setting.authority}

    def table(self, topic: str) -> DataFrame:
        options = {"path": self._path, "subscribe": topic}
        return self.spark.read.format("aqueduct").options(**options).load()

    def served(self, topic: str) -> DataFrame:
        options = {**self._server, "subscribe": topic}
        return self.spark.read.format("aqueduct").options(**options).load()

    def stream(self, topic: str) -> DataFrame:
        options = {"path": self._path, "subscribe": topic, "startingOffsets": "earliest"}
        return self.spark.readStream.format("aqueduct").options(**options).load()

    def write(self, rows: DataFrame, target: str) -> None:
        options = {**self._server, "topic": target}
        rows.write.format("aqueduct").mode("append").options(**options).save()

    def arriving(self) -> DataFrame:
        options = {**self._server, "subscribe": ARRIVING, "startingOffsets": "earliest"}
        return self.spark.readStream.format("aqueduct").options(**options).load()
