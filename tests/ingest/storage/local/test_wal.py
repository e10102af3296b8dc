"""Logs: blocks are read as written; torn tails are distinguished from damage."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.ingest.errors import CorruptFile, IngestError
from aqueduct.ingest.records import Chunk, make_batch
from aqueduct.ingest.storage.local import wal
from aqueduct.ingest.storage.local.wal import (
    HEADER_SIZE,
    MAGIC,
    Block,
    BlockMetadata,
    Scan,
    WalFile,
    make_block,
    read_rows,
)
from tests.ingest.storing import chunk_of, fill

EMPTY = chunk_of("p", [1], [b""], [0])
MIXED = chunk_of(
    "q",
    [7, 8, 9],
    [b"a", b"", b"c" * 300],
    [3, 2, 1],
    [None, b"", b"k"],
    [[], [("name", b"value"), ("name", b"")], [("ü", bytes(range(256)))]],
)
CHUNKS = [EMPTY, MIXED, chunk_of("p", [2, 3], [b"x", b"y"], [5, 6])]


def make(chunk: Chunk, first: int, group: int = 1) -> list[bytes | pa.Buffer]:
    metadata = BlockMetadata(group, {0: first}, {chunk.producer_id: chunk.sequences[-1]}, 9, 1, 2)
    return make_block(make_batch([chunk], first, 9), first, metadata)


def data_of(chunks: Sequence[Chunk] = CHUNKS) -> list[bytes]:
    """Return the bytes of a block for each chunk."""
    made = []
    first = 0
    for number, chunk in enumerate(chunks, 1):
        made.append(b"".join(bytes(part) for part in make(chunk, first, number)))
        first += len(chunk.columns.values)
    return made


def scanned(path: Path) -> tuple[list[Block], Scan]:
    scan = Scan(path)
    return list(scan.blocks()), scan


def test_blocks_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    file = WalFile(path)
    first = 0
    for number, chunk in enumerate(CHUNKS, 1):
        position, size = file.append(make(chunk, first, number))
        assert position == file.size
        file.sync()
        file.keep()
        assert file.size == position + size
        first += len(chunk.columns.values)
    file.close()
    blocks, scan = scanned(path)
    assert (scan.valid_end, scan.torn) == (path.stat().st_size, "")
    assert [(block.first, block.end, block.metadata.group) for block in blocks] == [
        (0, 1, 1),
        (1, 4, 2),
        (4, 6, 3),
    ]
    assert blocks[1].metadata == BlockMetadata(2, {0: 1}, {"q": 9}, 9, 1, 2)
    for chunk, block, batch in zip(CHUNKS, blocks, read_rows(path, blocks), strict=True):
        assert batch.equals(make_batch([chunk], block.first, 9))


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev

    def write_seven(file: int, views: list[memoryview], position: int) -> int:
        return write(file, [b"".join(views)[:7]], position)

    monkeypatch.setattr(os, "pwritev", write_seven)
    path = tmp_path / "0.wal"
    file = WalFile(path)
    file.append(make(MIXED, 0))
    file.append(make(EMPTY, 3))
    file.close()
    assert path.read_bytes() == b"".join(bytes(part) for part in (*make(MIXED, 0), *make(EMPTY, 3)))


def test_a_write_of_zero_bytes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    file = WalFile(tmp_path / "0.wal")
    with pytest.raises(OSError, match="No space left"):
        file.append(make(EMPTY, 0))
    file.close()


def test_a_revert_removes_what_was_not_kept_even_if_synced(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    file = WalFile(path)
    file.append(make(EMPTY, 0))
    file.sync()
    file.keep()
    before = path.read_bytes()
    file.append(make(MIXED, 1))
    file.append(make(EMPTY, 4))
    file.sync()
    file.revert()
    assert path.read_bytes() == before
    file.append(make(MIXED, 1))
    file.sync()
    file.keep()
    file.close()
    assert [block.end for block in scanned(path)[0]] == [1, 4]


def test_an_empty_file_has_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    path.touch()
    blocks, scan = scanned(path)
    assert (blocks, scan.valid_end, scan.torn) == ([], 0, "")


def test_a_block_cut_at_any_byte_is_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    first, second, last = data_of()
    good = first + second
    for size in range(1, len(last)):
        fill(path, good + last[:size])
        blocks, scan = scanned(path)
        assert [block.end for block in blocks] == [1, 4]
        assert scan.valid_end == len(good)
        assert "cut short" in scan.torn


def test_a_flipped_byte_is_damage_unless_it_is_in_the_last_block(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    parts = data_of()
    good = b"".join(parts)
    starts = [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    for at in range(len(good)):
        fill(path, good[:at] + bytes((good[at] ^ 0x04,)) + good[at + 1 :])
        hit = max(start for start in starts if start <= at)
        if hit == starts[-1]:
            blocks, scan = scanned(path)
            assert (len(blocks), scan.valid_end) == (2, hit)
            assert scan.torn
        else:
            with pytest.raises(CorruptFile) as caught:
                scanned(path)
            assert (caught.value.path, caught.value.position) == (path, hit)


def test_a_record_that_looks_like_a_block_does_not_hide_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    inner = data_of()[1]
    outer = data_of([EMPTY, chunk_of("p", [2], [inner * 3 + MAGIC * 50], [0])])
    fill(path, outer[0] + outer[1][:-5])
    blocks, scan = scanned(path)
    assert (len(blocks), scan.valid_end) == (1, len(outer[0]))


def test_rows_that_change_after_the_scan_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    good = b"".join(data_of())
    fill(path, good)
    blocks, _ = scanned(path)
    for at in (4, 13, HEADER_SIZE, blocks[0].body + 50, len(good) - 1):
        fill(path, good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :])
        hit = max(block.position for block in blocks if block.position <= at)
        with pytest.raises(CorruptFile) as caught:
            list(read_rows(path, blocks))
        assert caught.value.position == hit
    fill(path, good[:-1])
    with pytest.raises(CorruptFile, match="cut short"):
        list(read_rows(path, blocks))


def rewritten(meta: bytes, body: bytes, count: int) -> bytes:
    """Return a block with valid checksums over any content."""
    checksum = crc32(body, crc32(meta))
    fields = wal._FIELDS.pack(MAGIC, len(meta), len(body), 0, count, checksum)
    return fields + wal._CHECKSUM.pack(crc32(fields)) + meta + body


def test_undecodable_metadata_is_damage_even_with_a_valid_checksum(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    nested = b"\x97" + b"\x91" * 60_000
    for meta in (b"", b"\xc0", b"\x96\x01\x80\x81\xa1\xff\x01\x01\x01\x01", nested):
        fill(path, rewritten(meta, b"", 1) + data_of()[0])
        with pytest.raises(CorruptFile, match="the metadata of a block"):
            scanned(path)


def test_undecodable_rows_are_damage_even_with_a_valid_checksum(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    header, meta, body = (bytes(part) for part in make(MIXED, 0))
    assert len(header) == HEADER_SIZE
    for wrong, count in ((b"", 3), (b"no batch of rows", 3), (body[:100], 3), (body, 4)):
        fill(path, rewritten(meta, wrong, count))
        blocks, _ = scanned(path)
        with pytest.raises(CorruptFile):
            list(read_rows(path, blocks))


def test_a_block_above_the_size_limit_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal, "MAX_BLOCK", 500)
    with pytest.raises(IngestError, match="too much for a block"):
        make(chunk_of("p", [1], [bytes(600)], [0]), 0)


def test_many_block_candidates_are_scanned_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    fill(path, b"?" + MAGIC * 500_000)
    with pytest.raises(CorruptFile):
        scanned(path)
    fill(path, b"?" + MAGIC * 1_000)
    assert scanned(path)[1].valid_end == 0


def test_many_valid_headers_of_bad_blocks_are_scanned_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "0.wal"
    count = 20_000
    made = []
    for left in range(count, 0, -1):
        fields = wal._FIELDS.pack(MAGIC, 0, (left - 1) * HEADER_SIZE, 0, 1, 1)
        made.append(fields + wal._CHECKSUM.pack(crc32(fields)))
    fill(path, b"?" + b"".join(made))
    with pytest.raises(CorruptFile):
        scanned(path)


@given(st.data())
def test_spliced_and_mutated_logs_never_yield_wrong_rows(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.wal"
    pieces = data.draw(
        st.lists(st.sampled_from(data_of()) | st.binary(max_size=40) | st.just(MAGIC), max_size=6)
    )
    log = bytearray(b"".join(pieces))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(log)))
        stop = at + data.draw(st.integers(0, 200))
        log[at:stop] = data.draw(st.binary(max_size=8))
    fill(path, log)
    try:
        blocks, scan = scanned(path)
    except CorruptFile:
        return
    assert bool(scan.torn) == (scan.valid_end < scan.size)
    for block, batch in zip(blocks, read_rows(path, blocks), strict=True):
        assert batch.num_rows == block.count
