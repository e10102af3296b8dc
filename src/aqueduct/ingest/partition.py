"""One partition: rows with dense offsets, first in a log, then in segments.

One thread appends, one rolls the log into segments, any number read. What readers and the roller
look at changes only under the lock.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from aqueduct.ingest.faults import CorruptFile, IngestError, UnknownTopic
from aqueduct.ingest.manifest import (
    Manifest,
    Segment,
    read_manifest,
    remove_files,
    sync_directory,
    write_manifest,
)
from aqueduct.ingest.messages import PartitionInfo
from aqueduct.ingest.rows import Chunk, make_batch
from aqueduct.ingest.segments import leftovers, read_segment, write_segment
from aqueduct.ingest.wal import Block, Facts, Scan, WalFile, make_block, read_rows

_log = logging.getLogger("aqueduct.ingest")


@dataclass
class _Log:
    """A file of the log, and the blocks in it."""

    path: Path
    blocks: list[Block] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.blocks[-1].position + self.blocks[-1].size if self.blocks else 0


@dataclass
class Staged:
    """A block that was appended and not yet synced."""

    chunks: Sequence[Chunk]
    block: Block


class Partition:
    """The files of one partition, opened and recovered."""

    def __init__(self, directory: Path, number: int, *, read_only: bool = False) -> None:
        """``read_only``: look at what another process has, and change nothing."""
        self.directory = directory
        self.number = number
        self._read_only = read_only
        self.fault = ""
        """Why it cannot be used; then nothing is written, and reading says so."""
        self.lock = threading.Lock()
        self.manifest = Manifest()
        self.next_offset = 0
        self.ingest_time = 0
        self.producers: dict[str, tuple[int, int]] = {}
        """Of each producer the last sequence number, and when it was stored."""
        self._logs: list[_Log] = []
        self._wal: WalFile | None = None
        self._staged: Staged | None = None
        if not read_only:
            directory.mkdir(parents=True, exist_ok=True)
        try:
            self._recover()
        except CorruptFile as fault:
            self.fault = str(fault)
            _log.error("partition %s is out of use: %s", directory, fault)

    # Recovery

    def _recover(self) -> None:
        self.manifest = manifest = read_manifest(self.directory)
        self.next_offset = manifest.next
        self.ingest_time = manifest.ingest_time
        self.producers = dict(manifest.producers)
        if not self._read_only:
            self._clear(manifest)
        for segment in manifest.segments:
            if not (self.directory / segment.name).exists():
                raise CorruptFile(self.directory / segment.name, 0, "the segment is missing")
        logs = sorted(self.directory.glob("*.wal"))
        for path in logs:
            self._recover_log(path, is_last=path == logs[-1])

    def _clear(self, manifest: Manifest) -> None:
        """Remove what a crash left half done."""
        known = {segment.name for segment in manifest.segments}
        # A segment that no manifest names was being made from a log that is still there.
        unknown = [path for path in self.directory.glob("*.parquet") if path.name not in known]
        remove_files([*unknown, *leftovers(self.directory)])

    def _recover_log(self, path: Path, is_last: bool) -> None:
        scan = Scan(path)
        blocks = list(scan.blocks())
        if scan.torn:
            if not is_last:
                raise CorruptFile(path, scan.good, scan.torn)
            self._cut(path, scan.good, scan.size - scan.good, scan.torn)
        if not blocks or blocks[-1].end <= self.manifest.next:
            if not self._read_only:
                remove_files([path])  # all of it is in a segment
            return
        for block in blocks:
            if block.first != self.next_offset:
                reason = f"a block begins at offset {block.first}, not at {self.next_offset}"
                raise CorruptFile(path, block.position, reason)
            self._count(block)
        self._logs.append(_Log(path, blocks))

    def _cut(self, path: Path, position: int, size: int, why: str) -> None:
        if self._read_only:
            return  # whoever writes there may not be done
        _log.warning("%s, byte %d: %d bytes cut off: %s", path, position, size, why)
        file = WalFile(path)
        file.cut(position)
        file.close()

    def _count(self, block: Block) -> None:
        """Go on behind a block."""
        self.next_offset = block.end
        self.ingest_time = max(self.ingest_time, block.facts.ingest_time)
        for producer, sequence in block.facts.producers.items():
            self.producers[producer] = (sequence, block.facts.ingest_time)

    @property
    def last_block(self) -> Block | None:
        """The last block that is still in the log."""
        return self._logs[-1].blocks[-1] if self._logs else None

    def cut_last(self) -> None:
        """Remove the last block: the group that it belongs to is not whole."""
        log = self._logs[-1]
        block = log.blocks.pop()
        self._cut(log.path, block.position, block.size, "its group was not written whole")
        if not log.blocks:
            self._logs.pop()
            if not self._read_only:
                remove_files([log.path])
        self.next_offset = self.manifest.next
        self.producers = dict(self.manifest.producers)
        for kept in self._logs:
            for each in kept.blocks:
                self._count(each)

    # Writing, by one thread

    def stage(self, chunks: Sequence[Chunk], facts: Facts) -> None:
        """Append rows behind the last; they count once they are synced and sealed."""
        batch = make_batch(chunks, self.next_offset, facts.ingest_time)
        parts = make_block(batch, self.next_offset, facts)
        wal = self._wal
        if wal is None:
            path = self.directory / f"{self.next_offset:020}.wal"
            wal = self._wal = WalFile(path)
            wal.cut(0)
            sync_directory(self.directory)
            with self.lock:
                self._logs.append(_Log(path))
        position, size = wal.append(parts)
        body = position + len(parts[0]) + len(parts[1])
        block = Block(position, size, self.next_offset, batch.num_rows, facts, body)
        self._staged = Staged(chunks, block)

    def sync(self) -> None:
        """Have what was staged on disk."""
        if self._wal is not None:
            self._wal.sync()

    def seal(self) -> None:
        """What was staged and synced is there for readers."""
        staged = self._staged
        assert staged is not None
        with self.lock:
            self._logs[-1].blocks.append(staged.block)
            self._count(staged.block)
        self._staged = None

    def revert(self) -> None:
        """Take back what was staged, as far as it was."""
        self._staged = None
        if self._wal is not None:
            self._wal.revert()

    @property
    def log_size(self) -> int:
        """Bytes in the file that is appended to."""
        return self._wal.size if self._wal is not None else 0

    def rotate(self) -> None:
        """Begin a new file of the log, so that the one before can become a segment."""
        if self._wal is not None and self._wal.size:
            self._wal.close()
            self._wal = None

    def close(self) -> None:
        """Close its files."""
        if self._wal is not None:
            self._wal.close()
            self._wal = None

    # Rolling, by one thread

    def roll(self) -> int:
        """Turn every finished file of the log into a segment; returns how many there were."""
        rolled = 0
        while True:
            with self.lock:
                active = self._wal.path if self._wal is not None else None
                log = next((log for log in self._logs if log.path != active and log.blocks), None)
            if log is None:
                return rolled
            self._roll(log)
            rolled += 1

    def _roll(self, log: _Log) -> None:
        blocks = log.blocks
        first, last = blocks[0].first, blocks[-1].end - 1
        name = Segment(first, last, 0, 0, 0, 0, 0).name
        size = write_segment(self.directory / name, _rows_of(log.path, blocks))
        segment = Segment(
            first,
            last,
            size,
            min(block.facts.first_time for block in blocks),
            max(block.facts.last_time for block in blocks),
            blocks[0].facts.ingest_time,
            blocks[-1].facts.ingest_time,
        )
        manifest = self.manifest
        producers = dict(manifest.producers)
        for block in blocks:
            for producer, sequence in block.facts.producers.items():
                producers[producer] = (sequence, block.facts.ingest_time)
        fresh = Manifest(
            first=manifest.first,
            next=last + 1,
            group=max(manifest.group, blocks[-1].facts.group),
            ingest_time=max(manifest.ingest_time, blocks[-1].facts.ingest_time),
            segments=[*manifest.segments, segment],
            producers=producers,
        )
        self._install(fresh)
        with self.lock:
            self._logs.remove(log)
        remove_files([log.path])

    def _install(self, manifest: Manifest) -> None:
        write_manifest(self.directory, manifest)
        with self.lock:
            self.manifest = manifest

    def drop(self, count: int) -> int:
        """Remove the oldest segments, so many; returns how many bytes that freed."""
        manifest = self.manifest
        gone, kept = manifest.segments[:count], manifest.segments[count:]
        if not gone:
            return 0
        first = gone[-1].last + 1
        self._install(
            Manifest(
                first=first,
                next=manifest.next,
                group=manifest.group,
                ingest_time=manifest.ingest_time,
                segments=kept,
                producers=manifest.producers,
            )
        )
        remove_files(self.directory / segment.name for segment in gone)
        return sum(segment.size for segment in gone)

    # Reading, by any thread

    def check_range(self, topic: str, start: int, end: int) -> None:
        """Raise unless all rows from ``start`` up to ``end`` are there and can be read."""
        if self.fault:
            raise IngestError(f"{topic} partition {self.number} is out of use: {self.fault}")
        first, last = self.manifest.first, self.next_offset
        if not first <= start <= end <= last:
            raise UnknownTopic(
                f"{topic} partition {self.number} has offsets from {first} up to {last}, "
                f"not from {start} up to {end}"
            )

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows with offsets from ``start`` up to ``end``; both must be there."""
        while start < end:
            try:
                for batch in self._read_some(start, end):
                    start += batch.num_rows
                    yield batch
            except FileNotFoundError:
                continue  # it became a segment in between: look again

    def _read_some(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Rows from one file, or the next few."""
        with self.lock:
            segments = self.manifest.segments
            logs = [(log.path, list(log.blocks)) for log in self._logs]
        for segment in segments:
            if segment.first <= start <= segment.last:
                path = self.directory / segment.name
                yield from read_segment(path, segment.first, start, min(end, segment.last + 1))
                return
        for path, blocks in logs:
            wanted = [block for block in blocks if block.first < end and start < block.end]
            if wanted:
                for batch, block in zip(_rows_of(path, wanted), wanted, strict=True):
                    skip = max(start - block.first, 0)
                    yield batch.slice(skip, min(end, block.end) - block.first - skip)
                return
        raise CorruptFile(self.directory, 0, f"offset {start} is in no segment and in no log")

    def offset_at(self, timestamp: int) -> int:
        """The first offset whose row was stored at or after a time; the next one if none was."""
        with self.lock:
            for segment in self.manifest.segments:
                if segment.last_ingest >= timestamp:
                    return self._within(segment, timestamp)
            for log in self._logs:
                for block in log.blocks:
                    if block.facts.ingest_time >= timestamp:
                        return block.first
            return self.next_offset

    def _within(self, segment: Segment, timestamp: int) -> int:
        if segment.first_ingest >= timestamp:
            return segment.first
        path = self.directory / segment.name
        for batch in read_segment(path, segment.first, segment.first, segment.last + 1):
            times = batch.column("ingest_time").cast(pa.int64()).to_pylist()
            for at, time in enumerate(times):
                if time >= timestamp:
                    return int(batch.column("offset")[at].as_py())
        return segment.last + 1

    def info(self) -> PartitionInfo:
        """What it holds."""
        with self.lock:
            segments = self.manifest.segments
            blocks = [block for log in self._logs for block in log.blocks]
            size = sum(segment.size for segment in segments) + sum(log.size for log in self._logs)
            firsts = [segment.first_ingest for segment in segments[:1]]
            firsts += [block.facts.ingest_time for block in blocks[:1]]
            return PartitionInfo(
                self.number,
                self.manifest.first,
                self.next_offset,
                firsts[0] if firsts else None,
                self.ingest_time if firsts else None,
                size,
                self.fault,
            )


def _rows_of(path: Path, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
    """The rows of blocks, read one at a time."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for block in blocks:
            data = os.pread(file, block.size, block.position)
            if len(data) != block.size:
                raise CorruptFile(path, block.position, "a block is cut short")
            moved = Block(
                0, block.size, block.first, block.count, block.facts, block.body - block.position
            )
            yield read_rows(path, pa.py_buffer(data), moved)
    finally:
        os.close(file)
