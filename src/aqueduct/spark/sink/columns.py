"""Which columns of a table become records, and rows of Arrow as the lists that producers take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from aqueduct.ingest.dedup.scope import ID_HEADER
from aqueduct.ingest.protocol import FIRST_TIME, LAST_TIME, MAX_HEADERS
from aqueduct.spark.errors import SinkError, WrongOption
from aqueduct.spark.option_values import is_topic
from aqueduct.spark.sink.options import PARTS, SinkOptions

_TEXT = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_SHOWN = 40
"""Bytes of a key that are shown."""


@dataclass(frozen=True)
class Columns:
    """Names of columns, and what each is to a record."""

    value: str
    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    topic: str | None = None
    id: str | None = None


def choose_columns(schema: StructType, options: SinkOptions) -> Columns:
    """What each column is for; raises for one that is missing, unfit, or for nothing."""
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise SinkError(f"there are {names.count(name)} columns {name!r}; rename all but one")
    chosen = {part: part for part in PARTS if part in names}
    for part, name in options.columns.items():
        chosen[part] = _existing(name, part, schema)
    if "value" not in chosen:
        raise SinkError(
            f"there is no column value, which is what is stored; columns: {', '.join(names)}. "
            "Name one with option value, or make one, as with to_json(struct('*')) AS value"
        )
    if options.topic is None and "topic" not in names:
        raise WrongOption("option topic says where rows go, and is missing; so is a column topic")
    if options.topic is not None and "topic" in names and "topic" not in chosen.values():
        raise WrongOption(
            "option topic and a column topic both say where rows go; leave out the option, or drop "
            "the column"
        )
    if options.topic is None:
        chosen["topic"] = "topic"
    if options.id_column is not None:
        chosen["id"] = _existing(options.id_column, "idColumn", schema)
    for part, name in chosen.items():
        _check_type(part, name, schema[name].dataType)
    unused = [name for name in names if name not in chosen.values()]
    if unused:
        raise SinkError(
            f"column {unused[0]!r} would not be stored (a record has key, value, headers and "
            f"timestamp); drop {', '.join(unused)}, or make the value of all with "
            "to_json(struct('*')) AS value"
        )
    return Columns(**chosen)


def _existing(name: str, option: str, schema: StructType) -> str:
    if name not in schema.names:
        raise WrongOption(
            f"option {option}: there is no column {name!r}; columns: {', '.join(schema.names)}"
        )
    return name


def _check_type(part: str, name: str, kind: DataType) -> None:
    wanted, advice = _FITS[part]
    if not _fits(part, kind):
        if isinstance(kind, TimestampNTZType):
            advice = "CAST(… AS timestamp) says in which zone the time is"
        what = f"column {name!r}" if part in (name, "topic") else f"column {name!r} ({part})"
        raise SinkError(f"{what} is {kind.simpleString()}, and has to be {wanted}; {advice}")


_AS_TEXT = "CAST it to string, or use to_json"
_FITS = {
    "value": ("string or binary", _AS_TEXT),
    "key": ("string or binary", _AS_TEXT),
    "topic": ("string", "CAST it"),
    "headers": (
        "array<struct<name:string,value:binary>> or map<string,binary>",
        "map and map_from_arrays make one, and of Kafka's headers transform(headers, h -> "
        "struct(h.key AS name, h.value AS value))",
    ),
    "timestamp": ("timestamp", "to_timestamp and timestamp_micros make one"),
    "id": ("string, binary or a whole number", "CAST it to string"),
}


def _fits(part: str, kind: DataType) -> bool:
    if part == "headers":
        if isinstance(kind, MapType):
            return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _TEXT)
        entry = kind.elementType if isinstance(kind, ArrayType) else None
        return (
            isinstance(entry, StructType)
            and sorted(entry.names) == ["name", "value"]
            and isinstance(entry["name"].dataType, StringType)
            and isinstance(entry["value"].dataType, _TEXT)
        )
    if part == "timestamp":
        return isinstance(kind, TimestampType)
    if part == "id":
        return isinstance(kind, _TEXT + _WHOLE)
    return isinstance(kind, StringType if part == "topic" else _TEXT)


Headers = list[tuple[str, bytes]]


@dataclass
class Rows:
    """Rows for one topic, column by column, that can be stored."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[Headers] | None
    times: list[int | None] | None
    """Microseconds since 1970; None for now."""
    own_ids: list[bytes | int] | None


def rows_by_topic(
    batch: pa.RecordBatch, columns: Columns, topic: str | None, numbers: range
) -> list[tuple[str, pa.RecordBatch, Sequence[int]]]:
    """Topics, and of each its rows with their numbers, in the order in which they first come."""
    if columns.topic is None:
        assert topic is not None
        return [(topic, batch, numbers)]
    column = batch.column(columns.topic)
    if column.null_count:
        _refuse(batch, columns, numbers, column.is_null(), "topic", "is null: it goes nowhere")
    names = pc.unique(column).to_pylist()
    for name in names:
        if not is_topic(name):
            found = pc.equal(column, name)
            why = f"is {name[:120]!r}, which cannot be the name of one"
            _refuse(batch, columns, numbers, found, "topic", why)
    if len(names) == 1:
        return [(names[0], batch, numbers)]
    parts: list[tuple[str, pa.RecordBatch, Sequence[int]]] = []
    for name in names:
        places = pc.indices_nonzero(pc.equal(column, name))
        parts.append((name, batch.take(places), [numbers[at] for at in places.to_pylist()]))
    return parts


