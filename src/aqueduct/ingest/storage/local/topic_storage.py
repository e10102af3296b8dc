"""One topic in a directory: partitions that are written together, so that groups are atomic.

A group has a block in the log of each partition that it touches, and each block names all of them.
Recovery cuts off a group of which a block is missing: its producers had no answer yet. So the
sequence number of a producer covers all partitions.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, wait
from pathlib import Path
from typing import NoReturn

import msgspec

from aqueduct.ingest.errors import CorruptFile, IngestError
from aqueduct.ingest.identity import Epoch, History
from aqueduct.ingest.storage.base import (
    Appended,
    Group,
    NothingStored,
    OutcomeUnknown,
    PartitionRecords,
    ProducerState,
    Retention,
    UnencodableRecords,
)
from aqueduct.ingest.storage.local.durability import (
    ClosedMark,
    high_water_marks,
    mark_of_last_group,
    newest_group,
    read_accepted,
    read_closed,
    remove_closed,
    shortfalls,
    torn_tails,
    write_closed,
)
from aqueduct.ingest.storage.local.file_modes import DIRECTORY_MODE, make_private
from aqueduct.ingest.storage.local.files import (
    LocalBlob,
    read_checked,
    sync_directory,
    write_checked,
)
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.wal import BlockMetadata

_log = logging.getLogger("aqueduct.ingest")
METADATA = "topic.json"
"""The file that makes a directory a topic."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Metadata(msgspec.Struct):
    """The contents of `METADATA`."""

    partitions: int
    version: int = 1
    id: str = ""
    """Empty for a topic of a version without ids."""
    epochs: list[Epoch] = []


