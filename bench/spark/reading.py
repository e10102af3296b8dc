"""The interface of a way to read and write topics in Spark."""

from pyspark.sql import DataFrame, SparkSession

from bench.network.peer import Json, Setting


class Reading:
    """One way to read topics in Spark, and to write rows."""

    def __init__(self, spark: SparkSession, setting: Setting, info: Json) -> None:
        self.spark = spark
        self.directory: str = setting.options["directory"]

    def table(self, topic: str) -> DataFrame:
        """Return all of a topic, from files."""
        raise NotImplementedError

    def served(self, topic: str) -> DataFrame:
        """Return all of a topic, over the network."""
        raise NotImplementedError

    def stream(self, topic: str) -> DataFrame:
        """Return a topic as a stream, from files."""
        raise NotImplementedError

    def write(self, rows: DataFrame, target: str) -> None:
        """Write rows."""
        raise NotImplementedError

    def arriving(self) -> DataFrame:
        """Return a stream of rows that arrive at a fixed rate."""
        raise NotImplementedError

    def send(self, seconds: float, rate: int, size: int) -> None:
        """Generate rows at a fixed rate, if no producer does."""
