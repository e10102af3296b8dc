"""Segments: written atomically, and damage is detected."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.records import STORED, make_batch
from aqueduct.ingest.storage.local.segments import (
    ROW_GROUP,
    check_segment,
    first_stored_at,
    leftovers,
    read_segment,
    write_segment,
)
from tests.ingest.storing import chunk_of


def batches(first: int, counts: list[int]) -> list[pa.RecordBatch]:
    made = []
    for number, count in enumerate(counts):
        chunk = chunk_of("p", range(1, count + 1), [b"x"] * count, [7] * count)
        made.append(make_batch([chunk], first, 1_000 + number))
        first += count
    return made


def offsets(path: Path, first: int, start: int, end: int) -> list[int]:
    found = list(read_segment(path, first, start, end))
    assert all(batch.schema == STORED for batch in found)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def test_any_range_of_a_segment_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    count = ROW_GROUP + 500
    size, checksum = write_segment(path, batches(10, [ROW_GROUP, 500]))
    assert size == path.stat().st_size
    check_segment(path, checksum)
    assert pq.ParquetFile(path).num_row_groups == 2
    end = 10 + count
    border = 10 + ROW_GROUP
    for start, stop in [(10, end), (10, 11), (end - 1, end), (border - 2, border + 2), (12, 12)]:
        assert offsets(path, 10, start, stop) == list(range(start, stop))


def test_small_blocks_become_one_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_segment(path, batches(0, [3] * 50))
    assert pq.ParquetFile(path).num_row_groups == 1
    assert offsets(path, 0, 0, 150) == list(range(150))


def test_the_first_row_stored_at_a_time_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_segment(path, batches(100, [3, 4, 5]))
    assert first_stored_at(path, 100, 112, 0) == 100
    assert first_stored_at(path, 100, 112, 1_001) == 103
    assert first_stored_at(path, 100, 112, 1_002) == 107
    assert first_stored_at(path, 100, 112, 1_003) == 112


def test_any_flipped_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    _, checksum = write_segment(path, batches(0, [5]))
    good = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(good):
            file.seek(at)
            file.write(bytes((byte ^ 0x10,)))
            with pytest.raises(CorruptFile, match="checksum of the segment"):
                check_segment(path, checksum)
            file.seek(at)
            file.write(bytes((byte,)))


def test_a_file_that_is_not_parquet_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_segment(path, batches(0, [100]))
    good = path.read_bytes()
    for data in (b"", b"PAR1", good[:-1], good[: len(good) // 2], bytes(len(good))):
        path.write_bytes(data)
        with pytest.raises(CorruptFile) as caught:
            offsets(path, 0, 0, 100)
        assert caught.value.path == path


def test_a_segment_with_too_few_rows_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_segment(path, batches(0, [10]))
    with pytest.raises(CorruptFile, match="ends at offset 10, not at 11"):
        offsets(path, 0, 0, 11)


def test_a_missing_segment_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        offsets(tmp_path / "a.parquet", 0, 0, 1)


def test_a_segment_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_segment(tmp_path / "a.parquet", batches(0, [10]))
    assert not list(tmp_path.iterdir())


def test_temporary_files_are_listed(tmp_path: Path) -> None:
    for name in (".a.parquet.tmp", "a.parquet", "0.wal", ".manifest.json.tmp"):
        (tmp_path / name).touch()
    names = {path.name for path in leftovers(tmp_path)}
    assert names == {".a.parquet.tmp", ".manifest.json.tmp"}
