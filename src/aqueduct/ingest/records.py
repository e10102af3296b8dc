"""Records as columns, and their Arrow form: the schemas of stored rows, and batches of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec
import pyarrow as pa

from aqueduct.ingest.dedup.scope import ID_HEADER, ID_SIZE, cut_ids
from aqueduct.ingest.partitioning import partition_of
from aqueduct.ingest.protocol import MAX_HEADERS, MAX_RECORDS

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")

STORED = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", HEADERS),
        pa.field("timestamp", TIME, nullable=False),
        pa.field("ingest_time", TIME, nullable=False),
        pa.field("producer_id", pa.string(), nullable=False),
        pa.field("producer_sequence", pa.int64(), nullable=False),
    ]
)
"""The rows that a partition stores."""

ROWS = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *STORED,
    ]
)
"""The rows that readers return: stored rows with their topic and partition."""


PIECE_ROWS = 16_384
PIECE_BYTES = 1024 * 1024
"""The size of a batch of rows: it amortizes the cost of a batch, and is far below a message's."""

S = TypeVar("S", bound=Sequence[Any])

_COLUMN = msgspec.Meta(max_length=MAX_RECORDS)
Headers = Annotated[list[tuple[str, bytes]], msgspec.Meta(max_length=MAX_HEADERS)]
"""The headers of one record, as (name, value)."""


def joined(pieces: Sequence[S]) -> S | list[Any]:
    """Return all elements in one sequence; a single piece as it is."""
    return pieces[0] if len(pieces) == 1 else list(chain.from_iterable(pieces))


class RecordColumns(msgspec.Struct, array_like=True):
    """Records of one producer, as columns of equal length.

    Producers build it, the wire carries it (as a MessagePack array of its fields), and the server
    stores it. An optional column is None if no record has a value for it.
    """

    sequence: int
    """The sequence number of the first record; the others follow without a gap."""
    values: Annotated[list[bytes], _COLUMN]
    timestamps: Annotated[list[int], _COLUMN]
    """When the producer got each record, in microseconds since 1970."""
    keys: Annotated[list[bytes | None], _COLUMN] | None = None
    headers: Annotated[list[Headers], _COLUMN] | None = None
    partition: int | None = None
    """The partition of all records; None if `partitions` or the keys select it."""
    partitions: Annotated[list[int], _COLUMN] | None = None
    """The partition of each record, if they differ and the keys do not select them."""
    ids: bytes | None = None
    """The concatenated row ids, if the records are deduplicated by id."""
    is_last: bool = False
    """Whether the part of the job is complete with these records."""

    @property
    def sequences(self) -> range:
        """The sequence number of each record."""
        return range(self.sequence, self.sequence + len(self.values))

    def size(self, skip: int = 0) -> int:
        """Return the bytes of keys, values and headers, without the first ``skip`` records."""
        size = sum(map(len, self.values[skip:] if skip else self.values))
        if self.keys is not None:
            size += sum(len(key) for key in self.keys[skip:] if key is not None)
        if self.headers is not None:
            rows = self.headers[skip:]
            size += sum(len(name) + len(value) for row in rows for name, value in row)
        return size

    def partitions_at(self, indices: Sequence[int], count: int) -> list[int]:
        """Return the partition of the records at some indices, of ``count`` partitions."""
        if self.partition is not None:
            return [self.partition] * len(indices)
        if self.partitions is not None:
            return [self.partitions[at] for at in indices]
        if self.keys is None:
            return [partition_of(None, self.sequence + at, count) for at in indices]
        return [partition_of(self.keys[at], self.sequence + at, count) for at in indices]

    def pick_runs(self, runs: Sequence[slice]) -> RecordColumns:
        """Return the records in some slices, without their sequence numbers and partitions."""
        ids = self.ids
        return self._pick(
            lambda column: joined([column[run] for run in runs]),
            ids and b"".join([ids[run.start * ID_SIZE : run.stop * ID_SIZE] for run in runs]),
        )

    def pick_indices(self, indices: Sequence[int]) -> RecordColumns:
        """Return the records at some indices, without their sequence numbers and partitions."""
        ids = self.ids
        return self._pick(
            lambda column: [column[at] for at in indices],
            ids and b"".join([ids[at * ID_SIZE : (at + 1) * ID_SIZE] for at in indices]),
        )

    def _pick(self, pick: Callable[[list[Any]], list[Any]], ids: bytes | None) -> RecordColumns:
        return RecordColumns(
            0,
            pick(self.values),
            pick(self.timestamps),
            None if self.keys is None else pick(self.keys),
            None if self.headers is None else pick(self.headers),
            ids=ids,
        )


