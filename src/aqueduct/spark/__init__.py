"""Spark reads and writes what an ingest server stores, in batches and streams; needs pyspark.

>>> from aqueduct import spark
>>> session = spark.session()
>>> rows = session.read.format("aqueduct").option("path", "data").option("subscribe", "telemetry")
"""

from aqueduct.spark.errors import (
    DataLoss,
    SinkError,
    SourceError,
    TopicIdentityError,
    Unreachable,
    WrongOption,
)
from aqueduct.spark.java import NoJava
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
