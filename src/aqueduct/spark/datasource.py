"""What Spark knows as ``format("aqueduct")``."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from aqueduct.spark.sink.writer import BatchWriter, StreamWriter
from aqueduct.spark.source.options import read_options
from aqueduct.spark.source.reader import BatchReader, StreamReader
from aqueduct.spark.source.rows import row_schema
from aqueduct.spark.worker import settle


class AqueductSource(DataSource):
    """Reads topics from a landing directory or from ingest servers, and writes to the latter.

    See `options` and `sink_options` for how.
    """

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format``."""
        return "aqueduct"

    def schema(self) -> StructType:
        """The columns; asked first, so that options that cannot be are told at once."""
        return row_schema(read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """Reads once."""
        settle()
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 -- Spark's name
        """Reads what is new, again and again."""
        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Writes once."""
        settle()
        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Writes batch after batch."""
        settle()
        return StreamWriter(self.options, schema, overwrite)
