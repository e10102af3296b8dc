"""Rows as Spark has them: the schema, and Arrow batches that match it exactly."""

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
"""Every column there is, by name; `aqueduct.ingest.records.ROWS` has the same in Arrow's words."""


def row_schema(include_headers: bool) -> StructType:
    """The columns of a table."""
    return StructType([f for f in FIELDS.values() if include_headers or f.name != "headers"])


def check_schema(schema: StructType) -> None:
    """Raise unless these are columns of ours; fewer of them, in any order, are read faster."""
    for field in schema.fields:
        known = FIELDS.get(field.name)
        if known is None:
            raise SourceError(
                f"there is no column {field.name!r}; columns: {', '.join(FIELDS)}. Values are "
                "bytes: leave schema() out, and convert the column value"
            )
        if known.dataType.simpleString() != field.dataType.simpleString():
            raise SourceError(
                f"column {field.name} is {known.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}; leave schema() out, and cast the column"
            )


def shaper(schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """What makes of rows of ingest the rows of a schema."""
    target = to_arrow_schema(schema, timezone="UTC")
    names = target.names

    def shape(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if column.type.equals(kind) else column.cast(kind)
            for column, kind in zip(
                (batch.column(name) for name in names), target.types, strict=True
            )
        ]
        return pa.record_batch(columns, schema=target)

    return shape
