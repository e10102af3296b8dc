"""Columns: chosen by name and type; rows are converted from Arrow or rejected by number."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from aqueduct.spark.errors import SinkError
from aqueduct.spark.options import sink_options
from aqueduct.spark.sink.columns import ColumnNames, Rows, choose_columns, rows_by_topic, take_rows

HEADER = StructType([StructField("name", StringType()), StructField("value", BinaryType())])
TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "headers": ArrayType(HEADER),
    "map": MapType(StringType(), BinaryType()),
}
ARROW_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")


def table(columns: str) -> StructType:
    """Return a schema from ``name type, name type``; Spark's own parser needs a session."""
    pairs = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def chosen(schema: str, **options: str) -> ColumnNames:
    given = {"servers": "a:1", "topic": "logs", **options}
    given = {name: value for name, value in given.items() if value != "none"}
    return choose_columns(table(schema), sink_options(given, streaming=False))


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()]
    return pa.record_batch(arrays, names=list(columns))


def taken(rows: pa.RecordBatch, columns: ColumnNames, max_record: int = 100) -> Rows:
    return take_rows(rows, columns, max_record, range(1, rows.num_rows + 1))


def test_columns_are_found_by_their_names() -> None:
    assert chosen("value string") == ColumnNames("value")
    everything = "value binary, key string, headers headers, timestamp timestamp"
    assert chosen(everything) == ColumnNames("value", "key", "headers", "timestamp")
    assert chosen("topic string, value string", topic="none").topic == "topic"


def test_options_map_columns_with_other_names() -> None:
    columns = chosen(
        "a string, b binary, c map, d timestamp, e bigint",
        key="a",
        value="b",
        headers="c",
        timestamp="d",
        idColumn="e",
    )
    assert columns == ColumnNames("b", "a", "c", "d", None, "e")
    assert chosen("key string, value string", idColumn="key").id == "key"
    assert chosen("topic string, value string", key="topic").key == "topic"


@pytest.mark.parametrize(
    ("schema", "options", "fault"),
    [
        ("a string", {}, "there is no column value, which every record needs; columns: a"),
        ("value string", {"key": "k"}, "option key: there is no column 'k'; columns: value"),
        ("value string", {"idColumn": "k"}, "option idColumn: there is no column 'k'"),
        ("value string", {"topic": "none"}, "neither an option topic nor a column topic"),
        ("value string, topic string", {}, "option topic and column topic exclude"),
        ("value int", {}, "column 'value' is int, and must be string or binary; CAST"),
        ("a int", {"value": "a"}, r"column 'a' \(value\) is int, and must be string or binary"),
        ("value string, key bigint", {}, "column 'key' is bigint, and must be string or bin"),
        ("value string, topic int", {"topic": "none"}, "column 'topic' is int, and must be str"),
        ("value string, headers string", {}, "column 'headers' is string, and must be array<"),
        ("value string, timestamp bigint", {}, "column 'timestamp' is bigint, and must be time"),
        ("value string, timestamp timestamp_ntz", {}, "must be timestamp; CAST"),
        ("value string, i double", {"idColumn": "i"}, r"column 'i' \(id\) is double, and must"),
        ("value string, extra int, more int", {}, "'extra' would not be stored .*drop extra, more"),
    ],
)
def test_an_error_names_the_unsuitable_column(
    schema: str, options: dict[str, str], fault: str
) -> None:
    with pytest.raises(SinkError, match=fault):
        chosen(schema, **options)


def test_duplicate_column_names_are_rejected() -> None:
    schema = table("value string, value string")
    options = sink_options({"servers": "a:1", "topic": "logs"}, streaming=False)
    with pytest.raises(SinkError, match="there are 2 columns 'value'"):
        choose_columns(schema, options)


def test_rows_are_converted_to_lists() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    rows = taken(
        batch(
            value=["a", "b"],
            key=[b"k", None],
            headers=pa.array([[{"name": "n", "value": b"h"}], None], ARROW_HEADERS),
            timestamp=pa.array([moment, None], TIME),
            i=pa.array([1, 2], pa.int32()),
        ),
        ColumnNames("value", "key", "headers", "timestamp", None, "i"),
    )
    micros = int(moment.timestamp()) * 1_000_000 + 678901
    assert rows == Rows([b"a", b"b"], [b"k", None], [[("n", b"h")], []], [micros, None], [1, 2])


