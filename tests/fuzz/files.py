"""Files of a partition made of any bytes: each is recovered from, or known to be damaged.

The first byte of an input holds settings, the rest is the file. With `REPAIR` the checksums are
put right first, so that what they guard is reached.
"""

import logging
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.records import Chunk, RecordColumns
from aqueduct.ingest.storage.local.manifest import NAME
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.wal import MAGIC, BlockMetadata

REPAIR = 1
HEADER = struct.Struct("<4sIIQII")
CHECKSUM = struct.Struct("<I")


def open_log(data: bytes) -> None:
    """A partition with this log goes on behind its rows, or is out of use."""
    repaired = bool(data and data[0] & REPAIR)
    content = repair(data[1:]) if repaired else data[1:]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / f"{0:020}.wal").write_bytes(content)
        part = opened(directory)
        if part.fault:
            assert name in part.fault, "a fault that does not name the file"
            return
        end = part.next_offset
        if not repaired:  # Arrow trusts the lengths in its batches, which a checksum vouches for
            with suppress(CorruptFile):
                assert all(batch.num_rows for batch in part.read(0, end))
        if end < 2**62:
            append(part)
            assert opened(directory).next_offset == end + 1, "what was appended is not there"


def open_manifest(data: bytes) -> None:
    """A partition with this manifest can be looked at, or is out of use."""
    content = data[1:]
    if data and data[0] & REPAIR:
        content = b'{"checksum":%d,"content":%b}' % (crc32(content), content)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / NAME).write_bytes(content)
        part = opened(directory)
        if part.fault:
            assert name in part.fault, "a fault that does not name the file"
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
    """The same blocks with the right checksums, as far as there are whole ones."""
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
