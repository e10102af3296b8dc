"""Map the columns of a table to fields of records, and convert Arrow rows for producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

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
from aqueduct.spark.options import RECORD_FIELDS, SinkOptions, is_topic

_TEXT = (StringType, BinaryType)
_INTEGER = (ByteType, ShortType, IntegerType, LongType)
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_SHOWN = 40
"""The most characters of a key in an error."""


@dataclass(frozen=True)
class ColumnNames:
    """The column of each field of a record."""

    value: str
    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    topic: str | None = None
    id: str | None = None


def choose_columns(schema: StructType, options: SinkOptions) -> ColumnNames:
    """Map fields to columns; raise for a column that is missing, unused, or of a wrong type."""
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise SinkError(f"there are {names.count(name)} columns {name!r}; rename all but one")
    chosen = {part: part for part in RECORD_FIELDS if part in names}
    for part, name in options.columns.items():
        chosen[part] = _existing(name, part, schema)
    if "value" not in chosen:
        raise SinkError(
            f"there is no column value, which every record needs; columns: {', '.join(names)}. "
            "Name one with option value, or add one, such as to_json(struct('*')) AS value"
        )
    if options.topic is None and "topic" not in names:
        raise WrongOption("there is neither an option topic nor a column topic, and one is needed")
    if options.topic is not None and "topic" in names and "topic" not in chosen.values():
        raise WrongOption(
            "option topic and column topic exclude each other; leave out the option, or drop the "
            "column"
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
            f"timestamp); drop {', '.join(unused)}, or store all columns as "
            "to_json(struct('*')) AS value"
        )
    return ColumnNames(**chosen)


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
            advice = "CAST(… AS timestamp) uses the time zone of the session"
        what = f"column {name!r}" if part in (name, "topic") else f"column {name!r} ({part})"
        raise SinkError(f"{what} is {kind.simpleString()}, and must be {wanted}; {advice}")


_AS_TEXT = "CAST it to string, or use to_json"
_FITS = {
    "value": ("string or binary", _AS_TEXT),
    "key": ("string or binary", _AS_TEXT),
    "topic": ("string", "CAST it"),
    "headers": (
        "array<struct<name:string,value:binary>> or map<string,binary>",
        "use map or map_from_arrays, or for headers of Kafka transform(headers, h -> "
        "struct(h.key AS name, h.value AS value))",
    ),
    "timestamp": ("timestamp", "use to_timestamp or timestamp_micros"),
    "id": ("string, binary or an integer", "CAST it to string"),
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
        return isinstance(kind, _TEXT + _INTEGER)
    return isinstance(kind, StringType if part == "topic" else _TEXT)


Headers = list[tuple[str, bytes]]


@dataclass
class Rows:
    """Valid rows for one topic, by column."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[Headers] | None
    times: list[int | None] | None
    """Microseconds since 1970; None for the current time."""
    user_ids: list[bytes | int] | None
    """The values of option idColumn."""


@dataclass(frozen=True)
class _Input:
    """Rows of a task, with their numbers for errors."""

    batch: pa.RecordBatch
    columns: ColumnNames
    numbers: Sequence[int]

    def column(self, part: str) -> pa.Array:
        return self.batch.column(getattr(self.columns, part))

    def reject(self, wrong: pa.Array | int, part: str, why: str) -> NoReturn:
        """Raise for a row, or for the first row that an array of Booleans marks."""
        at = wrong if isinstance(wrong, int) else pc.index(wrong, True).as_py()
        row = f"row {self.numbers[at]:,} of this task"
        if self.columns.key and (key := self.column("key")[at].as_py()) is not None:
            row += f", with key {key[:_SHOWN]!r}"
        raise SinkError(f"{row}: column {getattr(self.columns, part)} {why}")