def test_headers_of_a_map_are_sorted() -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = pa.array([None, [("b", "2"), ("a", "1")], []], kind)
    columns = ColumnNames("value", headers="headers")
    whole = batch(value=["x", "y", "z"], headers=rows)
    assert taken(whole, columns).headers == [[], [("a", b"1"), ("b", b"2")], []]
    assert taken(whole.slice(1), columns).headers == [[("a", b"1"), ("b", b"2")], []]


def test_a_sliced_batch_keeps_its_own_headers() -> None:
    headers = pa.array([[{"name": str(at), "value": b""}] for at in range(4)], ARROW_HEADERS)
    rows = batch(value=["x"] * 4, headers=headers).slice(2, 1)
    assert taken(rows, ColumnNames("value", headers="headers")).headers == [[("2", b"")]]


def test_the_id_header_of_another_server_is_removed() -> None:
    entries = [{"name": "aqueduct-id", "value": bytes(20)}, {"name": "n", "value": b"h"}]
    rows = batch(value=["x"], headers=pa.array([entries], ARROW_HEADERS))
    assert taken(rows, ColumnNames("value", headers="headers")).headers == [[("n", b"h")]]


def test_rows_are_grouped_by_topic() -> None:
    rows = batch(value=["a", "b", "c"], topic=["x", "y", "x"])
    parts = rows_by_topic(rows, ColumnNames("value", topic="topic"), None, range(11, 14))
    assert [(name, part["value"].to_pylist(), list(at)) for name, part, at in parts] == [
        ("x", ["a", "c"], [11, 13]),
        ("y", ["b"], [12]),
    ]
    (alone,) = rows_by_topic(rows, ColumnNames("value"), "logs", range(11, 14))
    assert alone == ("logs", rows, range(11, 14))


@pytest.mark.parametrize(
    ("topics", "fault"),
    [
        (["x", None], "row 12 of this task: column topic is null"),
        (["x", "a b"], "row 12 of this task: column topic is 'a b', which cannot be"),
    ],
)
def test_a_row_without_a_valid_topic_is_rejected(topics: list[str | None], fault: str) -> None:
    rows = batch(value=["a", "b"], topic=topics)
    with pytest.raises(SinkError, match=fault):
        rows_by_topic(rows, ColumnNames("value", topic="topic"), None, range(11, 13))


def headers(*rows: list[tuple[str | None, bytes | None]]) -> pa.Array:
    return pa.array([[{"name": n, "value": v} for n, v in row] for row in rows], ARROW_HEADERS)


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        (
            {"value": ["a", None]},
            "row 2 of this task: column value is null: a record needs a value",
        ),
        (
            {"value": ["a", None], "key": ["k", "key-7"]},
            "row 2 of this task, with key 'key-7': column value is null",
        ),
        (
            {"value": ["a", "b" * 101]},
            "row 2 .*: column value has 101 bytes; .* accepts 100",
        ),
        (
            {"value": ["a", "b" * 99], "key": ["k", "kk"]},
            "row 2 .*: column value has 101 bytes with key and headers",
        ),
        (
            {"value": ["a", "b"], "timestamp": pa.array([0, 2**62], pa.int64()).cast(TIME)},
            "row 2 .*: column timestamp is outside the years 1 to 9999",
        ),
        (
            {"value": ["a"], "headers": headers([("n", None)])},
            "row 1 .*: column headers has no value for 'n': null cannot be stored",
        ),
        (
            {"value": ["a"], "headers": headers([(None, b"")])},
            "row 1 .*: column headers has a header without a name",
        ),
        (
            {"value": ["a", "b"], "headers": headers([], [("n", b""), ("n", b"")])},
            "row 2 .*: column headers has two entries of the same name",
        ),
        (
            {"value": ["a"], "headers": headers([(str(at), b"") for at in range(65)])},
            "row 1 .*: column headers has 65 entries; a record may have 64",
        ),
        ({"value": ["a", "b"], "id": ["x", None]}, "row 2 .*: column id is null"),
    ],
)
def test_an_error_names_the_row_that_cannot_be_stored(columns: dict[str, Any], fault: str) -> None:
    with pytest.raises(SinkError, match=fault):
        taken(batch(**columns), ColumnNames(**{name: name for name in columns}))


def test_large_rows_are_checked_one_by_one() -> None:
    rows = batch(value=["a" * 99, "b"], key=["k", "k" * 50])
    assert taken(rows, ColumnNames("value", "key")).values == [b"a" * 99, b"b"]


def test_large_string_and_binary_columns_are_accepted() -> None:
    rows = batch(value=pa.array(["a"], pa.large_string()), key=pa.array([b"k"], pa.large_binary()))
    assert taken(rows, ColumnNames("value", "key")) == Rows([b"a"], [b"k"], None, None, None)
