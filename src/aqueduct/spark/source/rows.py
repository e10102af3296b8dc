"""The schema of the source, and the conversion of Arrow batches to it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aqueduct.spark.errors import SourceError

_HEADER = StructType([StructField("name", StringType()), StructField("value", BinaryType())])

FIELDS = {
    field.name: field
    for field in (
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("key", BinaryType()),
        StructField("value", BinaryType(), nullable=False),
        StructField("headers", ArrayType(_HEADER)),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("ingest_time", TimestampType(), nullable=False),
        StructField("producer_id", StringType(), nullable=False),
        StructField("producer_sequence", LongType(), nullable=False),
    )
}
"""All columns by name; `aqueduct.ingest.records.ROWS` is the same as an Arrow schema."""


def row_schema(include_headers: bool) -> StructType:
    """Return the schema of the source."""
    return StructType([f for f in FIELDS.values() if include_headers or f.name != "headers"])


def check_schema(schema: StructType) -> None:
    """Raise `SourceError` unless the schema has only columns of the source, in any order."""
    for field in schema.fields:
        known = FIELDS.get(field.name)
        if known is None:
            raise SourceError(
                f"there is no column {field.name!r}; columns: {', '.join(FIELDS)}. Values are "
                "bytes: omit schema(), and convert the column value"
            )
        if known.dataType.simpleString() != field.dataType.simpleString():
            raise SourceError(
                f"column {field.name} is {known.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}; omit schema(), and cast the column"
            )


def batch_converter(schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that converts batches of ingest to a schema."""
    target = to_arrow_schema(schema, timezone="UTC")
    names = target.names

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if column.type.equals(kind) else column.cast(kind)
            for column, kind in zip(
                (batch.column(name) for name in names), target.types, strict=True
            )
        ]
        return pa.record_batch(columns, schema=target)

    return convert
