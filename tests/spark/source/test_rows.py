"""The schema of the source: the columns of ingest, and batches that match exactly."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from aqueduct.ingest.records import ROWS
from aqueduct.spark.errors import SourceError
from aqueduct.spark.source.rows import FIELDS, batch_converter, check_schema, row_schema

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
ROW = {
    "topic": "logs",
    "partition": 3,
    "offset": 7,
    "key": None,
    "value": b"v",
    "headers": [{"name": "n", "value": b"h"}],
    "timestamp": NOW,
    "ingest_time": NOW,
    "producer_id": "p",
    "producer_sequence": 9,
}
BATCH = pa.RecordBatch.from_pylist([ROW], schema=ROWS)


def test_the_columns_are_those_of_ingest() -> None:
    assert row_schema(include_headers=True).names == ROWS.names
    assert [field.nullable for field in FIELDS.values()] == [field.nullable for field in ROWS]


def test_headers_are_included_on_request() -> None:
    assert "headers" not in row_schema(include_headers=False).names


@pytest.mark.parametrize("include_headers", [True, False])
def test_a_batch_matches_the_schema_exactly(include_headers: bool) -> None:
    schema = row_schema(include_headers)
    shaped = batch_converter(schema)(BATCH)
    assert shaped.schema.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)
    assert shaped.to_pylist() == [{name: ROW[name] for name in schema.names}]


def test_a_schema_can_have_some_columns_in_any_order() -> None:
    schema = StructType([FIELDS["value"], StructField("offset", LongType())])
    check_schema(schema)
    assert batch_converter(schema)(BATCH).to_pylist() == [{"value": b"v", "offset": 7}]
    assert batch_converter(schema)(BATCH).schema.field("offset").nullable


def test_an_unknown_column_is_rejected() -> None:
    with pytest.raises(SourceError, match="there is no column 'name'; columns: topic, partition"):
        check_schema(StructType([StructField("name", StringType())]))


def test_a_column_of_a_wrong_type_is_rejected() -> None:
    with pytest.raises(SourceError, match="column value is binary, not string; omit schema"):
        check_schema(StructType([StructField("value", StringType())]))
