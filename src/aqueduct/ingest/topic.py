"""One topic: partitions that are written together, so that a group of records is there or is not.

A group is what one commit stores. It has a block in each partition that it touches, and each block
names all of them. After a crash a group that is not whole is cut off again: nobody was told of it.
So one number for each producer says what is stored of what it sent, over all partitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aqueduct.ingest.assignment import partition_of, spread
from aqueduct.ingest.faults import CorruptFile, IngestError, RefusedRecords
from aqueduct.ingest.manifest import replace_file
from aqueduct.ingest.messages import Records, TopicInfo
from aqueduct.ingest.partition import Partition
from aqueduct.ingest.rows import Chunk, pick_places, pick_runs
from aqueduct.ingest.wal import Facts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ABOUT = "topic.json"
_READERS = "readers.json"


class _About(msgspec.Struct):
    partitions: int
    version: int = 1


def check_name(name: str, what: str = "topic") -> None:
    """Raise unless this can be a name: also of a directory, and of nothing above it."""
    if not _NAME.fullmatch(name):
        raise RefusedRecords(
            f"{name[:120]!r} cannot be the name of a {what}; take up to 100 letters, digits, "
            "dots, dashes and underscores, beginning with a letter or digit"
        )


@dataclass(slots=True)
class Submission:
    """Records that somebody wants stored, and what became of them."""

    producer_id: str
    records: Records
    offsets: dict[int, int] = field(default_factory=dict)
    """By partition, where the first of them is."""
    skipped: int = 0
    """How many of them had been stored before."""
    fault: IngestError | None = None


class Topic:
    """The partitions of a topic, opened and recovered."""

    def __init__(
        self, directory: Path, partitions: int | None = None, *, read_only: bool = False
    ) -> None:
        """``partitions`` makes it new; without, it is there. See `Partition` for ``read_only``."""
        self.directory = directory
        self.name = directory.name
        if partitions is not None:
            directory.mkdir(parents=True, exist_ok=True)
            replace_file(directory / _ABOUT, msgspec.json.encode(_About(partitions)))
        count = _read(directory / _ABOUT, _About).partitions
        self.partitions = [
            Partition(directory / f"part={number}", number, read_only=read_only)
            for number in range(count)
        ]
        self.fault = next((part.fault for part in self.partitions if part.fault), "")
        self._group = 0
        if not self.fault:
            self._drop_broken_group()
        self.producers: dict[str, tuple[int, int]] = {}
        """Of each producer the last sequence number that is stored, and when that was."""
        for part in self.partitions:
            self._group = max(self._group, part.manifest.group)
            for producer, known in part.producers.items():
                self.producers[producer] = max(known, self.producers.get(producer, known))
        self.readers = _read_readers(directory / _READERS)

    def _drop_broken_group(self) -> None:
        """Cut the last group off wherever it is, if it is not everywhere it should be."""
        last = [part for part in self.partitions if part.last_block is not None]
        self._group = max((_group_of(part) for part in last), default=0)
        newest = [part for part in last if _group_of(part) == self._group]
        ends = {part.number: part.next_offset for part in self.partitions}
        for part in newest:
            block = part.last_block
            assert block is not None
            if any(ends.get(number, 0) <= first for number, first in block.facts.members.items()):
                for broken in newest:
                    broken.cut_last()
                return

    def leave_last_group(self) -> None:
        """Do without the last group: its writer may not have synced it."""
        newest = max((_group_of(part) for part in self.partitions), default=0)
        for part in self.partitions:
            if newest and _group_of(part) == newest:
                part.cut_last()

    # Writing, by one thread

    def commit(self, submissions: Sequence[Submission], now: int, sync: Executor) -> None:
        """Store records as one group, and note in each submission what became of it."""
        chunks = self._arrange(submissions)
        if not chunks:
            return
        now = max(now, *(part.ingest_time for part in self.partitions))
        members = {number: self.partitions[number].next_offset for number in chunks}
        touched = [self.partitions[number] for number in chunks]
        group = self._group + 1
        try:
            for part in touched:
                part.stage(chunks[part.number], _facts(group, members, chunks[part.number], now))
            for _ in sync.map(Partition.sync, touched):
                pass
        except OSError as error:
            for part in touched:
                part.revert()
            raise IngestError(f"{self.name} could not be written: {error.strerror}") from error
        self._group = group
        for part in touched:
            part.seal()
        for part_chunks in chunks.values():
            for chunk in part_chunks:
                self.producers[chunk.producer_id] = (
                    max(chunk.sequences[-1], self.producers.get(chunk.producer_id, (0, 0))[0]),
                    now,
                )

    def _arrange(self, submissions: Sequence[Submission]) -> dict[int, list[Chunk]]:
        """What is new of the records, by partition; each submission learns its offsets."""
        chunks: dict[int, list[Chunk]] = {}
        ends = {part.number: part.next_offset for part in self.partitions}
        last: dict[str, int] = {}
        for submission in submissions:
            producer = submission.producer_id
            records = submission.records
            known = last.get(producer, self.producers.get(producer, (0, 0))[0])
            end = records.sequence + len(records.values)
            if records.sequence > known + 1:
                submission.fault = RefusedRecords(
                    f"record {records.sequence} of producer {producer!r} came after {known}: "
                    "those between were not sent, or another producer uses the same id"
                )
                continue
            skip = min(known + 1 - records.sequence, len(records.values))
            submission.skipped = skip
            if skip == len(records.values):
                continue
            last[producer] = end - 1
            for number, chunk in self._split(producer, records, skip):
                chunks.setdefault(number, []).append(chunk)
                submission.offsets[number] = ends[number]
                ends[number] += len(chunk.values)
        return chunks

    def _split(self, producer: str, records: Records, skip: int) -> Iterable[tuple[int, Chunk]]:
        """Records without the first few, by partition."""
        count = len(self.partitions)
        sequences = range(records.sequence, records.sequence + len(records.values))
        if records.partition is not None or count == 1:
            where = records.partition or 0
            yield (
                where,
                Chunk(
                    producer,
                    sequences[skip:],
                    records.values[skip:],
                    records.timestamps[skip:],
                    None if records.keys is None else records.keys[skip:],
                    None if records.headers is None else records.headers[skip:],
                ),
            )
            return
        if records.keys is None:
            runs = spread(range(skip, len(sequences)), records.sequence, count)
            for number, slices in runs.items():
                yield number, pick_runs(producer, records, slices)
            return
        places: dict[int, list[int]] = {}
        for at in range(skip, len(sequences)):
            number = partition_of(records.keys[at], sequences[at], count)
            places.setdefault(number, []).append(at)
        for number, chosen in places.items():
            yield number, pick_places(producer, records, chosen)

    def forget_producers(self, horizon: int) -> None:
        """Forget the producers that stored nothing since a time."""
        for producer, (_, time) in list(self.producers.items()):
            if time < horizon:
                del self.producers[producer]

    def advance(self, reader: str, offsets: dict[int, int]) -> None:
        """Note how far a named reader has come."""
        known = dict(self.readers.get(reader, {}))
        for number, offset in offsets.items():
            if not 0 <= number < len(self.partitions):
                raise RefusedRecords(f"{self.name} has no partition {number}")
            known[number] = max(offset, known.get(number, 0))
        readers = {**self.readers, reader: known}
        replace_file(self.directory / _READERS, msgspec.json.encode(readers))
        self.readers = readers

    def close(self) -> None:
        """Close its files."""
        for part in self.partitions:
            part.close()

    def info(self) -> TopicInfo:
        """What it holds."""
        return TopicInfo(self.name, [part.info() for part in self.partitions], self.readers)


def _group_of(part: Partition) -> int:
    block = part.last_block
    return block.facts.group if block is not None else 0


def _facts(group: int, members: dict[int, int], chunks: Sequence[Chunk], now: int) -> Facts:
    producers: dict[str, int] = {}
    for chunk in chunks:
        producers[chunk.producer_id] = chunk.sequences[-1]
    return Facts(
        group,
        members,
        producers,
        now,
        min(min(chunk.timestamps) for chunk in chunks),
        max(max(chunk.timestamps) for chunk in chunks),
    )


def _read(path: Path, kind: Callable[..., _About]) -> _About:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_About)
    except FileNotFoundError:
        raise CorruptFile(path, 0, "the file that says what the topic is like is missing") from None
    except msgspec.MsgspecError as error:
        raise CorruptFile(path, 0, f"not the description of a topic: {error}") from None


def _read_readers(path: Path) -> dict[str, dict[int, int]]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[int, int]])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise CorruptFile(path, 0, f"not a list of readers: {error}") from None
