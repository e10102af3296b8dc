"""Traces of connections as Parquet files, for Spark, Arrow and `aqueduct trace`."""

from aqueduct.errors import TraceError
from aqueduct.observe.trace.writer import Trace

__all__ = ["Trace", "TraceError"]
