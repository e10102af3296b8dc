"""One topic above its storage: deduplication, owners, jobs, named readers and identity."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from aqueduct.ingest.dedup.jobs import SHOWN_STEPS, Jobs
from aqueduct.ingest.dedup.scope import Attempt, WriteScope, cut_ids
from aqueduct.ingest.errors import IngestError, RefusedRecords, TopicReplaced
from aqueduct.ingest.identity import History, TopicPosition, new_topic_id
from aqueduct.ingest.partitioning import spread
from aqueduct.ingest.protocol import FIRST_TIME, LAST_TIME, TopicInfo
from aqueduct.ingest.records import Chunk, RecordColumns, joined, make_batch
from aqueduct.ingest.server.named_readers import NamedReaders
from aqueduct.ingest.server.owners import Owners, tag_of
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import (
    Group,
    PartitionRecords,
    PartitionStorage,
    TopicStorage,
    UnencodableRecords,
)

_log = logging.getLogger("aqueduct.ingest")
_JOB_OWNERS = "jobs.owners.json"
_REPLACED = (
    "Nothing was done. To continue with the topic that exists, start without a position, or in "
    "Spark with option onTopicReplaced (docs/ingest.md, Topic identity)"
)


def superseded(producer_id: str) -> str:
    """Return the error text for a producer whose id another producer has taken."""
    return (
        f"another producer was opened with the id {producer_id!r}: records that were not flushed "
        "may not be stored. Use a different id for each producer"
    )


@dataclass(slots=True)
class Submission:
    """Records to be stored, and their outcome."""

    producer_id: str
    records: RecordColumns
    offsets: dict[int, int] = field(default_factory=dict)
    """By partition, the offset of the first new record."""
    skipped: int = 0
    """The number of duplicates."""
    scope: WriteScope | None = None
    """The job, step, run and part of the rows, if they are deduplicated by ids."""
    attempt: Attempt | None = None
    """The attempt of that part that sends them."""
    fault: IngestError | None = None
    """Why they were not stored."""
    is_done: bool = False
    """Whether all of them are durable: a later failure does not change that outcome."""


@dataclass(slots=True)
class _Arranged:
    """The new records of a submission, by partition."""

    submission: Submission
    chunks: list[tuple[int, Chunk]]


class Topic:
    """A topic of a server, or of a directory that is only read."""

    def __init__(
        self,
        storage: TopicStorage,
        *,
        scratch: Path,
        max_epochs: int = IngestSettings.max_epochs,
        is_new: bool = False,
    ) -> None:
        """``scratch``: a local directory for spill files; ``is_new``: just created, with an epoch.

        Raises `IngestError` if the metadata of the topic cannot be read.
        """
        self.storage = storage
        self.name = storage.name
        self.partitions: Sequence[PartitionStorage] = storage.partitions
        self._max_epochs = max_epochs
        self._has_epoch = is_new
        """Whether new rows belong to the last epoch."""
        self.producers: dict[str, tuple[int, int]] = {}
        """By producer, the last stored sequence number, and when it was stored."""
        self.instances: dict[str, str] = {}
        """By producer, the instance that stored it; empty if unknown."""
        self.owners: dict[str, str] = {}
        """By producer, the instance that was opened last since the topic was opened."""
        for producer, state in storage.producers().items():
            self.producers[producer] = (state.sequence, state.time)
            self.instances[producer] = state.instance
        self.job_owners = Owners(storage.blob(_JOB_OWNERS), "job")
        self.jobs = Jobs(storage, scratch)
        if self.jobs.fault and not storage.read_only:
            _log.error("topic %s rejects jobs: %s", self.name, self.jobs.fault)
        self.readers = NamedReaders(storage, self.check_position)

    @property
    def fault(self) -> str:
        """Why the topic cannot be written; empty if it can be."""
        return self.storage.fault

    @property
    def history(self) -> History:
        """The identity of the topic; any thread may read it."""
        return self.storage.history

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
        if not self.fault and not self.history.topic_id:
            self.storage.write_history(History(new_topic_id()))

    def begin_epoch(self) -> None:
        """Record a new epoch before the first write since the topic was opened."""
        if not self._has_epoch:
            self.storage.write_history(self.history.begun(self.ends(), self._max_epochs))
            self._has_epoch = True

    @property
    def epoch(self) -> str:
        """The newest epoch."""
        return self.history.epochs[-1].id if self.history.epochs else ""

    # Writing, by one thread

    def commit(self, submissions: Sequence[Submission], now: int) -> None:
        """Store records as one group, and set the outcome of each submission."""
        try:
            arranged = self._arrange(submissions, now)
            if arranged:
                self._store(arranged, now)
            self.jobs.confirm_admitted()
        finally:
            self.jobs.drop_admitted()
        complete = [each for each in submissions if each.records.is_last and each.fault is None]
        if complete:
            self._complete(complete, now)
        for submission in submissions:
            submission.is_done = submission.fault is None

    def _complete(self, submissions: Sequence[Submission], now: int) -> None:
        """Record that parts are complete."""
        try:
            self.jobs.complete((each.scope for each in submissions if each.scope is not None), now)
        except IngestError as fault:
            jobs = {each.scope.job for each in submissions if each.scope is not None}
            if len(jobs) == 1:
                for submission in submissions:
                    submission.fault = fault
                return
            for job in sorted(jobs):  # a fault affects only its own job
                of_job = [each for each in submissions if each.scope and each.scope.job == job]
                self._complete(of_job, now)

    def _store(self, arranged: list[_Arranged], now: int) -> None:
        self.begin_epoch()
        try:
            appended = self.storage.append(self._group(arranged, now))
        except UnencodableRecords:
            arranged = self._encodable(arranged, now)
            if not arranged:
                return
            appended = self.storage.append(self._group(arranged, now))
        ends = dict(appended.offsets)
        for each in arranged:
            offsets: dict[int, int] = {}
            for number, chunk in each.chunks:
                offsets[number] = ends[number]
                ends[number] += len(chunk.columns.values)
                if chunk.columns.ids is None:  # otherwise known by its ids, not by its number
                    self.producers[chunk.producer_id] = (
                        max(chunk.sequences[-1], self.producers.get(chunk.producer_id, (0, 0))[0]),
                        appended.time,
                    )
                    self.instances[chunk.producer_id] = self.owners.get(chunk.producer_id, "")
            each.submission.offsets = offsets

    def _group(self, arranged: list[_Arranged], now: int) -> Group:
        chunks: dict[int, list[Chunk]] = {}
        for each in arranged:
            for number, chunk in each.chunks:
                chunks.setdefault(number, []).append(chunk)
        return Group({number: self._records(parts) for number, parts in chunks.items()}, now)

    def _records(self, chunks: list[Chunk]) -> PartitionRecords:
        owners = self.owners
        producers = {
            chunk.producer_id: chunk.sequences[-1] for chunk in chunks if chunk.columns.ids is None
        }
        instances = {name: owners[name] for name in producers if owners.get(name)}
        return PartitionRecords(chunks, producers, instances)

    def _encodable(self, arranged: list[_Arranged], now: int) -> list[_Arranged]:
        """Return the submissions that can be encoded; fail the others and their successors.

        A successor is a later submission of the same stream. Submissions are validated before they
        get here, so this handles only errors that no check covers.
        """
        encodable: list[_Arranged] = []
        failed: set[str] = set()
        for each in arranged:
            submission = each.submission
            if submission.scope is None and submission.producer_id in failed:
                submission.fault = _not_stored("an earlier record could not be stored")
            else:
                try:
                    for _, chunk in each.chunks:
                        make_batch([chunk], 0, now)
                except Exception as error:  # noqa: BLE001 -- fails only this submission
                    self._fail_submission(submission, error)
                    failed.add(submission.producer_id)
            if submission.fault is None:
                encodable.append(each)
        return encodable

    def _fail_submission(self, submission: Submission, error: Exception) -> None:
        """Fail one submission, and drop the ids of its job so that they are read again."""
        _log.error(
            "records of producer %s could not be stored in topic %s; others are unaffected",
            submission.producer_id,
            self.name,
            exc_info=error,
        )
        submission.fault = _not_stored(repr(error))
        if submission.scope is not None:
            self.jobs.drop_job(submission.scope.job)

    def _arrange(self, submissions: Sequence[Submission], now: int) -> list[_Arranged]:
        """Return the new records, by submission and partition."""
        arranged: list[_Arranged] = []
        last: dict[str, int] = {}
        for submission in submissions:
            producer = submission.producer_id
            records = submission.records
            try:
                _check_times(producer, records)
                wanted: Sequence[int]
                if submission.scope is None:
                    self.jobs.check_free(producer)  # the job may be newer than the stream
                    known = last.get(producer, self.producers.get(producer, (0, 0))[0])
                    wanted = _new_indices(producer, records, known)
                else:
                    ids = cut_ids(records.ids or b"")
                    wanted = self.jobs.admit(submission.scope, ids, now, submission.attempt)
                chunks = list(split(producer, records, wanted, len(self.partitions)))
            except RefusedRecords as fault:
                submission.fault = fault
                continue
            except Exception as error:  # noqa: BLE001 -- fails only this submission
                self._fail_submission(submission, error)
                continue
            submission.skipped = len(records.values) - len(wanted)
            if not wanted:
                continue
            if submission.scope is None:
                last[producer] = records.sequence + len(records.values) - 1
            arranged.append(_Arranged(submission, chunks))
        return arranged

    def ends(self) -> dict[int, int]:
        """Return the next offset of each partition."""
        return {part.number: part.next_offset for part in self.partitions}

    def check_owner(self, producer_id: str, instance: str, committed: int) -> None:
        """Raise `RefusedRecords` if another instance has taken the id of a reconnecting producer.

        ``committed`` is the last sequence number that the producer knows to be stored. The instance
        that was opened last is known since the topic was opened; before that, the instance that
        stored a record last.
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
        """Forget producers that stored nothing since a time, or never, except those in ``keep``."""
        forgotten = [
            name
            for name, (sequence, time) in self.producers.items()
            if (time < horizon or not sequence) and name not in keep
        ]
        for producer in forgotten:
            del self.producers[producer]
            self.instances.pop(producer, None)
            self.owners.pop(producer, None)
        self.storage.forget_producers(forgotten)

    def close(self) -> None:
        """Close the topic and its storage."""
        self.jobs.close()
        self.storage.close()

    def info(self, memory: float | None = None, now: int = 0) -> TopicInfo:
        """Return what the topic contains.

        See `Jobs.unfinished` for how long an idle step keeps its rows.
        """
        infos = [part.info() for part in self.partitions]
        if self.fault:  # a group may touch every partition
            infos = [replace(info, fault=info.fault or self.fault) for info in infos]
        steps = self.jobs.unfinished(memory, now)
        # Read the epoch after the offsets, so that it is never older than they are.
        return TopicInfo(
            self.name,
            infos,
            self.readers.offsets,
            id=self.history.topic_id,
            epoch=self.epoch,
            stale_readers=self.readers.stale,
            steps=steps[:SHOWN_STEPS],
            unfinished_steps=len(steps),
        )


