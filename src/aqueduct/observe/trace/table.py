"""Converts a batch to an Arrow table with one row per message, by vector operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aqueduct.observe.trace.batch import FIELDS, RowBatch
from aqueduct.observe.trace.kinds import (
    FIN,
    FRAME_NAMES,
    FRAME_SHIFT,
    NULL,
    SIZED,
    SPACE_SHIFT,
    Kind,
)
from aqueduct.observe.trace.schema import RARE, SCHEMA, WRITTEN
from aqueduct.wire.chanid import describe
from aqueduct.wire.primitives import MAX_VARINT

# Converting a Python integer costs more than an operation on a column, so do it once.
_SCALARS = {number: pa.scalar(number, pa.int64()) for number in (0, 1, 3, 0xFF, 1000, NULL)}
_SHIFTS = {
    shift: pa.scalar(shift, pa.int64())
    for shift in (1, FRAME_SHIFT, SPACE_SHIFT, FIN.bit_length() - 1, SIZED.bit_length() - 1)
}
_NONE = pa.scalar(None, pa.int64())
_SIDES = ("client", "server", "")
_KINDS = [kind.name.lower() for kind in Kind]
_ROLES = ["receiver", "sender"]
_SPACES = pa.array([None, False, True])
_FINS = pa.array([None, True])


def to_table(batch: RowBatch, recorder: str, sequence: int, wall_offset: int) -> pa.Table:
    """Return the rows of a batch, numbered from ``sequence``.

    ``wall_offset`` is what to add to the monotonic time for nanoseconds since 1970.
    """
    time, connection, code, channel, message, count, stream, value = (
        _numbers(batch, field) for field in range(FIELDS)
    )
    rows = batch.rows
    index = _spread(count, rows)
    columns: dict[str, Any] = {}
    columns["recorder"] = _named([recorder], pa.nulls(rows, pa.int64()).fill_null(0))
    columns["sequence"] = pa.arange(sequence, sequence + rows)
    columns["monotonic_ns"] = _take(time, index)
    wall = pc.divide(pc.add(time, pa.scalar(wall_offset, pa.int64())), _SCALARS[1000])
    columns["wall"] = _take(wall.cast(pa.timestamp("us", tz="UTC")), index)
    connections = list(batch.connections)
    columns["connection"] = _named([one for one, _ in connections], _take(connection, index))
    sides = pa.array([_SIDES.index(side) for _, side in connections], pa.int64())
    side = sides.take(connection)
    columns["side"] = _named(_SIDES, _take(side, index))
    columns["kind"] = _named(_KINDS, _take(_bits(code, 0, 0xFF), index))
    columns["frame"] = _named(FRAME_NAMES, _take(_frames(code), index))
    channel = _nullable(channel)
    columns["channel"] = _take(channel, index)
    found = channel.dictionary_encode()
    names = [describe(number & MAX_VARINT) for number in found.dictionary.to_pylist()]
    columns["channel_name"] = _named(names, _take(found.indices.cast(pa.int64()), index))
    # AQ-CHANID-1: the id of a channel says which side sends.
    role = pc.equal(_bits(channel, 1, 1), side).cast(pa.int64())
    columns["role"] = _named(_ROLES, _take(role, index))
    columns["message"] = _message_numbers(_nullable(message), count, index, rows)
    columns["reliable"] = _take(_SPACES.take(_bits(code, SPACE_SHIFT, 3)), index)
    size = _sizes(batch, code, index, rows)
    columns["size"] = size
    columns["stream"] = _take(_nullable(stream), index)
    columns["fin"] = _take(_FINS.take(_bits(code, FIN.bit_length() - 1, 1)), index)
    columns["value"] = _take(_nullable(value), index)
    for name in RARE:
        columns[name] = _rare(batch, name, index, rows)
    columns["payload_size"] = pc.coalesce(columns["payload_size"], size)
    return pa.Table.from_arrays([columns[name] for name in WRITTEN.names], schema=WRITTEN)


def _numbers(batch: RowBatch, field: int) -> Any:
    column = batch.numbers[field::FIELDS]
    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)])


def _spread(count: Any, rows: int) -> Any:
    """Return the run of each row, or None if each run is one row."""
    runs = len(count)
    if runs == rows:
        return None
    ends = pc.cumulative_sum(count)
    encoded = pa.RunEndEncodedArray.from_arrays(
        ends, pa.arange(0, runs), pa.run_end_encoded(pa.int64(), pa.int64())
    )
    return pc.run_end_decode(encoded)


def _take(column: Any, index: Any) -> Any:
    return column if index is None else column.take(index)


def _named(names: Sequence[str], indexes: Any) -> Any:
    return pa.DictionaryArray.from_arrays(indexes, pa.array(names, pa.string()))


def _frames(code: Any) -> Any:
    frame = _bits(code, FRAME_SHIFT, 0xFF)
    return pc.if_else(pc.equal(frame, _SCALARS[0]), _NONE, frame)


def _bits(code: Any, shift: int, mask: int) -> Any:
    if shift:
        code = pc.shift_right(code, _SHIFTS[shift])
    return pc.bit_wise_and(code, _SCALARS[mask])


def _nullable(column: Any) -> Any:
    return pc.if_else(pc.equal(column, _SCALARS[NULL]), _NONE, column)


def _message_numbers(first: Any, count: Any, index: Any, rows: int) -> Any:
    if index is None:
        return first
    starts = pc.subtract(pc.cumulative_sum(count), count)
    return pc.add(pc.subtract(first, starts).take(index), pa.arange(0, rows))


def _sizes(batch: RowBatch, code: Any, index: Any, rows: int) -> Any:
    sizes = pa.Array.from_buffers(pa.int64(), len(batch.sizes), [None, pa.py_buffer(batch.sizes)])
    if len(sizes) == rows:
        return sizes
    sized = _bits(code, SIZED.bit_length() - 1, 1).cast(pa.bool_())
    return pc.replace_with_mask(pa.nulls(rows, pa.int64()), _take(sized, index), sizes)


def _rare(batch: RowBatch, name: str, index: Any, rows: int) -> Any:
    kind = SCHEMA.field(name).type
    if name not in batch.rare:
        return pa.nulls(rows, kind)
    runs, values = batch.rare[name]
    positions = pa.array(runs, pa.int64())
    # The position of each run's value among the few values, or null.
    where = pc.index_in(pa.arange(0, batch.runs), positions)
    return _take(pa.array(values, kind).take(where), index)