def rows_by_topic(
    batch: pa.RecordBatch, columns: ColumnNames, topic: str | None, numbers: range
) -> list[tuple[str, pa.RecordBatch, Sequence[int]]]:
    """Group rows by topic, with their row numbers, in the order of the first row of each topic."""
    if columns.topic is None:
        assert topic is not None
        return [(topic, batch, numbers)]
    rows = _Input(batch, columns, numbers)
    column = rows.column("topic")
    if column.null_count:
        rows.reject(column.is_null(), "topic", "is null, and must name a topic")
    names = pc.unique(column).to_pylist()
    for name in names:
        if not is_topic(name):
            why = f"is {name[:120]!r}, which cannot be the name of a topic"
            rows.reject(pc.equal(column, name), "topic", why)
    if len(names) == 1:
        return [(names[0], batch, numbers)]
    parts: list[tuple[str, pa.RecordBatch, Sequence[int]]] = []
    for name in names:
        indices = pc.indices_nonzero(pc.equal(column, name))
        parts.append((name, batch.take(indices), [numbers[at] for at in indices.to_pylist()]))
    return parts


def take_rows(
    batch: pa.RecordBatch, columns: ColumnNames, max_record: int, numbers: Sequence[int]
) -> Rows:
    """Convert rows for a producer; raise `SinkError` for the first that cannot be stored.

    ``numbers`` are the row numbers within the task, for errors.
    """
    source = _Input(batch, columns, numbers)
    value = source.column("value").cast(pa.binary())
    key = source.column("key").cast(pa.binary()) if columns.key else None
    if value.null_count:
        source.reject(value.is_null(), "value", "is null: a record needs a value")
    rows = Rows(
        value.to_pylist(),
        key.to_pylist() if key is not None else None,
        _headers(source) if columns.headers else None,
        _times(source) if columns.timestamp else None,
        _user_ids(source) if columns.id else None,
    )
    # Fast path: almost always even the largest key and value together fit.
    if rows.headers is not None or _longest(value) + (_longest(key) if key else 0) > max_record:
        _check_sizes(rows, max_record, source)
    return rows


def _longest(column: pa.Array) -> int:
    return pc.max(pc.binary_length(column)).as_py() or 0


def _check_sizes(rows: Rows, max_record: int, source: _Input) -> None:
    for at, value in enumerate(rows.values):
        key = rows.keys[at] if rows.keys else None
        size = len(value) + len(key or b"")
        if rows.headers is not None:
            size += sum(len(name.encode()) + len(text) for name, text in rows.headers[at])
        if size > max_record:
            whole = "" if size == len(value) else " with key and headers"
            limit = f"the server accepts {max_record:,} (aqueduct ingest --max-record)"
            source.reject(at, "value", f"has {size:,} bytes{whole}; {limit}")


def _times(source: _Input) -> list[int | None] | None:
    counted = source.column("timestamp").cast(_MICROSECONDS).cast(pa.int64())
    ends = pc.min_max(counted).as_py()
    if ends["min"] is None:
        return None
    if ends["min"] < FIRST_TIME or ends["max"] > LAST_TIME:
        wrong = pc.or_(pc.less(counted, FIRST_TIME), pc.greater(counted, LAST_TIME))
        source.reject(wrong, "timestamp", "is outside the years 1 to 9999")
    times: list[int | None] = counted.to_pylist()
    return times


def _user_ids(source: _Input) -> list[bytes | int]:
    column = source.column("id")
    if column.null_count:
        source.reject(column.is_null(), "id", "is null: each row needs an id")
    if not pa.types.is_integer(column.type):
        column = column.cast(pa.binary())
    ids: list[bytes | int] = column.to_pylist()
    return ids


def _headers(source: _Input) -> list[Headers] | None:
    column = source.column("headers")
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
    rows: list[Headers] = []
    for at, is_valid in enumerate(column.is_valid().to_pylist()):
        row = pairs[edges[at] : edges[at + 1]] if is_valid else []
        for name, text in row:
            if name is None or text is None:
                what = "a header without a name" if name is None else f"no value for {name!r}"
                source.reject(at, "headers", f"has {what}: null cannot be stored")
        # The id header is internal to the server that the rows were read from.
        row = [pair for pair in row if pair[0] != ID_HEADER]
        if len(row) > MAX_HEADERS:
            why = f"has {len(row)} entries; a record may have {MAX_HEADERS}"
            source.reject(at, "headers", why)
        if len({name for name, _ in row}) < len(row):
            source.reject(at, "headers", "has two entries of the same name")
        # A map has no defined order, which would change the row id on a retry.
        rows.append(sorted(row) if is_map else row)
    return rows
