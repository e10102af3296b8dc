"""The data source that Spark knows as ``format("aqueduct")``."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from aqueduct.spark.options import source_options
from aqueduct.spark.sink.writer import BatchWriter, StreamWriter
from aqueduct.spark.source.reader import BatchReader, StreamReader
from aqueduct.spark.source.rows import row_schema
from aqueduct.spark.worker import freeze_heap


class AqueductSource(DataSource):
    """Reads topics from a landing directory or from ingest servers, and writes to servers.

    See `aqueduct.spark.options` for the options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "aqueduct"

    def schema(self) -> StructType:
        """Return the columns; Spark calls this first, so it also reports invalid options."""
        return row_schema(source_options(self.options).include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """Return a reader for a batch."""
        freeze_heap()
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 -- Spark's name
        """Return a reader for a stream."""
        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer for a batch."""
        freeze_heap()
        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return a writer for one batch of a stream."""
        freeze_heap()
        return StreamWriter(self.options, schema, overwrite)