def take_rows(
    batch: pa.RecordBatch, columns: Columns, max_record: int, numbers: Sequence[int]
) -> Rows:
    """Rows as producers take them; raises for the first that cannot be stored.

    ``numbers`` are those of the rows in what their task writes.
    """
    value = _binary(batch, columns.value)
    key = _binary(batch, columns.key) if columns.key else None
    if value.null_count:
        _refuse(batch, columns, numbers, value.is_null(), "value", "is null: a record has a value")
    times = _times(batch, columns, numbers) if columns.timestamp else None
    headers = _headers(batch, columns, numbers) if columns.headers else None
    rows = Rows(
        value.to_pylist(),
        key.to_pylist() if key is not None else None,
        headers,
        times,
        _own_ids(batch, columns, numbers) if columns.id else None,
    )
    # Almost always the largest of each together would do.
    if headers is not None or _longest(value) + (_longest(key) if key else 0) > max_record:
        _check_sizes(rows, max_record, columns, batch, numbers)
    return rows


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name).cast(pa.binary())


def _longest(column: pa.Array) -> int:
    return pc.max(pc.binary_length(column)).as_py() or 0


def _check_sizes(
    rows: Rows, max_record: int, columns: Columns, batch: pa.RecordBatch, numbers: Sequence[int]
) -> None:
    for at, value in enumerate(rows.values):
        key = rows.keys[at] if rows.keys else None
        size = len(value) + len(key or b"")
        if rows.headers is not None:
            size += sum(len(name.encode()) + len(text) for name, text in rows.headers[at])
        if size > max_record:
            whole = "" if size == len(value) else " with key and headers"
            _refuse_one(
                batch, columns, numbers, at, "value", f"has {size:,} bytes{whole}; the server "
                f"takes {max_record:,} (aqueduct ingest --max-record)",
            )  # fmt: skip


def _times(
    batch: pa.RecordBatch, columns: Columns, numbers: Sequence[int]
) -> list[int | None] | None:
    assert columns.timestamp is not None
    column = batch.column(columns.timestamp)
    counted = column.cast(_MICROSECONDS).cast(pa.int64())
    ends = pc.min_max(counted).as_py()
    if ends["min"] is None:
        return None
    if ends["min"] < FIRST_TIME or ends["max"] > LAST_TIME:
        wrong = pc.or_(pc.less(counted, FIRST_TIME), pc.greater(counted, LAST_TIME))
        _refuse(batch, columns, numbers, wrong, "timestamp", "is outside of the years 1 to 9999")
    times: list[int | None] = counted.to_pylist()
    return times


def _own_ids(batch: pa.RecordBatch, columns: Columns, numbers: Sequence[int]) -> list[bytes | int]:
    assert columns.id is not None
    column = batch.column(columns.id)
    if column.null_count:
        _refuse(batch, columns, numbers, column.is_null(), "id", "is null: each row needs an id")
    if not pa.types.is_integer(column.type):
        column = column.cast(pa.binary())
    ids: list[bytes | int] = column.to_pylist()
    return ids


def _headers(
    batch: pa.RecordBatch, columns: Columns, numbers: Sequence[int]
) -> list[Headers] | None:
    assert columns.headers is not None
    column = batch.column(columns.headers)
    if column.null_count == len(column):
        return None
    is_map = pa.types.is_map(column.type)
    if is_map:
        names, texts = column.keys, column.items
    else:
        entries = column.values
        by_name = dict(zip(entries.type.names, entries.flatten(), strict=True))
        names, texts = by_name["name"], by_name["value"]
    pairs = list(zip(names.to_pylist(), texts.cast(pa.binary()).to_pylist(), strict=True))
    edges = column.offsets.to_pylist()
    is_there = column.is_valid().to_pylist()
    rows: list[Headers] = []
    for at, there in enumerate(is_there):
        row = pairs[edges[at] : edges[at + 1]] if there else []
        for name, text in row:
            if name is None or text is None:
                what = "has a header without a name" if name is None else f"has no {name!r}"
                _refuse_one(batch, columns, numbers, at, "headers", f"{what}: null cannot be sent")
        # What a server has added to tell rows apart is not for the next one.
        row = [pair for pair in row if pair[0] != ID_HEADER]
        if len(row) > MAX_HEADERS:
            _refuse_one(
                batch, columns, numbers, at, "headers", f"has {len(row)}; a record may have "
                f"{MAX_HEADERS}",
            )  # fmt: skip
        if len({name for name, _ in row}) < len(row):
            _refuse_one(batch, columns, numbers, at, "headers", "has two of the same name")
        # A map has no order, and may come in another one the next time.
        rows.append(sorted(row) if is_map else row)
    return rows


def _refuse(
    batch: pa.RecordBatch,
    columns: Columns,
    numbers: Sequence[int],
    wrong: pa.Array,
    part: str,
    why: str,
) -> None:
    """Raise for the first row that is wrong."""
    _refuse_one(batch, columns, numbers, pc.index(wrong, True).as_py(), part, why)


def _refuse_one(
    batch: pa.RecordBatch,
    columns: Columns,
    numbers: Sequence[int],
    at: int,
    part: str,
    why: str,
) -> None:
    raise SinkError(f"{_row(batch, columns, numbers, at)}: column {getattr(columns, part)} {why}")


def _row(batch: pa.RecordBatch, columns: Columns, numbers: Sequence[int], at: int) -> str:
    """How somebody finds a row again."""
    number = f"row {numbers[at]:,} of this task"
    key = batch.column(columns.key)[at].as_py() if columns.key else None
    return number if key is None else f"{number}, with key {key[:_SHOWN]!r}"
