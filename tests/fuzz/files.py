"""Files of a partition with arbitrary bytes: each is recovered, or reported as damaged.

The first byte of an input holds settings, the rest is the file. With `REPAIR` the checksums are
corrected first, so that the code behind them is reached.
"""

import logging
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import msgspec

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.records import Chunk, RecordColumns
from aqueduct.ingest.storage.local.manifest import NAME, Manifest
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.wal import MAGIC, BlockMetadata

REPAIR = 1
HEADER = struct.Struct("<4sIIQII")
CHECKSUM = struct.Struct("<I")
AS_IT_IS = b"\x00"
REPAIRED = bytes((REPAIR,))


def open_log(data: bytes) -> None:
    """Open a partition with this log: it continues after its rows, or is reported as damaged."""
    repaired = bool(data and data[0] & REPAIR)
    content = repair(data[1:]) if repaired else data[1:]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / f"{0:020}.wal").write_bytes(content)
        part = opened(directory)
        if part.fault:
            assert name in part.fault, "the error does not name the file"
            return
        end = part.next_offset
        if not repaired:  # Arrow trusts the lengths in its batches, which a checksum protects
            with suppress(CorruptFile):
                assert all(batch.num_rows for batch in part.read(0, end))
        if end < 2**62:
            append(part)
            assert opened(directory).next_offset == end + 1, "the appended row is missing"


def open_manifest(data: bytes) -> None:
    """Open a partition with this manifest: it is readable, or is reported as damaged."""
    content = data[1:]
    if data and data[0] & REPAIR:
        content = b'{"checksum":%d,"content":%b}' % (crc32(content), content)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / NAME).write_bytes(content)
        part = opened(directory)
        if part.fault:
            assert name in part.fault, "the error does not name the file"
            return
        assert part.info().next_offset == part.manifest.next


def opened(directory: Path) -> Partition:
    logger = logging.getLogger("aqueduct.ingest")
    before = logger.disabled
    logger.disabled = True
    try:
        part = Partition(directory, 0)
        if not part.fault:
            part.settle()
        return part
    finally:
        logger.disabled = before


def append(part: Partition) -> None:
    """Store one more row."""
    metadata = BlockMetadata(1, {0: part.next_offset}, {"p": 1}, 1, 1, 1)
    part.stage([Chunk("p", RecordColumns(1, [b"one more"], [1]), [1])], metadata)
    part.write()
    part.sync()
    part.seal()
    part.close()


def repair(data: bytes) -> bytes:
    """Return the same blocks with correct checksums, up to the first incomplete one."""
    fixed = bytearray(data)
    at = 0
    while at + HEADER.size + CHECKSUM.size <= len(fixed):
        magic, meta, body, first, count, _ = HEADER.unpack_from(fixed, at)
        start = at + HEADER.size + CHECKSUM.size
        end = start + meta + body
        if magic != MAGIC or end > len(fixed):
            break
        HEADER.pack_into(fixed, at, magic, meta, body, first, count, crc32(fixed[start:end]))
        CHECKSUM.pack_into(fixed, start - CHECKSUM.size, crc32(fixed[at : at + HEADER.size]))
        at = end
    return bytes(fixed)


def block(first: int, count: int, metadata: BlockMetadata, body: bytes = b"rows") -> bytes:
    """Return a block without rows: the bytes of Arrow differ from version to version."""
    meta = msgspec.msgpack.encode(metadata)
    header = HEADER.pack(MAGIC, len(meta), len(body), first, count, 0) + CHECKSUM.pack(0)
    return repair(header + meta + body)


def logs() -> dict[str, bytes]:
    """Return valid, torn and damaged logs."""
    first = block(0, 2, BlockMetadata(1, {0: 0}, {"p": 2}, 5, 1, 2))
    second = block(2, 1, BlockMetadata(2, {0: 2, 1: 7}, {"p": 3, "q": 1}, 6, 1, 2))
    foreign = block(2, 1, BlockMetadata(2, {1: 2}, {"q": 1}, 6, 1, 2))
    repaired = {
        "two": first + second,
        "twice": first + first,
        "out-of-order": second + first,
        "foreign": first + foreign,
        "torn": first + second[:-3],
        "no-rows": block(0, 0, BlockMetadata(1, {0: 0}, {}, 0, 0, 0)),
        "far": block(2**63, 2**32 - 1, BlockMetadata(2**63, {0: 2**63}, {"": 2**63}, 0, 0, 0)),
    }
    plain = {
        "empty": b"",
        "torn-header": first[:10],
        "flipped": first[:-1] + b"?",
        "flipped-before-a-good-one": b"?" + first + second,
        "many-magics": MAGIC * 400,
        "a-block-in-a-bad-one": first[:20] + first,
    }
    return {name: REPAIRED + data for name, data in repaired.items()} | {
        name: AS_IT_IS + data for name, data in plain.items()
    }


def manifests() -> dict[str, bytes]:
    """Return valid and damaged manifests."""
    full = msgspec.json.encode(Manifest(3, 3, 9, 99, [], {"p": (4, 98)}))
    segment = (
        b'{"first":0,"next":2,"segments":[{"first":0,"last":1,"size":9,"first_time":1,'
        b'"last_time":2,"first_ingest":3,"last_ingest":4,"checksum":5}]}'
    )
    repaired = {"full": full, "empty": b"{}", "missing-segment": segment, "version": full + b" "}
    plain = {"nothing": b"", "cut": full[:30], "nested": b"[" * 1500, "checksum": b'{"checksum":1}'}
    return {name: REPAIRED + data for name, data in repaired.items()} | {
        name: AS_IT_IS + data for name, data in plain.items()
    }
