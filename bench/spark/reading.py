"""What everything that Spark reads and writes with has to do."""

from pyspark.sql import DataFrame, SparkSession

from bench.network.peer import Json, Setting


class Reading:
    """One way to read topics in Spark, and to write rows."""

    def __init__(self, spark: SparkSession, setting: Setting, info: Json) -> None:
        self.spark = spark
        self.directory: str = setting.options["directory"]

    def table(self, topic: str) -> DataFrame:
        """All of a topic, from files."""
        raise NotImplementedError

    def served(self, topic: str) -> DataFrame:
        """All of a topic, over the network."""
        raise NotImplementedError

    def stream(self, topic: str) -> DataFrame:
        """A topic as a stream, from files."""
        raise NotImplementedError

    def write(self, rows: DataFrame, place: str) -> None:
        """Have rows written."""
        raise NotImplementedError

    def arriving(self) -> DataFrame:
        """A stream of what arrives at a pace."""
        raise NotImplementedError

    def send(self, seconds: float, rate: int, size: int) -> None:
        """Have something arrive, if nobody else does."""
