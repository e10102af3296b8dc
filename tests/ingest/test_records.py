"""Rows as Arrow record batches."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.ingest.records import (
    PIECE_BYTES,
    PIECE_ROWS,
    ROWS,
    STORED,
    Chunk,
    RecordColumns,
    as_rows,
    in_pieces,
    make_batch,
)
from tests.ingest.storing import chunk_of


def chunk(count: int, size: int = 4) -> Chunk:
    columns = RecordColumns(1, [bytes(size)] * count, [5] * count)
    return Chunk("p", columns, columns.sequences)


def test_chunks_are_concatenated_with_dense_offsets() -> None:
    first = chunk_of("p", [1, 2], [b"a", b""], [10, 11])
    second = chunk_of("q", [9], [b"c"], [12], [b"k"], [[("h", b"v"), ("h", b"")]])
    batch = make_batch([first, second], 100, 77)
    assert batch.schema == STORED
    assert batch.column("offset").to_pylist() == [100, 101, 102]
    assert batch.column("key").to_pylist() == [None, None, b"k"]
    assert batch.column("value").to_pylist() == [b"a", b"", b"c"]
    assert batch.column("headers").to_pylist() == [
        None,
        None,
        [{"name": "h", "value": b"v"}, {"name": "h", "value": b""}],
    ]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [10, 11, 12]
    assert set(batch.column("ingest_time").cast(pa.int64()).to_pylist()) == {77}
    assert batch.column("producer_id").to_pylist() == ["p", "p", "q"]
    assert batch.column("producer_sequence").to_pylist() == [1, 2, 9]


def test_an_empty_key_is_not_a_missing_one() -> None:
    batch = make_batch([chunk_of("p", [1, 2], [b"", b""], [0, 0], [b"", None])], 0, 0)
    assert batch.column("key").to_pylist() == [b"", None]


@given(
    st.lists(st.integers(0, 40_000), max_size=6),
    st.sampled_from([0, 1, 100, 5_000]),
)
def test_pieces_hold_the_same_rows_and_are_never_large(counts: list[int], size: int) -> None:
    counts = [min(count, 4 * PIECE_BYTES // max(size, 100)) for count in counts]
    start = 0
    batches = []
    for count in counts:
        if count:
            batches.append(make_batch([chunk(count, size)], start, 0))
            start += count
    pieces = list(in_pieces(batches))
    assert all(0 < piece.num_rows <= PIECE_ROWS for piece in pieces)
    offsets = [offset for piece in pieces for offset in piece.column("offset").to_pylist()]
    assert offsets == list(range(start))
    for piece in pieces:
        assert piece.nbytes <= PIECE_BYTES + 8 * piece.num_rows or piece.num_rows == 1


@pytest.mark.parametrize("count", [0, 3])
def test_rows_have_their_topic_and_partition(count: int) -> None:
    rows = as_rows(make_batch([chunk(count)], 0, 0), "weather", 3)
    assert rows.schema == ROWS
    assert rows.column("topic").to_pylist() == ["weather"] * count
    assert rows.column("partition").to_pylist() == [3] * count
