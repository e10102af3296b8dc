"""Rows as Arrow has them: the schema of what is stored, and batches made from records."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from aqueduct.ingest.dedup.scope import ID_HEADER, ID_SIZE
from aqueduct.ingest.protocol import Records

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
"""What a partition stores; topic and partition are where it stores it."""

ROWS = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *STORED,
    ]
)
"""What readers see."""


PIECE_ROWS = 16_384
PIECE_BYTES = 1024 * 1024
"""What is handed over at once: enough that a row costs little, far less than a message may be."""


@dataclass(slots=True)
class Chunk:
    """Records of one producer for one partition, in order, before they have offsets."""

    producer_id: str
    sequences: Sequence[int]
    values: Sequence[bytes]
    timestamps: Sequence[int]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Sequence[tuple[str, bytes]]] | None = None
    ids: Sequence[bytes] | None = None
    """What each is known by, if not by its number; stored in a header."""


def pick_runs(
    producer: str, records: Records, runs: Sequence[slice], ids: Sequence[bytes] | None = None
) -> Chunk:
    """Some runs of the records."""
    return _pick(producer, records, lambda column: _joined([column[run] for run in runs]), ids)


def pick_places(
    producer: str, records: Records, places: Sequence[int], ids: Sequence[bytes] | None = None
) -> Chunk:
    """The records at some places."""
    return _pick(producer, records, lambda column: [column[at] for at in places], ids)


def _pick(
    producer: str,
    records: Records,
    pick: Callable[[Sequence[Any]], Sequence[Any]],
    ids: Sequence[bytes] | None,
) -> Chunk:
    return Chunk(
        producer,
        pick(range(records.sequence, records.sequence + len(records.values))),
        pick(records.values),
        pick(records.timestamps),
        None if records.keys is None else pick(records.keys),
        None if records.headers is None else pick(records.headers),
        None if ids is None else pick(ids),
    )


def make_batch(chunks: Sequence[Chunk], first_offset: int, ingest_time: int) -> pa.RecordBatch:
    """The rows of chunks, one behind the other, with offsets from the first on."""
    counts = [len(chunk.values) for chunk in chunks]
    count = sum(counts)
    columns = [
        _integers([range(first_offset, first_offset + count)]),
        _optional([chunk.keys for chunk in chunks], counts, pa.binary()),
        pa.array(_joined([chunk.values for chunk in chunks]), pa.binary()),
        _headers(chunks, counts),
        _integers([chunk.timestamps for chunk in chunks]).view(TIME),
        pa.repeat(pa.scalar(ingest_time, TIME), count),
        _named([chunk.producer_id for chunk in chunks], counts),
        _integers([chunk.sequences for chunk in chunks]),
    ]
    return pa.record_batch(columns, schema=STORED)


def in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a good size: small ones joined, large ones cut."""
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
    """Stored rows as readers see them."""
    count = batch.num_rows
    where = [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
    ]
    return pa.record_batch([*where, *batch.columns], schema=ROWS)


# Arrow converts a whole column at once: a call for each small piece costs more than the piece.


def _joined(pieces: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return pieces[0] if len(pieces) == 1 else list(chain.from_iterable(pieces))


def _integers(pieces: Sequence[Sequence[int]]) -> pa.Array:
    numbers = array("q")
    for piece in pieces:
        numbers.extend(piece)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _optional(
    pieces: Sequence[Sequence[Any] | None], counts: Sequence[int], kind: pa.DataType
) -> pa.Array:
    if all(piece is None for piece in pieces):
        return pa.nulls(sum(counts), kind)
    filled = [
        [None] * count if piece is None else piece
        for piece, count in zip(pieces, counts, strict=True)
    ]
    return pa.array(_joined(filled), kind)


def _headers(chunks: Sequence[Chunk], counts: Sequence[int]) -> pa.Array:
    if all(chunk.ids is None for chunk in chunks):
        return _optional([chunk.headers for chunk in chunks], counts, HEADERS)
    return pa.concat_arrays(
        [
            _optional([chunk.headers], [count], HEADERS)
            if chunk.ids is None
            else _with_ids(chunk, chunk.ids)
            for chunk, count in zip(chunks, counts, strict=True)
        ]
    )


def _with_ids(chunk: Chunk, ids: Sequence[bytes]) -> pa.Array:
    """The headers of rows, and behind them what each is known by."""
    if chunk.headers is not None:
        rows = [
            [*(pair for pair in row if pair[0] != ID_HEADER), (ID_HEADER, each)]
            for row, each in zip(chunk.headers, ids, strict=True)
        ]
        return pa.array(rows, HEADERS)
    # Without a tuple and a list for each row, which would take longer than all the rest.
    count = len(ids)
    ends = pa.py_buffer(array("i", range(0, (count + 1) * ID_SIZE, ID_SIZE)))
    values = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(b"".join(ids))])
    names = pa.repeat(pa.scalar(ID_HEADER, pa.string()), count)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    one_each = pa.py_buffer(array("i", range(count + 1)))
    return pa.Array.from_buffers(HEADERS, count, [None, one_each], children=[pairs])


def _named(names: Sequence[str], counts: Sequence[int]) -> pa.Array:
    # With its type given: without, Arrow looks for numpy each time, on disk if it is not there.
    if len(set(names)) == 1:
        return pa.repeat(pa.scalar(names[0], pa.string()), sum(counts))
    runs = [[name] * count for name, count in zip(names, counts, strict=True)]
    return pa.array(_joined(runs), pa.string())
