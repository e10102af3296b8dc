"""Traces of connections as Parquet files, for Spark, Arrow and `aqueduct trace`."""

from aqueduct.observe.trace.writer import Trace

__all__ = ["Trace"]