@dataclass(slots=True)
class Chunk:
    """Records of one producer for one partition, in order, before they have offsets."""

    producer_id: str
    columns: RecordColumns
    sequences: Sequence[int]
    """The sequence number of each record: a partition need not get consecutive ones."""


def make_batch(chunks: Sequence[Chunk], first_offset: int, ingest_time: int) -> pa.RecordBatch:
    """Return the rows of all chunks in order, with offsets from ``first_offset`` on."""
    columns = [chunk.columns for chunk in chunks]
    counts = [len(each.values) for each in columns]
    count = sum(counts)
    arrays = [
        _integers([range(first_offset, first_offset + count)]),
        _optional([each.keys for each in columns], counts, pa.binary()),
        pa.array(joined([each.values for each in columns]), pa.binary()),
        _headers(columns, counts),
        _integers([each.timestamps for each in columns]).view(TIME),
        pa.repeat(pa.scalar(ingest_time, TIME), count),
        _named([chunk.producer_id for chunk in chunks], counts),
        _integers([chunk.sequences for chunk in chunks]),
    ]
    return pa.record_batch(arrays, schema=STORED)


def in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about `PIECE_BYTES`: join small ones, split large ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _cut(batch):
            if waiting and (
                rows + piece.num_rows > PIECE_ROWS or size + piece.nbytes > PIECE_BYTES
            ):
                yield _together(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
    if waiting:
        yield _together(waiting)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    parts = max(batch.nbytes // PIECE_BYTES, batch.num_rows // PIECE_ROWS) + 1
    step = max(-(-batch.num_rows // parts), 1)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def as_rows(batch: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Return stored rows with their topic and partition."""
    count = batch.num_rows
    where = [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
    ]
    return pa.record_batch([*where, *batch.columns], schema=ROWS)


# Convert a whole column with one call: a call for each chunk costs more than its conversion.


def _integers(pieces: Sequence[Sequence[int]]) -> pa.Array:
    numbers = array("q")
    for piece in pieces:
        numbers.extend(piece)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _optional(
    pieces: Sequence[list[Any] | None], counts: Sequence[int], kind: pa.DataType
) -> pa.Array:
    if all(piece is None for piece in pieces):
        return pa.nulls(sum(counts), kind)
    filled = [
        [None] * count if piece is None else piece
        for piece, count in zip(pieces, counts, strict=True)
    ]
    return pa.array(joined(filled), kind)


def _headers(columns: Sequence[RecordColumns], counts: Sequence[int]) -> pa.Array:
    if all(each.ids is None for each in columns):
        return _optional([each.headers for each in columns], counts, HEADERS)
    return pa.concat_arrays(
        [
            _optional([each.headers], [count], HEADERS)
            if each.ids is None
            else _with_ids(each.headers, each.ids, count)
            for each, count in zip(columns, counts, strict=True)
        ]
    )


def _with_ids(headers: list[Headers] | None, ids: bytes, count: int) -> pa.Array:
    """Return the headers of rows, each followed by the header with the row id."""
    if headers is not None:
        rows = [
            [*(pair for pair in row if pair[0] != ID_HEADER), (ID_HEADER, each)]
            for row, each in zip(headers, cut_ids(ids), strict=True)
        ]
        return pa.array(rows, HEADERS)
    # Built from buffers: a tuple and a list for each row would dominate the cost of the batch.
    ends = pa.py_buffer(array("i", range(0, (count + 1) * ID_SIZE, ID_SIZE)))
    values = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(ids)])
    names = pa.repeat(pa.scalar(ID_HEADER, pa.string()), count)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    one_each = pa.py_buffer(array("i", range(count + 1)))
    return pa.Array.from_buffers(HEADERS, count, [None, one_each], children=[pairs])


def _named(names: Sequence[str], counts: Sequence[int]) -> pa.Array:
    # With an explicit type: otherwise Arrow tries to import numpy each time.
    if len(set(names)) == 1:
        return pa.repeat(pa.scalar(names[0], pa.string()), sum(counts))
    runs = [[name] * count for name, count in zip(names, counts, strict=True)]
    return pa.array(joined(runs), pa.string())