def replaced(topic: str, reason: str) -> TopicReplaced:
    """Return the error for a topic that lacks rows it had, with the remedy."""
    return TopicReplaced(f"topic {topic} was replaced: {reason}. {_REPLACED}")


def _not_stored(why: str) -> IngestError:
    return IngestError(
        f"these records could not be stored: {why}. Records of other producers are unaffected. "
        "Check the records; if they are valid, report this as a bug"
    )


def _check_times(producer: str, records: RecordColumns) -> None:
    if records.timestamps and not (
        FIRST_TIME <= min(records.timestamps) <= max(records.timestamps) <= LAST_TIME
    ):
        end = records.sequence + len(records.values)
        raise RefusedRecords(
            f"a timestamp of records {records.sequence} to {end - 1} of producer "
            f"{producer!r} is not within the years 1 to 9999"
        )


def _new_indices(producer: str, records: RecordColumns, known: int) -> range:
    """Return the indices of the records after ``known``; raise `RefusedRecords` for a gap."""
    if records.sequence > known + 1:
        raise RefusedRecords(
            f"record {records.sequence} of producer {producer!r} came after {known}: the records "
            "between were not sent, or another producer uses the same id"
        )
    count = len(records.values)
    return range(min(known + 1 - records.sequence, count), count)


def split(
    producer: str, records: RecordColumns, wanted: Sequence[int], partitions: int
) -> Iterator[tuple[int, Chunk]]:
    """Yield the wanted records by partition; ``wanted`` has indices, a range goes to the end."""
    sequences = records.sequences
    if isinstance(wanted, range):
        if records.partition is not None or partitions == 1:
            skip = wanted.start
            columns = records.pick_runs([slice(skip, wanted.stop)]) if skip else records
            yield records.partition or 0, Chunk(producer, columns, sequences[skip:])
            return
        if records.keys is None and records.partitions is None:
            runs = spread(wanted, records.sequence, partitions)
            for number, slices in runs.items():
                numbers = joined([sequences[run] for run in slices])
                yield number, Chunk(producer, records.pick_runs(slices), numbers)
            return
    indices: dict[int, list[int]] = {}
    for at, number in zip(wanted, records.partitions_at(wanted, partitions), strict=True):
        indices.setdefault(number, []).append(at)
    for number, picked in indices.items():
        columns = records.pick_indices(picked)
        yield number, Chunk(producer, columns, [sequences[at] for at in picked])
