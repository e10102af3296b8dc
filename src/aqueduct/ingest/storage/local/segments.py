"""Segments: immutable Parquet files of a partition, written from its log."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.records import STORED
from aqueduct.ingest.storage.local.file_modes import create
from aqueduct.ingest.storage.local.files import removed_on_failure, sync_directory

ROW_GROUP = 65_536
"""Rows of a row group: a few megabytes to read at once, and enough to compress columns well."""
_ROW_GROUP_BYTES = 8 * 1024 * 1024
_COLUMN_ROWS = 8_192
"""Rows to decode at once if only some columns are read, so that few of them are in memory."""
_TEMPORARY = ".tmp"
_PIECE = 1024 * 1024


def write_segment(path: Path, batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Write rows into a new file, atomically and durably; return its size and checksum."""
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
    with removed_on_failure(temporary), open(temporary, "w+b", opener=create) as file:
        # Most values are distinct, so a dictionary would only cost time.
        with pq.ParquetWriter(
            file,
            STORED,
            compression="zstd",
            compression_level=1,
            use_dictionary=["producer_id"],
            write_page_checksum=True,
        ) as writer:
            for group in _row_groups(batches):
                writer.write_table(group, row_group_size=group.num_rows)
                del group  # before the next one is read: each is megabytes
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
        checksum = _checksum(file)
    os.replace(temporary, path)
    sync_directory(path.parent)
    return size, checksum


def check_segment(path: Path, checksum: int) -> None:
    """Raise `CorruptFile` unless a file has its checksum."""
    with path.open("rb") as file:
        if _checksum(file) != checksum:
            raise CorruptFile(path, 0, "the checksum of the segment is wrong")


def _checksum(file: BinaryIO) -> int:
    file.seek(0)
    checksum = 0
    while piece := file.read(_PIECE):
        checksum = zlib.crc32(piece, checksum)
    return checksum


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        del batch
        if rows >= ROW_GROUP or size >= _ROW_GROUP_BYTES:
            table = pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
            yield table
            del table
    if waiting:
        yield pa.Table.from_batches(waiting)


def read_segment(
    path: Path, first: int, start: int, end: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows from ``start`` up to ``end`` of a file whose first offset is ``first``.

    With ``columns`` they are decoded in small batches by the calling thread alone, which can then
    return all of the memory: what other threads of Arrow have freed stays with those.
    """
    with _opened(path) as file:
        for number, begin, stop in _groups(path, file, first, end):
            if start >= stop:
                continue
            if columns is not None:
                yield from _read_columns(file, number, columns, start - begin, end - begin)
                continue
            group = file.read_row_group(number)
            rows = group.slice(max(start - begin, 0), min(end, stop) - max(start, begin))
            yield from rows.cast(STORED).to_batches()


def _read_columns(
    file: pq.ParquetFile, number: int, columns: Sequence[str], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Columns of the rows of a group from ``start`` up to ``end``, counted within the group."""
    schema = pa.schema([STORED.field(name) for name in columns])
    begin = 0
    for batch in file.iter_batches(_COLUMN_ROWS, [number], schema.names, use_threads=False):
        stop = begin + batch.num_rows
        if start < stop and begin < end:
            rows = batch.slice(max(start - begin, 0), min(end, stop) - max(start, begin))
            yield rows.select(schema.names).cast(schema)
        begin = stop


def first_stored_at(path: Path, first: int, end: int, timestamp: int) -> int:
    """Return the first offset whose row was stored at or after a time; ``end`` if there is none."""
    with _opened(path) as file:
        for number, begin, _ in _groups(path, file, first, end):
            times = file.read_row_group(number, ["ingest_time"]).column(0).cast(pa.int64())
            at = pc.index(pc.greater_equal(times, timestamp), True).as_py()
            if at >= 0:
                return begin + int(at)
    return end


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFile(path, 0, f"not a segment that can be read: {error}") from None


def _groups(
    path: Path, file: pq.ParquetFile, first: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the row groups that begin before ``end``: number, first offset, offset after it."""
    begin = first
    for number in range(file.num_row_groups):
        if begin >= end:
            return
        stop = begin + file.metadata.row_group(number).num_rows
        yield number, begin, stop
        begin = stop
    if begin < end:
        raise CorruptFile(path, 0, f"the segment ends at offset {begin}, not at {end}")


def leftovers(directory: Path) -> list[Path]:
    """Return temporary files that a crash left."""
    return [path for path in directory.iterdir() if path.name.endswith(_TEMPORARY)]
