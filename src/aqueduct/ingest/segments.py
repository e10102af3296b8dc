"""Segments: Parquet files of a partition, written once from its log and never changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from aqueduct.ingest.faults import CorruptFile
from aqueduct.ingest.manifest import sync_directory
from aqueduct.ingest.rows import STORED

ROW_GROUP = 65_536
"""Rows that are read together: some megabytes, and enough for columns to be packed well."""
_ROW_GROUP_BYTES = 16 * 1024 * 1024
_TEMPORARY = ".tmp"


def write_segment(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows into a new file, and return its size; it is there as a whole or not at all."""
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
    with temporary.open("wb") as file:
        # Values are mostly different: a dictionary of them would be built in vain.
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
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    os.replace(temporary, path)
    sync_directory(path.parent)
    return size


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP or size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def read_segment(path: Path, first: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The rows with offsets from ``start`` up to ``end``, of a file that begins at ``first``."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            begin = first
            for number in range(file.num_row_groups):
                stop = begin + file.metadata.row_group(number).num_rows
                if begin < end and start < stop:
                    group = file.read_row_group(number)
                    rows = group.slice(max(start - begin, 0), min(end, stop) - max(start, begin))
                    yield from rows.cast(STORED).to_batches()
                begin = stop
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFile(path, 0, f"not a segment that can be read: {error}") from None


def leftovers(directory: Path) -> list[Path]:
    """Files that a crash left half written."""
    return [path for path in directory.iterdir() if path.name.endswith(_TEMPORARY)]
