"""Records what endpoints do, as Parquet files that Spark, Arrow and `aqueduct trace` read."""

from aqueduct.trace.writer import Trace

__all__ = ["Trace"]
