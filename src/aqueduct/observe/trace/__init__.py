"""Records what endpoints do, as Parquet files that Spark, Arrow and `aqueduct trace` read."""

from aqueduct.errors import TraceError
from aqueduct.observe.trace.writer import Trace

__all__ = ["Trace", "TraceError"]
