"""A file of a partition's write-ahead log: blocks of rows, each with checksums, in order.

A block is a header, its metadata as MessagePack, and an Arrow IPC record batch. The header has a
checksum of its own, so that the length of a block is known even if the rest is damaged. Only the
last block can be torn by a crash: the next one is written after it was synced.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from aqueduct.ingest.errors import CorruptFile, IngestError
from aqueduct.ingest.records import STORED
from aqueduct.ingest.storage.local.file_modes import create

MAGIC = b"AQW1"
_FIELDS = struct.Struct("<4sIIQII")
_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _FIELDS.size + _CHECKSUM.size
MAX_BLOCK = 256 * 1024 * 1024
"""Bytes of a block, far more than a group has; a larger length is damage."""
_MAX_CANDIDATES = 100_000
_PIECE = 1024 * 1024


class BlockMetadata(msgspec.Struct, array_like=True, frozen=True):
    """The metadata of a block."""

    group: int
    """The number of the group, which is unique in the topic."""
    members: dict[int, int]
    """By partition of the group, the first offset of its block."""
    producers: dict[str, int]
    """By producer of the rows, the last sequence number."""
    ingest_time: int
    first_time: int = 0
    """The smallest timestamp of the rows."""
    last_time: int = 0
    """The largest timestamp of the rows."""
    others: dict[int, int] = {}
    """By partition outside the group, its end."""
    instances: dict[str, str] = {}
    """By producer, its instance, if known."""
    clock: int = 0
    """The clock reading, earlier than ``ingest_time`` if the clock was set back; 0 if unknown."""

    @property
    def stored_at(self) -> int:
        """When the block was stored, by the clock of that time."""
        return self.clock or self.ingest_time

    def ends(self, *, is_durable: bool) -> dict[int, int]:
        """Return the end that each partition has at least; more if the group itself is durable."""
        return {**self.others, **{each: at + is_durable for each, at in self.members.items()}}


@dataclass(frozen=True, slots=True)
class Block:
    """The location and the metadata of a block."""

    position: int
    size: int
    first: int
    count: int
    metadata: BlockMetadata
    body: int
    """The position of its record batch."""

    @property
    def end(self) -> int:
        """The offset after its last row."""
        return self.first + self.count


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BlockMetadata).decode


def make_block(
    batch: pa.RecordBatch, first: int, metadata: BlockMetadata
) -> list[bytes | pa.Buffer]:
    """Encode a block; return its parts in order."""
    meta = _encode(metadata)
    body = batch.serialize()
    if len(meta) + body.size > MAX_BLOCK:
        raise IngestError(f"{batch.num_rows} rows of {body.size:,} bytes are too much for a block")
    checksum = zlib.crc32(body, zlib.crc32(meta))
    fields = _FIELDS.pack(MAGIC, len(meta), body.size, first, batch.num_rows, checksum)
    return [fields + _CHECKSUM.pack(zlib.crc32(fields)), meta, body]


class WalFile:
    """A log file that is appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = create(path, os.O_RDWR | os.O_CREAT)
        self.size = os.fstat(self._file).st_size
        """Bytes of the sealed blocks; what follows them does not count."""
        self._appended = 0

    def append(self, parts: list[bytes | pa.Buffer]) -> tuple[int, int]:
        """Write a block after the last one; return its position and size."""
        position = self.size + self._appended
        size = sum(len(part) for part in parts)
        written = 0
        while written < size:
            count = os.pwritev(self._file, _rest(parts, written), position + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            written += count
        self._appended += size
        return position, size

    def sync(self) -> None:
        """Sync what was appended."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._file)
        else:
            os.fsync(self._file)  # macOS has no fdatasync

    def keep(self) -> None:
        """Seal what was appended and synced."""
        self.size += self._appended
        self._appended = 0

    def revert(self) -> None:
        """Remove what was appended since the last `keep`, durably."""
        self.cut(self.size)

    def cut(self, size: int) -> None:
        """Truncate the file, durably."""
        os.ftruncate(self._file, size)
        os.fsync(self._file)
        self.size = size
        self._appended = 0

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _rest(parts: list[bytes | pa.Buffer], written: int) -> list[memoryview]:
    """Return the parts after the first ``written`` bytes."""
    views = [memoryview(part) for part in parts]
    while views and written >= len(views[0]):
        written -= len(views[0])
        views.pop(0)
    if written:
        views[0] = views[0][written:]
    return views


class _CutShort(CorruptFile):
    """The file ends within a block."""


class _NoHeader(CorruptFile):
    """There is no valid header where a block should begin."""


class Scan:
    """Reads a file block by block, and finds where its valid part ends.

    It does not map the file: another process may truncate it at any time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes of the file."""
        self.valid_end = 0
        """The end of the valid part, once all blocks were read."""
        self.torn = ""
        """Why the tail is invalid; empty if there is none."""

    def blocks(self) -> Iterator[Block]:
        """Yield the valid blocks; raise `CorruptFile` for an invalid one that is not the last."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(file).st_size
            while self.valid_end < self.size:
                try:
                    block = self._block(file, self.valid_end)
                except _CutShort as fault:
                    self.torn = fault.reason
                    return
                except _NoHeader as fault:
                    if self._has_block_after(file, self.valid_end + 1):
                        raise CorruptFile(self.path, self.valid_end, fault.reason) from None
                    self.torn = fault.reason
                    return
                except _BadBody as fault:
                    if fault.end < self.size:
                        raise CorruptFile(self.path, self.valid_end, fault.reason) from None
                    self.torn = fault.reason
                    return
                yield block
                self.valid_end = block.position + block.size
        finally:
            os.close(file)

    def _block(self, file: int, position: int) -> Block:
        meta, body, first, count, checksum = self._header(file, position)
        start = position + HEADER_SIZE
        end = start + meta + body
        if end > self.size:
            raise _CutShort(self.path, position, "a block is cut short")
        data = memoryview(_read(file, meta + body, start))
        if len(data) != meta + body or zlib.crc32(data) != checksum:
            raise _BadBody(self.path, position, "the checksum of a block is wrong", end)
        try:
            metadata = _decode(data[:meta])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _BadBody(self.path, position, f"the metadata of a block: {error}", end) from None
        return Block(position, end - position, first, count, metadata, start + meta)

    def _header(self, file: int, position: int) -> tuple[int, int, int, int, int]:
        """Return the lengths of metadata and rows, the first offset, the count, the checksum."""
        data = _read(file, HEADER_SIZE, position)
        if len(data) < HEADER_SIZE:
            raise _NoHeader(self.path, position, "the header of a block is cut short")
        magic, meta, body, first, count, checksum = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise _NoHeader(self.path, position, "there is no block")
        if _CHECKSUM.unpack_from(data, _FIELDS.size)[0] != zlib.crc32(data[: _FIELDS.size]):
            raise _NoHeader(self.path, position, "the checksum of the header of a block is wrong")
        if meta + body > MAX_BLOCK:
            raise _NoHeader(self.path, position, f"a block of {meta + body} bytes")
        return meta, body, first, count, checksum

    def _has_block_after(self, file: int, position: int) -> bool:
        """Return whether a valid block follows: then the invalid one is not a torn tail.

        Too many candidates count as a block, because a tail that is unclear must not be cut off.
        """
        candidates = 0
        hashed = 0
        for at in _find(file, MAGIC, position):
            candidates += 1
            if candidates > _MAX_CANDIDATES or hashed > self.size:
                return True
            try:
                self._block(file, at)
            except _BadBody as fault:
                hashed += fault.end - at
            except (_CutShort, _NoHeader):
                continue
            else:
                return True
        return False


class _BadBody(CorruptFile):
    """A block has a valid header, but its contents do not match."""

    def __init__(self, path: Path, position: int, reason: str, end: int) -> None:
        super().__init__(path, position, reason)
        self.end = end


def _read(file: int, size: int, position: int) -> bytes:
    """Read bytes of a file; fewer only at its end."""
    data = os.pread(file, size, position)
    while len(data) < size:
        more = os.pread(file, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _find(file: int, what: bytes, position: int) -> Iterator[int]:
    """Yield the positions of some bytes in a file."""
    while piece := _read(file, _PIECE + len(what) - 1, position):
        at = piece.find(what)
        while at >= 0:
            yield position + at
            at = piece.find(what, at + 1)
        position += _PIECE


def read_rows(path: Path, blocks: list[Block]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each block, read and verified one block at a time."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for block in blocks:
            yield _rows(path, block, _read(file, block.size, block.position))
    finally:
        os.close(file)


def _rows(path: Path, block: Block, data: bytes) -> pa.RecordBatch:
    if len(data) != block.size:
        raise CorruptFile(path, block.position, "a block is cut short")
    *_, first, _, checksum = _FIELDS.unpack_from(data)
    fields = zlib.crc32(data[: _FIELDS.size])
    if fields != _CHECKSUM.unpack_from(data, _FIELDS.size)[0] or first != block.first:
        raise CorruptFile(path, block.position, "the header of a block has changed")
    if zlib.crc32(memoryview(data)[HEADER_SIZE:]) != checksum:
        raise CorruptFile(path, block.position, "the checksum of a block is wrong")
    try:
        body = pa.py_buffer(data).slice(block.body - block.position)
        batch = pa.ipc.read_record_batch(body, STORED)
        batch.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptFile(path, block.position, f"the rows of a block: {error}") from None
    if batch.num_rows != block.count:
        raise CorruptFile(path, block.position, f"{batch.num_rows} rows instead of {block.count}")
    return batch
