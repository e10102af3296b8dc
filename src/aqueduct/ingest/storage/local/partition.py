"""A partition on disk: rows with dense offsets, first in a write-ahead log, then in segments.

One thread appends, one rolls the log into segments, any number read. State that readers or the
rolling thread use changes only under the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from aqueduct.ingest.errors import CorruptFile, IngestError, UnknownTopic
from aqueduct.ingest.protocol import PartitionInfo
from aqueduct.ingest.records import Chunk, make_batch
from aqueduct.ingest.storage.local.files import remove_files, sync_directory, sync_file
from aqueduct.ingest.storage.local.manifest import (
    Manifest,
    Segment,
    segment_name,
    write_manifest,
)
from aqueduct.ingest.storage.local.recovery import LogFile, TornTail, read_files, read_shared_files
from aqueduct.ingest.storage.local.segments import (
    check_segment,
    first_stored_at,
    read_segment,
    write_segment,
)
from aqueduct.ingest.storage.local.wal import Block, BlockMetadata, WalFile, make_block, read_rows

_log = logging.getLogger("aqueduct.ingest")


@dataclass
class _Staged:
    """A block that is not visible yet."""

    parts: list[bytes | pa.Buffer]
    count: int
    metadata: BlockMetadata
    block: Block | None = None
    """Its location, once it is written."""


class Partition:
    """The files of a partition, opened and recovered. Implements `PartitionStorage`."""

    def __init__(self, directory: Path, number: int, *, read_only: bool = False) -> None:
        """``read_only``: another process may append; change nothing."""
        self.directory = directory
        self.number = number
        self._read_only = read_only
        self.fault = ""
        """Why the partition is out of use; empty if it is in use."""
        self.lock = threading.Lock()
        self.manifest = Manifest()
        self.next_offset = 0
        self.ingest_time = 0
        self.producers: dict[str, tuple[int, int]] = {}
        """By producer, the last sequence number and when it was stored."""
        self.instances: dict[str, str] = {}
        """By producer, the instance that stored it, if known."""
        self._logs: list[LogFile] = []
        self._wal: WalFile | None = None
        self.log_begun = 0.0
        """Monotonic time at which the current log file was created."""
        self._staged: _Staged | None = None
        self.torn: TornTail | None = None
        """The torn tail of the log, until `settle` removes it."""
        self._spare: list[Path] = []
        self.segments_size = 0
        """Bytes in all segments."""
        self.rolled = 0
        """Segments written since the partition was opened."""
        self.was_set_back = False
        """Whether some rows have a later time than the clock had when they were stored."""
        self._forgot = False
        self._sound: set[str] = set()
        """Segments whose checksum was verified."""
        self.recover()

    def put_out_of_use(self, fault: str) -> None:
        """Reject all further reads and writes."""
        self.fault = fault
        _log.error("partition %s is out of use: %s", self.directory, fault)

    # Recovery

    def _recover(self) -> None:
        found = (read_shared_files if self._read_only else read_files)(self.directory, self.number)
        with self.lock:
            self._logs = found.logs
            self.manifest = found.manifest
            self.segments_size = sum(segment.size for segment in found.manifest.segments)
            self._sound.intersection_update(each.name for each in found.manifest.segments)
            self._count_all()
        self.torn, self._spare = found.torn, found.spare

    def recover(self) -> None:
        """Read the files; put the partition out of use if they are damaged."""
        try:
            self._recover()
        except CorruptFile as fault:
            self.put_out_of_use(str(fault))
        except OSError as error:
            self.put_out_of_use(f"{error.filename or self.directory}: {error.strerror}")

    def settle(self) -> None:
        """Remove what a crash left; nothing is changed before that."""
        if self.torn is not None:
            torn, self.torn = self.torn, None
            self._cut(torn.path, torn.position, torn.size, torn.reason)
        if not self._read_only:
            remove_files(self._spare)
            if self._logs:  # the last block may not be synced, and counts from now on
                sync_file(self._logs[-1].path)
        self._spare = []

    def _cut(self, path: Path, position: int, size: int, why: str) -> None:
        if self._read_only:
            return  # its writer may still be appending
        _log.warning("%s, byte %d: %d bytes cut off: %s", path, position, size, why)
        file = WalFile(path)
        file.cut(position)
        file.close()

    def _count_all(self) -> None:
        """Compute the state of the partition from its manifest and its blocks."""
        self.next_offset = self.manifest.next
        self.ingest_time = self.manifest.ingest_time
        self.was_set_back = any(
            segment.stored_at < segment.last_ingest for segment in self.manifest.segments
        )
        self.producers = dict(self.manifest.producers)
        self.instances = dict(self.manifest.instances)
        for log in self._logs:
            for block in log.blocks:
                self._count(block)

    def _count(self, block: Block) -> None:
        """Add a block to the state of the partition."""
        self.next_offset = block.end
        self.ingest_time = max(self.ingest_time, block.metadata.ingest_time)
        if block.metadata.stored_at < block.metadata.ingest_time:
            self.was_set_back = True
        for producer, sequence in block.metadata.producers.items():
            self.producers[producer] = (sequence, block.metadata.ingest_time)
            self.instances[producer] = block.metadata.instances.get(producer, "")

    @property
    def last_block(self) -> Block | None:
        """The last block in the log; None if the log is empty."""
        return self._logs[-1].blocks[-1] if self._logs and self._logs[-1].blocks else None

    @property
    def last_group(self) -> int:
        """The group of the last block in the log; 0 if there is none."""
        return self.last_block.metadata.group if self.last_block is not None else 0

    @property
    def log_end(self) -> tuple[Path, int]:
        """The file and the byte where the valid part of the log ends."""
        if self._logs:
            return self._logs[-1].path, self._logs[-1].size
        return self.directory / f"{self.next_offset:020}.wal", 0

    def cut_last(self) -> None:
        """Remove the last block, because its group is incomplete."""
        log = self._logs[-1]
        block = log.blocks.pop()
        self._cut(log.path, block.position, block.size, "its group is incomplete")
        if not log.blocks:
            self._logs.pop()
            if not self._read_only:
                remove_files([log.path])
        self._count_all()

    # Writing, by one thread

    def stage(self, chunks: Sequence[Chunk], metadata: BlockMetadata) -> None:
        """Encode the next block, and set the times of its metadata; nothing is written yet."""
        batch = make_batch(chunks, self.next_offset, metadata.ingest_time)
        times = pc.min_max(batch.column("timestamp").view(pa.int64())).as_py()
        metadata = replace(metadata, first_time=times["min"], last_time=times["max"])
        parts = make_block(batch, self.next_offset, metadata)
        self._staged = _Staged(parts, batch.num_rows, metadata)

    def write(self) -> None:
        """Write the staged block to the log."""
        staged = self._staged
        assert staged is not None
        wal = self._wal if self._wal is not None else self._begin_log()
        position, size = wal.append(staged.parts)
        body = position + len(staged.parts[0]) + len(staged.parts[1])
        staged.block = Block(position, size, self.next_offset, staged.count, staged.metadata, body)

    def _begin_log(self) -> WalFile:
        path = self.directory / f"{self.next_offset:020}.wal"
        wal = WalFile(path)
        try:
            wal.cut(0)
            sync_directory(self.directory)
        except OSError:
            wal.close()
            raise
        self.log_begun = time.monotonic()
        with self.lock:
            self._wal = wal
            self._logs.append(LogFile(path))
        return wal

    def sync(self) -> None:
        """Sync the log."""
        assert self._wal is not None
        self._wal.sync()

    def seal(self) -> None:
        """Make the block visible to readers, once it was written and synced."""
        staged, wal = self._staged, self._wal
        assert staged is not None
        assert staged.block is not None
        assert wal is not None
        wal.keep()
        with self.lock:
            self._logs[-1].blocks.append(staged.block)
            self._count(staged.block)
        self._staged = None

    def revert(self) -> None:
        """Discard the staged block, and remove what was written of it."""
        self._staged = None
        if self._wal is not None:
            self._wal.revert()

    @property
    def log_size(self) -> int:
        """Bytes in the current log file."""
        return self._wal.size if self._wal is not None else 0

    def rotate(self) -> None:
        """Finish the current log file, so that it can become a segment."""
        if self.log_size:
            self.close()

    def close(self) -> None:
        """Close the current log file."""
        with self.lock:  # `roll` reads which file is current
            wal, self._wal = self._wal, None
        if wal is not None:
            wal.close()

    # Rolling, by one thread

    def roll(self) -> None:
        """Turn the log files that are finished now into segments."""
        with self.lock:
            active = self._wal.path if self._wal is not None else None
            finished = [log for log in self._logs if log.path != active and log.blocks]
        for log in finished:
            self._roll(log)
            self.rolled += 1
        if self._forgot:
            self._forgot = False
            producers = self._remembered(self.manifest.producers)
            if len(producers) != len(self.manifest.producers):
                known = self.manifest.instances
                instances = {name: known[name] for name in producers if name in known}
                self._install(replace(self.manifest, producers=producers, instances=instances))

    def _roll(self, log: LogFile) -> None:
        blocks = log.blocks
        first, last = blocks[0].first, blocks[-1].end - 1
        path = self.directory / segment_name(first, last)
        size, checksum = write_segment(path, read_rows(log.path, blocks))
        segment = Segment(
            first,
            last,
            size,
            min(block.metadata.first_time for block in blocks),
            max(block.metadata.last_time for block in blocks),
            blocks[0].metadata.ingest_time,
            blocks[-1].metadata.ingest_time,
            checksum,
            blocks[-1].metadata.stored_at,
        )
        producers = dict(self.manifest.producers)
        instances = dict(self.manifest.instances)
        for block in blocks:
            for producer, sequence in block.metadata.producers.items():
                producers[producer] = (sequence, block.metadata.ingest_time)
                instances[producer] = block.metadata.instances.get(producer, "")
        remembered = self._remembered(producers)
        fresh = replace(
            self.manifest,
            next=last + 1,
            group=max(self.manifest.group, blocks[-1].metadata.group),
            ingest_time=max(self.manifest.ingest_time, blocks[-1].metadata.ingest_time),
            segments=[*self.manifest.segments, segment],
            producers=remembered,
            instances={name: known for name, known in instances.items() if name in remembered},
            high_water=blocks[-1].metadata.ends(is_durable=True),
        )
        self._install(fresh, size)
        with self.lock:
            self._logs.remove(log)
        remove_files([log.path])

    def _remembered(self, producers: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        with self.lock:
            return {name: known for name, known in producers.items() if name in self.producers}

    def forget(self, producers: Iterable[str]) -> None:
        """Forget producers; the next roll removes them from the manifest."""
        with self.lock:
            for producer in producers:
                self.producers.pop(producer, None)
                self.instances.pop(producer, None)
            self._forgot = True

    def _install(self, manifest: Manifest, grown: int = 0) -> None:
        write_manifest(self.directory, manifest)
        with self.lock:
            self.manifest = manifest
            self.segments_size += grown

    def drop_before(self, offset: int) -> int:
        """Remove the segments that end before an offset; return the bytes freed."""
        manifest = self.manifest
        count = bisect_left(manifest.segments, offset, key=lambda segment: segment.last)
        removed, kept = manifest.segments[:count], manifest.segments[count:]
        if not removed:
            return 0
        first = removed[-1].last + 1
        freed = sum(segment.size for segment in removed)
        self._install(replace(manifest, first=first, segments=kept), -freed)
        self._sound.difference_update(segment.name for segment in removed)
        remove_files(self.directory / segment.name for segment in removed)
        return freed

    # Reading, by any thread

    @property
    def first_offset(self) -> int:
        """The first offset that retention has not removed."""
        return self.manifest.first

    @property
    def log_bytes(self) -> int:
        """Bytes in the log."""
        with self.lock:
            return sum(log.size for log in self._logs)

    def check_usable(self, topic: str) -> None:
        """Raise `IngestError` if the partition is out of use."""
        if self.fault:
            raise IngestError(f"{topic} partition {self.number} is out of use: {self.fault}")

    def check_range(self, topic: str, start: int, end: int) -> None:
        """Raise `UnknownTopic` unless all rows from ``start`` up to ``end`` exist."""
        self.check_usable(topic)
        first, last = self.manifest.first, self.next_offset
        if not first <= start <= end <= last:
            raise UnknownTopic(
                f"{topic} partition {self.number} has offsets from {first} up to {last}, "
                f"not from {start} up to {end}"
            )

    def read(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets from ``start`` up to ``end``, which must exist.

        With ``columns``, only those; other columns of a segment are not read from disk.
        """
        self.check_usable(self.directory.parent.name)
        while start < end:
            path, batches = self._file_with(start, end, columns)
            try:
                for batch in batches:
                    start += batch.num_rows
                    yield batch
            except FileNotFoundError:
                self._check_removed(path)
            except OSError as error:
                raise IngestError(f"{path} could not be read: {error.strerror}") from error

    def _file_with(
        self, start: int, end: int, columns: Sequence[str] | None
    ) -> tuple[Path, Iterator[pa.RecordBatch]]:
        """Return the file that contains offset ``start``, and its rows from there on."""
        with self.lock:
            manifest = self.manifest
            logs = [(log.path, list(log.blocks)) for log in self._logs]
        if start < manifest.first:
            raise UnknownTopic(f"offset {start} was removed; {manifest.first} is the first left")
        if start < manifest.next:
            at = bisect_left(manifest.segments, start, key=lambda segment: segment.last)
            segment = manifest.segments[at]
            path = self.directory / segment.name
            return path, self._read_segment(segment, start, end, columns)
        for path, blocks in logs:
            wanted = [block for block in blocks if block.first < end and start < block.end]
            if wanted:
                rows = _read_log(path, wanted, start, end)
                return path, rows if columns is None else (each.select(columns) for each in rows)
        raise CorruptFile(self.directory, 0, f"offset {start} is in no segment and in no log")

    def _read_segment(
        self, segment: Segment, start: int, end: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        path = self._checked(segment)
        yield from read_segment(path, segment.first, start, min(end, segment.last + 1), columns)

    def _checked(self, segment: Segment) -> Path:
        """Return the path of a segment whose checksum was verified."""
        path = self.directory / segment.name
        if segment.name not in self._sound:
            check_segment(path, segment.checksum)
            self._sound.add(segment.name)
        return path

    def _check_removed(self, path: Path) -> None:
        """Raise `CorruptFile` for a missing file, unless a roll or retention has removed it."""
        if self._read_only:
            self._recover()
        with self.lock:
            ours = {self.directory / segment.name for segment in self.manifest.segments}
            ours |= {log.path for log in self._logs}
        if path in ours and not path.exists():
            raise CorruptFile(path, 0, "the file is missing")

    def stored_times(self) -> list[int]:
        """Return when the last row of each segment, and then each block of the log, was stored.

        For a partition that was written while the clock was set back. Rows stored before that get
        the time of the next stored row, which is an upper bound; so the times never decrease.
        """
        with self.lock:
            return self._stored_times()

    def _stored_times(self) -> list[int]:
        times = [segment.stored_at for segment in self.manifest.segments]
        times += [block.metadata.stored_at for log in self._logs for block in log.blocks]
        times.reverse()
        return list(accumulate(times, min))[::-1]

    def offset_at(self, timestamp: int) -> int:
        """Return the first offset stored at or after a time; the next offset if there is none.

        If the clock was set back, the row may have been stored a few seconds earlier.
        """
        self.check_usable(self.directory.parent.name)
        while True:
            with self.lock:
                held = self.manifest.segments
                blocks = [block for log in self._logs for block in log.blocks]
                if self.was_set_back:
                    at = bisect_left(self._stored_times(), timestamp)
                else:
                    at = bisect_left(held, timestamp, key=lambda segment: segment.last_ingest)
                    if at == len(held):
                        at += bisect_left(
                            blocks, timestamp, key=lambda each: each.metadata.ingest_time
                        )
                if at >= len(held):
                    at -= len(held)
                    return blocks[at].first if at < len(blocks) else self.next_offset
            segment = held[at]
            if segment.first_ingest >= timestamp:
                return segment.first
            try:
                path = self._checked(segment)
                return first_stored_at(path, segment.first, segment.last + 1, timestamp)
            except FileNotFoundError:
                self._check_removed(self.directory / segment.name)

    def info(self) -> PartitionInfo:
        """Return the offsets, times and size of the partition."""
        with self.lock:
            segments = self.manifest.segments
            size = self.segments_size + sum(log.size for log in self._logs)
            firsts = [segment.first_ingest for segment in segments[:1]]
            for log in self._logs:
                firsts += [block.metadata.ingest_time for block in log.blocks[:1]]
            return PartitionInfo(
                self.number,
                self.manifest.first,
                self.next_offset,
                firsts[0] if firsts else None,
                self.ingest_time if firsts else None,
                size,
                self.fault,
            )


def _read_log(path: Path, blocks: list[Block], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of blocks within a range of offsets."""
    for batch, block in zip(read_rows(path, blocks), blocks, strict=True):
        skip = max(start - block.first, 0)
        yield batch.slice(skip, min(end, block.end) - block.first - skip)