class LocalTopicStorage:
    """Implements `TopicStorage` with a directory for each partition."""

    def __init__(
        self,
        directory: Path,
        *,
        read_only: bool = False,
        sync_threads: Executor | None = None,
    ) -> None:
        """Open and recover the topic; raise `CorruptFile` if its metadata is damaged.

        ``read_only``: another process may append; nothing is changed. ``sync_threads`` sync the
        partitions of a group; needed to append.
        """
        self.directory = directory
        self.name = directory.name
        self.read_only = read_only
        self._sync_threads = sync_threads
        count = _read_metadata(directory / METADATA).partitions
        closed = read_closed(directory)
        self._is_closed = closed is not None
        self._is_writing = False
        self._fault = ""
        self._is_settled = False
        """Whether recovery found no damage; otherwise nothing may be changed."""
        self._rotatable: dict[int, Partition] = {}
        """The partitions with a log file that is appended to."""
        self._logged: dict[int, str] = {}
        """By partition, the failure of upkeep that was logged last."""
        self.partitions = [
            Partition(directory / f"part={number}", number, read_only=read_only)
            for number in range(count)
        ]
        # Read after the partitions: an epoch is written before the first of its rows.
        self.history = read_history(directory)
        accepted = read_accepted(directory)
        if not self.fault:
            self._find_damage(closed, accepted)
        self._group = max(newest_group(self.partitions), accepted)
        if not self.fault:
            self._settle(accepted)

    @property
    def location(self) -> str:
        """The path of the directory."""
        return str(self.directory)

    @property
    def fault(self) -> str:
        """Why the topic cannot be appended to; one damaged partition is enough."""
        return self._fault or next((part.fault for part in self.partitions if part.fault), "")

    # Recovery

    def _find_damage(self, closed: ClosedMark | None, accepted: int) -> None:
        """Put partitions out of use that lack rows which a crash cannot have removed."""
        parts = self.partitions
        marks = high_water_marks(parts, closed, accepted)
        damage = shortfalls(parts, marks)
        if damage and self.read_only:
            # Its server may have appended since: what was durable then must be visible now.
            for part, _ in damage:
                part.recover()
            damage = shortfalls(parts, marks)
        is_closed = closed is not None and (
            not self.read_only or read_closed(self.directory) is not None
        )
        if is_closed and not damage:
            damage = torn_tails(parts) or shortfalls(parts, [mark_of_last_group(parts, accepted)])
        for part, fault in damage:
            part.put_out_of_use(str(fault))

    def _settle(self, accepted: int) -> None:
        """Remove what a crash left, and the last group if it is incomplete."""
        try:
            last = mark_of_last_group(self.partitions, accepted)
            is_incomplete = shortfalls(self.partitions, [last])
            for part in self.partitions:
                part.settle()
            if is_incomplete:
                self.leave_last_group()
        except OSError as error:
            self._fault = f"{error.filename or self.directory}: {error.strerror}"
            _log.error("topic %s is out of use: %s", self.name, self._fault)
            return
        self._is_settled = True

    def leave_last_group(self) -> None:
        """Cut the last group off; if read-only, ignore it: its server may not have synced it."""
        newest = max(part.last_group for part in self.partitions)
        for part in self.partitions:
            if newest and part.last_group == newest:
                part.cut_last()

    # Metadata

    def write_history(self, history: History) -> None:
        """Replace the identity of the topic."""
        path = self.directory / METADATA
        try:
            _write_metadata(path, len(self.partitions), history)
        except OSError as error:
            raise IngestError(f"{path} could not be written: {error}") from None
        self.history = history

    def blob(self, name: str) -> LocalBlob:
        """Return the blob in the file with a name."""
        return LocalBlob(self.directory / name)

    def producers(self) -> dict[str, ProducerState]:
        """Return the producers of all partitions.

        If two partitions differ, the later state counts: a producer that was forgotten begins at
        sequence number 1 again.
        """
        found: dict[str, ProducerState] = {}
        for part in self.partitions:
            for producer, (sequence, stored) in part.producers.items():
                state = ProducerState(sequence, stored, part.instances.get(producer, ""))
                known = found.get(producer, state)
                if (stored, sequence) >= (known.time, known.sequence):
                    found[producer] = state
        return found

    def forget_producers(self, names: Iterable[str]) -> None:
        """Remove producers from all partitions; the next roll removes them from the manifests."""
        forgotten = list(names)
        for part in self.partitions:
            part.forget(forgotten)

    # Appending, by one thread

    def append(self, group: Group) -> Appended:
        """Write the blocks of a group, sync them in parallel, then make them visible."""
        self._remove_closed_mark()
        ingest_time = max(group.clock, *(part.ingest_time for part in self.partitions))
        offsets = self._stage(group, ingest_time)
        touched = [self.partitions[number] for number in group.partitions]
        self._is_writing = True
        try:
            self._write(touched)
            for part in touched:
                part.seal()
                self._rotatable[part.number] = part
            self._is_writing = False
        except IngestError:
            raise
        except Exception as error:
            raise OutcomeUnknown(
                f"topic {self.name}: it is unknown whether the last group is stored: {error!r}"
            ) from error
        finally:
            if self._is_writing and not self._fault:
                self._fault = f"{self.directory}: it is unknown whether the last group is stored"
        return Appended(offsets, ingest_time)

    def _remove_closed_mark(self) -> None:
        if not self._is_closed:
            return
        try:
            remove_closed(self.directory)
        except OSError as error:
            raise self._nothing_stored(error) from error
        self._is_closed = False

    def _nothing_stored(self, error: BaseException) -> NothingStored:
        return NothingStored(
            f"topic {self.name} could not be written in {self.directory}, and nothing of these "
            f"records was stored: {error}"
        )

    def _stage(self, group: Group, ingest_time: int) -> dict[int, int]:
        """Encode a block for each partition of the group; return the first offset of each."""
        ends = {part.number: part.next_offset for part in self.partitions}
        offsets = {number: ends.pop(number) for number in group.partitions}
        # Never reuse a group number, even after a failure: remains of that group may be on disk.
        self._group = self._group + 1
        try:
            for number, records in group.partitions.items():
                metadata = _metadata(self._group, offsets, ends, records, ingest_time, group.clock)
                self.partitions[number].stage(records.chunks, metadata)
        except IngestError as error:
            raise NothingStored(str(error)) from error
        except Exception as error:
            raise UnencodableRecords(
                f"topic {self.name}: records could not be encoded: {error!r}"
            ) from error
        return offsets

    def _write(self, touched: Sequence[Partition]) -> None:
        """Write and sync the staged blocks in all partitions, or in none."""
        assert self._sync_threads is not None
        try:
            for part in touched:
                part.write()
        except Exception as error:  # noqa: BLE001 -- no part of a group may stay
            self._take_back(touched, error)
        syncs = [self._sync_threads.submit(part.sync) for part in touched]
        wait(syncs)
        faults = [fault for each in syncs if (fault := each.exception()) is not None]
        for fault in faults:
            if not isinstance(fault, OSError) or fault.errno not in _DISK_FULL:
                self._fault = f"{self.directory} could not be synced: {fault}"
                break
        if faults:
            self._take_back(touched, faults[0])

    def _take_back(self, touched: Sequence[Partition], error: BaseException) -> NoReturn:
        """Remove what was written of a group; if that fails, its outcome is unknown."""
        for part in touched:
            try:
                part.revert()
            except OSError as fault:
                self._fault = self._fault or f"{part.directory} could not be cut back: {fault}"
        if self._fault:
            raise OutcomeUnknown(
                f"topic {self.name} is out of use until the server starts again, which looks at "
                f"what is on disk: {self._fault}"
            ) from error
        self._is_writing = False
        raise self._nothing_stored(error) from error

    def rotate(self, size: int, age: float) -> None:
        """Close log files of that size or age; the next group begins a new one."""
        horizon = time.monotonic() - age
        for part in list(self._rotatable.values()):
            if part.log_size >= size or part.log_begun <= horizon:
                try:
                    part.rotate()
                except OSError as error:
                    _log.error("a log in %s could not be finished: %s", part.directory, error)
                else:
                    del self._rotatable[part.number]

    # Upkeep, by one thread

    def roll(self, partition: int) -> int:
        """Turn the finished log files of a partition into segments; return how many."""
        part = self.partitions[partition]
        if not self._is_settled or part.fault:
            return 0
        before = part.rolled
        try:
            part.roll()
        except CorruptFile as fault:
            part.put_out_of_use(str(fault))
        except OSError as error:
            self._log_once(part, f"a log in {part.directory} is not a segment yet: {error}")
        else:
            self._logged.pop(partition, None)
        return part.rolled - before

    def _log_once(self, part: Partition, failure: str) -> None:
        """Log a failure of upkeep unless it is the same as before: retries are frequent."""
        if self._logged.get(part.number) != failure:
            _log.error("%s", failure)
        self._logged[part.number] = failure

    def expired(self, partition: int, retention: Retention) -> int:
        """Return the end of the last segment that is too old or beyond the size limit."""
        part = self.partitions[partition]
        size = part.segments_size
        segments = part.manifest.segments
        times = part.stored_times() if part.was_set_back else None
        end = part.first_offset
        for at, segment in enumerate(segments):
            stored = segment.stored_at if times is None else times[at]
            if stored > retention.latest:
                stored = retention.noticed
            is_old = retention.stored_before is not None and stored < retention.stored_before
            is_beyond = retention.max_bytes is not None and size > retention.max_bytes
            if not is_old and not is_beyond:
                break
            end = segment.last + 1
            size -= segment.size
        return end

    def drop_before(self, partition: int, offset: int) -> int:
        """Remove the segments whose rows are all below an offset; return the bytes freed."""
        part = self.partitions[partition]
        if not self._is_settled or part.fault:
            return 0
        try:
            return part.drop_before(offset)
        except OSError as error:
            self._log_once(part, f"segments in {part.directory} could not be removed: {error}")
            return 0

    def close(self) -> None:
        """Close all files, and mark the topic as closed if nothing is unknown about it."""
        for part in self.partitions:
            part.close()
        if self.read_only or self._is_closed or self._is_writing or self.fault:
            return
        try:
            write_closed(self.partitions, self.directory)
        except OSError as error:
            _log.warning(
                "%s was closed, but could not be marked as closed: %s", self.directory, error
            )


