"""Read and write topics of ingest servers in Spark, as batches and streams; needs pyspark.

>>> from aqueduct import spark
>>> session = spark.session()
>>> rows = session.read.format("aqueduct").option("path", "data").option("subscribe", "telemetry")
"""

from aqueduct.spark.errors import (
    DataLoss,
    NoJava,
    SinkError,
    SourceError,
    TopicIdentityError,
    Unreachable,
    WrongOption,
)
from aqueduct.spark.session import register, session

__all__ = [
    "DataLoss",
    "NoJava",
    "SinkError",
    "SourceError",
    "TopicIdentityError",
    "Unreachable",
    "WrongOption",
    "register",
    "session",
]
