"""One topic: partitions that are written together, so that a group of records is there or is not.

A group is what one commit stores. It has a block in each partition that it touches, and each block
names all of them. After a crash a group that is not whole is cut off again: nobody was told of it.
So one number for each producer says what is stored of what it sent, over all partitions.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from aqueduct.ingest.dedup.jobs import SHOWN_STEPS, Jobs
from aqueduct.ingest.dedup.once import Attempt, Once, cut_ids
from aqueduct.ingest.errors import CorruptFile, IngestError, RefusedRecords, TopicReplaced
from aqueduct.ingest.identity import Epoch, History, TopicPosition, new_topic_id
from aqueduct.ingest.limits import IngestLimits
from aqueduct.ingest.protocol import FIRST_TIME, LAST_TIME, Records, TopicInfo
from aqueduct.ingest.records import Chunk, make_batch
from aqueduct.ingest.server.arranging import split
from aqueduct.ingest.server.owners import Owners, tag_of
from aqueduct.ingest.server.owners import check_owner as check_token
from aqueduct.ingest.storage.local.durability import (
    Closed,
    last_group,
    newest_group,
    proofs,
    read_accepted,
    read_closed,
    remove_closed,
    shortfalls,
    torn_ends,
    write_closed,
)
from aqueduct.ingest.storage.local.file_modes import DIRECTORY_MODE, make_private
from aqueduct.ingest.storage.local.manifest import read_checked, sync_directory, write_checked
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.wal import Facts

_log = logging.getLogger("aqueduct.ingest")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ABOUT = "topic.json"
_READERS = "readers.json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


_REPLACED = (
    "Nothing was done. To continue with the topic that exists, start without a position, or in "
    "Spark with option onTopicReplaced (docs/ingest.md, Topic identity)"
)


class _About(msgspec.Struct):
    partitions: int
    version: int = 1
    id: str = ""
    """Empty for a topic of a version without ids."""
    epochs: list[Epoch] = []


class _Readers(msgspec.Struct):
    """The offsets of named readers; earlier versions stored the offsets alone."""

    offsets: dict[str, dict[int, int]]
    identity: dict[str, tuple[str, str]] = {}
    """By name, topic id and epoch of those offsets (`identity.TopicPosition`)."""
    version: int = 2


def check_name(name: str, what: str = "topic") -> None:
    """Raise unless this can be a name: also of a directory, and of nothing above it."""
    if not _NAME.fullmatch(name):
        raise RefusedRecords(
            f"{name[:120]!r} cannot be the name of a {what}; take up to 100 letters, digits, "
            "dots, dashes and underscores, beginning with a letter or digit"
        )


def superseded(producer_id: str) -> str:
    """What a producer is told whose id another has taken."""
    return (
        f"another producer was opened with the id {producer_id!r} meanwhile: what was not flushed "
        "may not be stored; an id is for one at a time, so give each its own"
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
    once: Once | None = None
    """Whose rows they are, if they are known by ids."""
    attempt: Attempt | None = None
    """Which attempt of that part sends them."""
    fault: IngestError | None = None
    is_done: bool = False
    """Whether all of them are on disk: whatever fails then, that is what is to be said."""


@dataclass(frozen=True, slots=True)
class Move:
    """An advance of a named reader."""

    reader: str
    offsets: dict[int, int]
    owner: str = ""
    """The owner that moves the reader; empty for one that may move every reader."""
    position: TopicPosition | None = None
    """The position that the topic must match, if the reader sent one."""


@dataclass(slots=True)
class _Arranged:
    """The new records of a submission, by partition."""

    submission: Submission
    chunks: list[tuple[int, Chunk]]


class Topic:
    """The partitions of a topic, opened and recovered."""

    def __init__(
        self,
        directory: Path,
        partitions: int | None = None,
        *,
        read_only: bool = False,
        mode: int | None = None,
        max_epochs: int = IngestLimits.max_epochs,
    ) -> None:
        """With ``partitions``, create the topic with directories of ``mode``; else open it.

        See `Partition` for ``read_only``, and `make_private` for ``mode``.
        """
        self.directory = directory
        self.name = directory.name
        if partitions is not None:
            _make(directory, partitions, mode)
        count = _read_about(directory / _ABOUT).partitions
        closed = read_closed(directory)
        self._is_closed = closed is not None
        self._is_writing = False
        self._read_only = read_only
        self.partitions = [
            Partition(directory / f"part={number}", number, read_only=read_only)
            for number in range(count)
        ]
        # Read after the partitions: an epoch is written before the first of its rows.
        about = _read_about(directory / _ABOUT)
        self.history = History(about.id, about.epochs)
        """Its identity; replaced as a whole, so that other threads may read it."""
        self._max_epochs = max_epochs
        self._has_epoch = partitions is not None
        """Whether new rows belong to the last epoch."""
        self.fault = next((part.fault for part in self.partitions if part.fault), "")
        self.is_settled = False
        """Whether all of it was found to be good; if not, nothing may be changed."""
        accepted = read_accepted(directory)
        if not self.fault:
            self._judge(closed, accepted)
        self._group = max(newest_group(self.partitions), accepted)
        if not self.fault:
            self._settle(accepted)
        self.producers: dict[str, tuple[int, int]] = {}
        """Of each producer the last sequence number that is stored, and when that was."""
        self.instances: dict[str, str] = {}
        """Which of those with the id that was, of each producer that told."""
        self.owners: dict[str, str] = {}
        """Which of those with an id was opened last, since the topic was opened."""
        for part in self.partitions:
            for producer, known in part.producers.items():
                if _by_time(known) >= _by_time(self.producers.get(producer, known)):
                    self.producers[producer] = known
                    self.instances[producer] = part.instances.get(producer, "")
        self.job_owners = Owners(directory / "jobs.owners.json", "job")
        self.reader_owners = Owners(directory / "readers.owners.json", "reader")
        self.jobs = Jobs(directory)
        if self.jobs.fault and not read_only:
            _log.error("topic %s is not written by jobs any more: %s", self.name, self.jobs.fault)
        self.readers: dict[str, dict[int, int]] = {}
        self.reader_identity: dict[str, tuple[str, str]] = {}
        """By name of a reader, topic id and epoch of its offsets."""
        self.readers_fault = ""
        """Why nobody knows where readers are; then nothing is removed, and all else goes on."""
        try:
            self.readers, self.reader_identity = _read_readers(directory / _READERS)
        except CorruptFile as fault:
            self.readers_fault = str(fault)
            _log.error("nothing is removed from topic %s any more: %s", self.name, fault)
        self.stale_readers = self._find_stale_readers()
        """Named readers whose position does not match the topic, and why. Computed once: an open
        topic does not shrink, and its next epoch begins after all readers."""

    def _judge(self, closed: Closed | None, accepted: int) -> None:
        """Put out of use what lacks something that no crash can have taken."""
        parts = self.partitions
        known = proofs(parts, closed, accepted)
        damage = shortfalls(parts, known)
        if damage and self._read_only:
            # Its writer may have gone on since; what was proven then has to be there now.
            for part, _ in damage:
                part.recover()
            damage = shortfalls(parts, known)
            self.fault = next((part.fault for part in parts if part.fault), "")
        is_closed = closed is not None and (
            not self._read_only or read_closed(self.directory) is not None
        )
        if is_closed and not damage:
            damage = torn_ends(parts) or shortfalls(parts, [last_group(parts, accepted)])
        for part, fault in damage:
            part.put_out_of_use(str(fault))
            self.fault = self.fault or part.fault

    def _settle(self, accepted: int) -> None:
        """Clear away what a crash left, and the last group if it is not everywhere."""
        try:
            broken = shortfalls(self.partitions, [last_group(self.partitions, accepted)])
            for part in self.partitions:
                part.settle()
            if broken:
                self.leave_last_group()
        except OSError as error:
            self.fault = f"{error.filename or self.directory}: {error.strerror}"
            _log.error("topic %s is out of use: %s", self.name, self.fault)
            return
        self.is_settled = True

    def leave_last_group(self) -> None:
        """Do without the last group: its writer may not have synced it."""
        newest = max(part.last_group for part in self.partitions)
        for part in self.partitions:
            if newest and part.last_group == newest:
                part.cut_last()

    # Identity

    def check_position(self, position: TopicPosition | None) -> None:
        """Raise `TopicReplaced` unless the topic has the rows before a position."""
        if position is None:
            return
        if reason := self.history.mismatch(position, self.ends()):
            raise replaced(self.name, reason)

    def check_history(self, position: TopicPosition | None) -> None:
        """Check a position without the ends: the last rows may not be visible to this process."""
        if position is not None and (reason := self.history.mismatch(position)):
            raise replaced(self.name, reason)

    def identify(self) -> None:
        """Assign an id to a topic of a version without ids."""
        if self.is_settled and not self.history.topic_id:
            self._write_history(History(new_topic_id()))

    def begin_epoch(self) -> None:
        """Record a new epoch before the first write since the topic was opened."""
        if not self._has_epoch:
            self._write_history(self.history.begun(self.ends(), self._max_epochs))
            self._has_epoch = True

    def _write_history(self, history: History) -> None:
        about = _About(len(self.partitions), id=history.topic_id, epochs=history.epochs)
        try:
            write_checked(self.directory / _ABOUT, about)
        except OSError as error:
            raise IngestError(f"{self.directory / _ABOUT} could not be written: {error}") from None
        self.history = history

    @property
    def epoch(self) -> str:
        """The newest epoch."""
        return self.history.epochs[-1].id if self.history.epochs else ""

    # Writing, by one thread

    def commit(self, submissions: Sequence[Submission], now: int, sync: Executor) -> None:
        """Store records as one group, and note in each submission what became of it."""
        try:
            arranged = self._arrange(submissions, now)
            if arranged:
                self._store(arranged, now, sync)
            self.jobs.kept()
        finally:
            self.jobs.drop()
            if self._is_writing and not self.fault:
                self.fault = f"{self.directory}: nobody knows what is on disk of the last group"
        complete = [each for each in submissions if each.records.is_last and each.fault is None]
        if complete:
            self._complete(complete, now)
        for submission in submissions:
            submission.is_done = submission.fault is None

    def _complete(self, submissions: Sequence[Submission], now: int) -> None:
        """Note that parts are complete with what is stored."""
        try:
            self.jobs.complete((each.once for each in submissions if each.once is not None), now)
        except IngestError as fault:
            jobs = {each.once.job for each in submissions if each.once is not None}
            if len(jobs) == 1:
                for submission in submissions:
                    submission.fault = fault
                return
            for job in sorted(jobs):  # a fault affects only its own job
                theirs = [each for each in submissions if each.once and each.once.job == job]
                self._complete(theirs, now)

    def _store(self, arranged: list[_Arranged], now: int, sync: Executor) -> None:
        self.begin_epoch()
        self._open()
        clock, now = now, max(now, *(part.ingest_time for part in self.partitions))
        try:
            chunks = self._stage(arranged, now, clock)
        except IngestError:
            raise
        except Exception:  # noqa: BLE001 -- nothing is written yet; find the submission at fault
            arranged = self._stageable(arranged, now)
            if not arranged:
                return
            chunks = self._stage(arranged, now, clock)
        touched = [self.partitions[number] for number in chunks]
        self._is_writing = True
        self._write(touched, sync)
        for part in touched:
            part.seal()
        self._is_writing = False
        for part_chunks in chunks.values():
            for chunk in part_chunks:
                if chunk.ids is not None:
                    continue  # known by its ids, not by its number
                self.producers[chunk.producer_id] = (
                    max(chunk.sequences[-1], self.producers.get(chunk.producer_id, (0, 0))[0]),
                    now,
                )
                self.instances[chunk.producer_id] = self.owners.get(chunk.producer_id, "")

    def _stage(self, arranged: list[_Arranged], now: int, clock: int) -> dict[int, list[Chunk]]:
        """Build a block for each partition of the group, and set the offsets of submissions."""
        chunks: dict[int, list[Chunk]] = {}
        ends = self.ends()
        for each in arranged:
            offsets: dict[int, int] = {}
            for number, chunk in each.chunks:
                chunks.setdefault(number, []).append(chunk)
                offsets[number] = ends[number]
                ends[number] += len(chunk.values)
            each.submission.offsets = offsets
        ends = self.ends()
        members = {number: ends.pop(number) for number in chunks}
        # Never reuse a group number, even after a failure: remains of that group may be on disk.
        self._group = group = self._group + 1
        for number, theirs in chunks.items():
            facts = _facts(group, members, ends, theirs, now, self.owners, clock)
            self.partitions[number].stage(theirs, facts)
        return chunks

    def _stageable(self, arranged: list[_Arranged], now: int) -> list[_Arranged]:
        """Return the submissions that can be stored; fail the others and their successors.

        A successor is a later submission of the same stream. Submissions are validated before they
        get here, so this handles only errors that no check covers.
        """
        good: list[_Arranged] = []
        failed: set[str] = set()
        for each in arranged:
            submission = each.submission
            if submission.once is None and submission.producer_id in failed:
                submission.fault = _not_stored("an earlier record could not be stored")
            else:
                try:
                    for _, chunk in each.chunks:
                        make_batch([chunk], 0, now)
                except Exception as error:  # noqa: BLE001 -- fails only this submission
                    self._blame(submission, error)
                    failed.add(submission.producer_id)
            if submission.fault is None:
                good.append(each)
            else:
                submission.offsets = {}
        return good

    def _blame(self, submission: Submission, error: Exception) -> None:
        """Fail one submission, and drop the ids of its job so that they are read again."""
        _log.error(
            "records of producer %s could not be stored in topic %s; others are unaffected",
            submission.producer_id,
            self.name,
            exc_info=error,
        )
        submission.fault = _not_stored(repr(error))
        if submission.once is not None:
            self.jobs.drop_job(submission.once.job)

    def _open(self) -> None:
        """Take away the mark that nothing is written."""
        if not self._is_closed:
            return
        try:
            remove_closed(self.directory)
        except OSError as error:
            raise IngestError(
                f"topic {self.name} could not be written in {self.directory}, and nothing of "
                f"these records was stored: {error}"
            ) from error
        self._is_closed = False

    def _write(self, touched: Sequence[Partition], sync: Executor) -> None:
        """Have what was staged on disk in all partitions, or in none."""
        try:
            for part in touched:
                part.write()
        except Exception as error:  # noqa: BLE001 -- whatever it is, no half of a group stays
            self._take_back(touched, error)
        syncs = [sync.submit(part.sync) for part in touched]
        wait(syncs)
        faults = [fault for each in syncs if (fault := each.exception()) is not None]
        for fault in faults:
            if not isinstance(fault, OSError) or fault.errno not in _NO_ROOM:
                self.fault = f"{self.directory} could not be synced: {fault}"
                break
        if faults:
            self._take_back(touched, faults[0])

    def _take_back(self, touched: Sequence[Partition], error: BaseException) -> NoReturn:
        """Remove what was written of a group; if that fails, nobody knows what is on disk."""
        for part in touched:
            try:
                part.revert()
            except OSError as fault:
                self.fault = self.fault or f"{part.directory} could not be cut back: {fault}"
        if self.fault:
            raise IngestError(
                f"topic {self.name} is out of use until the server starts again, which looks at "
                f"what is on disk: {self.fault}"
            ) from error
        self._is_writing = False
        raise IngestError(
            f"topic {self.name} could not be written in {self.directory}, and nothing of these "
            f"records was stored: {error}"
        ) from error

    def _arrange(self, submissions: Sequence[Submission], now: int) -> list[_Arranged]:
        """Return the new records, by submission and partition."""
        arranged: list[_Arranged] = []
        last: dict[str, int] = {}
        for submission in submissions:
            producer = submission.producer_id
            records = submission.records
            ids: Sequence[bytes] | None = None
            try:
                _check_times(producer, records)
                wanted: Sequence[int]
                if submission.once is None:
                    self.jobs.check_free(producer)  # the job may have begun since it was opened
                    known = last.get(producer, self.producers.get(producer, (0, 0))[0])
                    wanted = _behind(producer, records, known)
                else:
                    ids = cut_ids(records.ids or b"")
                    wanted = self.jobs.admit(submission.once, ids, now, submission.attempt)
                chunks = list(split(producer, records, wanted, len(self.partitions), ids))
            except RefusedRecords as fault:
                submission.fault = fault
                continue
            except Exception as error:  # noqa: BLE001 -- fails only this submission
                self._blame(submission, error)
                continue
            submission.skipped = len(records.values) - len(wanted)
            if not wanted:
                continue
            if ids is None:
                last[producer] = records.sequence + len(records.values) - 1
            arranged.append(_Arranged(submission, chunks))
        return arranged

    def ends(self) -> dict[int, int]:
        """By partition, the offset behind its last row."""
        return {part.number: part.next_offset for part in self.partitions}

    def own(self, producer_id: str, instance: str) -> None:
        """Note which of those with an id has it now; nothing of another one is under way."""
        self.owners[producer_id] = instance

    def check_owner(self, producer_id: str, instance: str, committed: int) -> None:
        """Raise if another one has taken an id from one that was open before.

        ``committed`` is the last number that it knows to be stored. Who was opened last is known
        since the topic was opened; before that, who stored something last is.
        """
        owner = self.owners.get(producer_id)
        if owner is None:
            stored = self.producers.get(producer_id, (0, 0))[0]
            owner = self.instances.get(producer_id, "") if stored > committed else instance
        if owner != instance and owner != instance.rpartition(":")[2]:  # stored without a token
            raise RefusedRecords(superseded(producer_id))

    def owner_of(self, producer_id: str) -> str:
        """Return the owner of a producer id; empty if there is none."""
        known = self.owners.get(producer_id)
        return tag_of(self.instances.get(producer_id, "") if known is None else known)

    def forget_producers(self, horizon: int, keep: Collection[str] = ()) -> None:
        """Forget the producers that stored nothing since a time, but not those to be kept."""
        self._forget(
            name
            for name, (_, time) in self.producers.items()
            if time < horizon and name not in keep
        )

    def forget_idle_producers(self, keep: Collection[str] = ()) -> None:
        """Forget those that have stored nothing yet: they lose nothing by it."""
        self._forget(
            name for name, known in self.producers.items() if not known[0] and name not in keep
        )

    def _forget(self, producers: Iterable[str]) -> None:
        forgotten = list(producers)
        for producer in forgotten:
            del self.producers[producer]
            self.instances.pop(producer, None)
            self.owners.pop(producer, None)
        for part in self.partitions:
            part.forget(forgotten)

    # Readers: called from one thread, not necessarily the storing thread

    def advance(
        self,
        reader: str,
        offsets: dict[int, int],
        max_readers: int = IngestLimits.max_readers,
        position: TopicPosition | None = None,
    ) -> None:
        """Commit the offsets of a named reader; empty offsets delete it.

        Raises `TopicReplaced` if the topic no longer has the rows before ``position``, or before
        the offsets that the reader committed last.
        """
        (fault,) = self.advance_all([Move(reader, offsets, position=position)], max_readers)
        if fault is not None:
            raise fault

    def advance_all(
        self, moves: Sequence[Move], max_readers: int = IngestLimits.max_readers
    ) -> list[IngestError | None]:
        """Commit moves of readers in one write; return the error of each, or None."""
        before = after = _Readers(self.readers, self.reader_identity)
        faults: list[IngestError | None] = []
        claims: dict[str, str] = {}
        for move in moves:
            try:
                check_token("reader", move.reader, claims.get(move.reader, ""), move.owner)
                after = self._moved(after, move, max_readers)
                faults.append(None)
                if move.owner:
                    claims.setdefault(move.reader, move.owner)
            except IngestError as fault:
                faults.append(fault)
        if after is before:
            return faults
        try:
            self.reader_owners.claim(claims, after.offsets)
            write_checked(self.directory / _READERS, after)
        except (IngestError, OSError) as error:
            lost = IngestError(f"{self.directory / _READERS} could not be written: {error}")
            return [fault or lost for fault in faults]
        self.readers, self.reader_identity = after.offsets, after.identity
        # A stale reader cannot move; if it did, an earlier move of this batch deleted it.
        stale = {move.reader for move, fault in zip(moves, faults, strict=True) if fault is None}
        self.stale_readers = {
            each: why for each, why in self.stale_readers.items() if each not in stale
        }
        return faults

    def _moved(self, known: _Readers, move: Move, max_readers: int) -> _Readers:
        """Return the state of all readers after a move."""
        reader, offsets = move.reader, move.offsets
        readers, identity = known.offsets, dict(known.identity)
        check_name(reader, "reader")
        self.reader_owners.check(reader, move.owner)
        if offsets:
            self.check_position(move.position)
            if reader in readers and (reason := self.stale_readers.get(reader)):
                raise TopicReplaced(
                    f"the offsets of reader {reader!r} belong to other rows than those of topic "
                    f"{self.name}: {reason}. To continue, delete the reader (aqueduct topics "
                    f"{self.name} --forget-reader {reader}), and advance it to new offsets"
                )
        if self.readers_fault:
            raise IngestError(f"no reader can be noted: {self.readers_fault}")
        if reader not in readers and offsets and len(readers) >= max_readers:
            raise RefusedRecords(
                f"topic {self.name} has {len(readers)} readers already (max_readers)"
            )
        for number, offset in offsets.items():
            if not 0 <= number < len(self.partitions):
                raise RefusedRecords(f"{self.name} has no partition {number}")
            end = self.partitions[number].next_offset
            if not 0 <= offset <= end:
                raise RefusedRecords(
                    f"{self.name} partition {number} has offsets up to {end}, so that no reader "
                    f"can be at {offset}"
                )
        moved = {**readers, reader: {**readers.get(reader, {}), **offsets}}
        if offsets:
            where = self.history.position(moved[reader])
            identity[reader] = where.topic_id, where.epoch
        else:
            del moved[reader]
            identity.pop(reader, None)
        return _Readers(moved, identity)

    def _find_stale_readers(self) -> dict[str, str]:
        # If another process has the topic open, its last rows may not be visible yet.
        ends = None if self._read_only else self.ends()
        found = {}
        for reader, identity in self.reader_identity.items():
            position = TopicPosition(*identity, self.readers.get(reader, {}))
            if reason := self.history.mismatch(position, ends):
                found[reader] = reason
                if not self._read_only:
                    _log.warning(
                        "the offsets of reader %s belong to other rows than those of topic %s: %s",
                        reader, self.name, reason,
                    )  # fmt: skip
        return found

    def close(self) -> None:
        """Close its files."""
        for part in self.partitions:
            part.close()
        self.jobs.close()
        if self._read_only or self._is_closed or self._is_writing or self.fault:
            return
        try:
            write_closed(self.partitions, self.directory)
        except OSError as error:
            _log.warning("%s was closed, and no mark says so: %s", self.directory, error)

    def info(self, memory: float | None = None, now: int = 0) -> TopicInfo:
        """What it holds; see `Jobs.unfinished` for how long an idle step keeps its rows."""
        infos = [part.info() for part in self.partitions]
        if self.fault:  # one that cannot be written makes all of them so
            infos = [replace(info, fault=info.fault or self.fault) for info in infos]
        steps = self.jobs.unfinished(memory, now)
        # Read the epoch after the offsets, so that it is never older than they are.
        return TopicInfo(
            self.name,
            infos,
            self.readers,
            id=self.history.topic_id,
            epoch=self.epoch,
            stale_readers=self.stale_readers,
            steps=steps[:SHOWN_STEPS],
            unfinished_steps=len(steps),
        )


def replaced(topic: str, reason: str) -> TopicReplaced:
    """Return the error for a topic that lacks rows it had, with the remedy."""
    return TopicReplaced(f"topic {topic} was replaced: {reason}. {_REPLACED}")


def _facts(
    group: int,
    members: dict[int, int],
    others: dict[int, int],
    chunks: Sequence[Chunk],
    now: int,
    owners: Mapping[str, str],
    clock: int,
) -> Facts:
    producers: dict[str, int] = {}
    for chunk in chunks:
        if chunk.ids is None:
            producers[chunk.producer_id] = chunk.sequences[-1]
    return Facts(
        group,
        members,
        producers,
        now,
        min(min(chunk.timestamps) for chunk in chunks),
        max(max(chunk.timestamps) for chunk in chunks),
        others,
        {name: owners[name] for name in producers if owners.get(name)},
        clock,
    )


def _not_stored(why: str) -> IngestError:
    return IngestError(
        f"these records could not be stored: {why}. Records of other producers are unaffected. "
        "Check the records; if they are valid, report this as a bug"
    )


def _check_times(producer: str, records: Records) -> None:
    if records.timestamps and not (
        FIRST_TIME <= min(records.timestamps) <= max(records.timestamps) <= LAST_TIME
    ):
        end = records.sequence + len(records.values)
        raise RefusedRecords(
            f"a timestamp of records {records.sequence} to {end - 1} of producer "
            f"{producer!r} is not within the years 1 to 9999"
        )


def _behind(producer: str, records: Records, known: int) -> range:
    """The places of the records behind the last one that is known; raises if some are missing."""
    if records.sequence > known + 1:
        raise RefusedRecords(
            f"record {records.sequence} of producer {producer!r} came after {known}: "
            "those between were not sent, or another producer uses the same id"
        )
    count = len(records.values)
    return range(min(known + 1 - records.sequence, count), count)


def _by_time(known: tuple[int, int]) -> tuple[int, int]:
    """The later of two memories of a producer counts: one forgotten begins at 1 again."""
    sequence, time = known
    return time, sequence


def _make(directory: Path, partitions: int, mode: int | None) -> None:
    """Make the directories of a new topic; the file that says so comes last."""
    directory.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
    make_private(directory, mode)
    for number in range(partitions):
        make_private(directory / f"part={number}", mode)
    sync_directory(directory.parent)
    history = History(new_topic_id()).begun(dict.fromkeys(range(partitions), 0), 1)
    about = _About(partitions, id=history.topic_id, epochs=history.epochs)
    write_checked(directory / _ABOUT, about)


def is_begun(directory: Path) -> bool:
    """Whether a crash cut short the making of a topic, so that there is nothing in it."""
    files = (path for path in directory.rglob("*") if not path.is_dir())
    return all(path.name == f".{_ABOUT}.tmp" for path in files)


def _read_about(path: Path) -> _About:
    try:
        about = read_checked(path, _About, "the description of a topic")
    except FileNotFoundError:
        raise CorruptFile(path, 0, "the file that says what the topic is like is missing") from None
    for number in range(about.partitions):
        part = path.with_name(f"part={number}")
        if not part.is_dir():
            raise CorruptFile(part, 0, "the directory of a partition is missing")
    return about


def read_history(directory: Path) -> History:
    """Return the identity of a topic that another process may have open."""
    about = _read_about(directory / _ABOUT)
    return History(about.id, about.epochs)


def _read_readers(path: Path) -> tuple[dict[str, dict[int, int]], dict[str, tuple[str, str]]]:
    what = "a list of readers"
    try:
        found = read_checked(path, _Readers, what)
    except FileNotFoundError:
        return {}, {}
    except CorruptFile:
        return read_checked(path, dict[str, dict[int, int]], what), {}
    return found.offsets, found.identity