def _metadata(
    group: int,
    members: dict[int, int],
    others: dict[int, int],
    records: PartitionRecords,
    ingest_time: int,
    clock: int,
) -> BlockMetadata:
    return BlockMetadata(
        group,
        members,
        records.producers,
        ingest_time,
        min(min(chunk.columns.timestamps) for chunk in records.chunks),
        max(max(chunk.columns.timestamps) for chunk in records.chunks),
        others,
        records.instances,
        clock,
    )


def create_topic(directory: Path, partitions: int, history: History, mode: int | None) -> None:
    """Create the directories of a topic; its metadata, which makes it one, comes last."""
    directory.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
    make_private(directory, mode)
    for number in range(partitions):
        make_private(directory / f"part={number}", mode)
    sync_directory(directory.parent)
    _write_metadata(directory / METADATA, partitions, history)


def is_unfinished(directory: Path) -> bool:
    """Return whether a crash interrupted the creation of a topic, so that it is empty."""
    files = (path for path in directory.rglob("*") if not path.is_dir())
    return all(path.name == f".{METADATA}.tmp" for path in files)


def read_history(directory: Path) -> History:
    """Return the identity of a topic, which another process may have open."""
    metadata = _read_metadata(directory / METADATA)
    return History(metadata.id, metadata.epochs)


def _write_metadata(path: Path, partitions: int, history: History) -> None:
    write_checked(path, Metadata(partitions, id=history.topic_id, epochs=history.epochs))


def _read_metadata(path: Path) -> Metadata:
    try:
        metadata = read_checked(path, Metadata, "the description of a topic")
    except FileNotFoundError:
        raise CorruptFile(path, 0, "the metadata of the topic is missing") from None
    for number in range(metadata.partitions):
        part = path.with_name(f"part={number}")
        if not part.is_dir():
            raise CorruptFile(part, 0, "the directory of a partition is missing")
    return metadata
