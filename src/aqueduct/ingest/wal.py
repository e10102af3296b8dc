"""One file of a partition's write-ahead log: blocks of rows, each with a checksum, in order.

A block is a header, a few facts as msgpack, and an Arrow IPC record batch. The checksum covers all
of it. A block that was cut short by a crash can only be the last one: nothing is written behind it
before it was synced.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from aqueduct.ingest.faults import CorruptFile
from aqueduct.ingest.rows import STORED

MAGIC = b"AQW1"
_HEADER = struct.Struct("<4sIIIQI")
_COVERED = struct.Struct("<IIQI")
MAX_BLOCK = 256 * 1024 * 1024
"""Far more than one group holds; a larger length is damage."""


class Facts(msgspec.Struct, array_like=True, frozen=True):
    """What a block says besides its rows."""

    group: int
    """Number of the group of blocks, over all partitions of a topic, that are there as one."""
    members: dict[int, int]
    """The partitions of the group, and the offset at which its block begins in each."""
    producers: dict[str, int]
    """The producers whose rows these are, and the last sequence number of each."""
    ingest_time: int
    first_time: int
    """The least and the greatest timestamp of the rows."""
    last_time: int


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block is, and what it says."""

    position: int
    size: int
    first: int
    count: int
    facts: Facts
    body: int
    """Where its record batch begins."""

    @property
    def end(self) -> int:
        """The offset behind its last row."""
        return self.first + self.count


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Facts).decode


def make_block(batch: pa.RecordBatch, first: int, facts: Facts) -> list[bytes | pa.Buffer]:
    """The parts of a block, to be written one behind the other."""
    meta = _encode(facts)
    body = batch.serialize()
    covered = _COVERED.pack(len(meta), body.size, first, batch.num_rows)
    checksum = zlib.crc32(body, zlib.crc32(meta, zlib.crc32(covered)))
    header = _HEADER.pack(MAGIC, len(meta), body.size, checksum, first, batch.num_rows)
    return [header, meta, body]


class WalFile:
    """A file that is appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self.size = os.fstat(self._file).st_size
        """How much of it is written for good; what is behind that is of no account."""
        self._unsynced = 0

    def append(self, parts: list[bytes | pa.Buffer]) -> tuple[int, int]:
        """Write a block behind the last one, and return its position and size."""
        position = self.size + self._unsynced
        size = sum(len(part) for part in parts)
        written = 0
        while written < size:
            written += os.pwritev(self._file, _rest(parts, written), position + written)
        self._unsynced += size
        return position, size

    def sync(self) -> None:
        """Have everything on disk that was appended."""
        os.fdatasync(self._file)
        self.size += self._unsynced
        self._unsynced = 0

    def revert(self) -> None:
        """Take back what was appended since the last sync."""
        self._unsynced = 0
        os.ftruncate(self._file, self.size)

    def cut(self, size: int) -> None:
        """Remove everything from a position on, for good."""
        os.ftruncate(self._file, size)
        os.fsync(self._file)
        self.size = size
        self._unsynced = 0

    def close(self) -> None:
        """Close it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _rest(parts: list[bytes | pa.Buffer], written: int) -> list[memoryview]:
    """What is left of parts when so many bytes were written."""
    views = [memoryview(part) for part in parts]
    while views and written >= len(views[0]):
        written -= len(views[0])
        views.pop(0)
    if written:
        views[0] = views[0][written:]
    return views


class Scan:
    """Goes through a file block by block, and knows where the good part ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with pa.memory_map(str(path)) as file:
            self._buffer = file.read_buffer() if file.size() else pa.py_buffer(b"")
        self._view = memoryview(self._buffer)
        self.good = 0
        """Where the good part ends, once all blocks were gone through."""

    def blocks(self) -> Iterator[Block]:
        """All good blocks; raises `CorruptFile` if a good one comes behind a bad one."""
        while self.good < len(self._view):
            try:
                block = self._block(self.good)
            except CorruptFile as fault:
                if self._something_good_behind(self.good + 1):
                    raise
                self.torn = fault.reason
                return
            yield block
            self.good = block.position + block.size

    torn = ""
    """Why the end is not good, if it is not."""

    @property
    def size(self) -> int:
        """Of the whole file."""
        return len(self._view)

    def rows(self, block: Block) -> pa.RecordBatch:
        """The rows of a block, without a copy."""
        return read_rows(self.path, self._buffer, block)

    def _block(self, position: int) -> Block:
        view = self._view
        if position + _HEADER.size > len(view):
            raise CorruptFile(self.path, position, "the header of a block is cut short")
        magic, meta, body, checksum, first, count = _HEADER.unpack_from(view, position)
        if magic != MAGIC:
            raise CorruptFile(self.path, position, "there is no block")
        if meta + body > MAX_BLOCK:
            raise CorruptFile(self.path, position, f"a block of {meta + body} bytes")
        start = position + _HEADER.size
        end = start + meta + body
        if end > len(view):
            raise CorruptFile(self.path, position, "a block is cut short")
        covered = zlib.crc32(_COVERED.pack(meta, body, first, count))
        if zlib.crc32(view[start:end], covered) != checksum:
            raise CorruptFile(self.path, position, "the checksum of a block is wrong")
        try:
            facts = _decode(view[start : start + meta])
        except msgspec.MsgspecError as error:
            raise CorruptFile(self.path, position, f"the facts of a block: {error}") from None
        return Block(position, end - position, first, count, facts, start + meta)

    def _something_good_behind(self, position: int) -> bool:
        """Whether any block from there on is good: then the bad one was not the last."""
        data = bytes(self._view[position:])
        at = data.find(MAGIC)
        while at >= 0:
            try:
                self._block(position + at)
            except CorruptFile:
                at = data.find(MAGIC, at + 1)
            else:
                return True
        return False


def read_rows(path: Path, buffer: pa.Buffer, block: Block) -> pa.RecordBatch:
    """The rows of a block in a file's bytes."""
    body = buffer.slice(block.body, block.position + block.size - block.body)
    try:
        batch = pa.ipc.read_record_batch(body, STORED)
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise CorruptFile(path, block.position, f"the rows of a block: {error}") from None
    if batch.num_rows != block.count:
        raise CorruptFile(path, block.position, f"{batch.num_rows} rows instead of {block.count}")
    return batch
