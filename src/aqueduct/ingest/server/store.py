"""All topics under one directory: found, made, written and rolled."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from aqueduct.ingest.dedup.jobs import Recollection
from aqueduct.ingest.dedup.once import Attempt, Fingerprint, Once
from aqueduct.ingest.dedup.spill import NAME as SPILL
from aqueduct.ingest.dedup.spill import clear
from aqueduct.ingest.errors import CorruptFile, DiskLow, IngestError, RefusedRecords, UnknownTopic
from aqueduct.ingest.identity import TopicPosition
from aqueduct.ingest.limits import IngestLimits
from aqueduct.ingest.protocol import TopicInfo
from aqueduct.ingest.server.clock import TOLERANCE, Clock
from aqueduct.ingest.server.memory import give_back
from aqueduct.ingest.server.topic import Submission, Topic, check_name, is_begun, replaced
from aqueduct.ingest.storage.local.file_modes import DIRECTORY_MODE, check_mode, settle_modes
from aqueduct.ingest.storage.local.manifest import make_directory
from aqueduct.ingest.storage.local.partition import Partition

_log = logging.getLogger("aqueduct.ingest")
LOCK = ".lock"
"""A file whose lock says that a server has the directory."""
_PATIENCE = 1.0
"""Seconds for the lock: who only looks into the directory has it for a moment, too."""
_SYNCERS = 8
MAX_FILES = 8
"""Jobs with a spill file at once: each takes up to 8 MiB of memory (`spill.CACHE`)."""
_NAMED = 10
"""Topics that an error names."""


class Store:
    """The data of an ingest server. One thread writes; rolling and reading may be others'."""

    def __init__(
        self,
        directory: Path,
        limits: IngestLimits,
        clock: Clock | Callable[[], float] | None = None,
        mode: int | None = None,
    ) -> None:
        """Open and recover everything in the directory, which belongs to one server at a time.

        ``mode`` is the mode of topic directories, new and existing. Without it, new ones get
        `DIRECTORY_MODE`, and existing ones lose all permissions beyond it.
        """
        self._mode = DIRECTORY_MODE if mode is None else check_mode(mode)
        self._is_told = mode is not None
        self.directory = directory
        self.limits = limits
        if clock is None:
            clock = Clock(hold=limits.clock_hold)
        self._clock = clock if isinstance(clock, Clock) else Clock(clock, clock)
        self._lock = _own(directory)
        self._syncing = ThreadPoolExecutor(_SYNCERS, thread_name_prefix="aqueduct-sync")
        self.topics: dict[str, Topic] = {}
        self.faults: dict[str, str] = {}
        """Topics that cannot be used at all, and why."""
        self._begun: dict[Partition, float] = {}
        self._troubles: dict[Partition, str] = {}
        try:
            clear(directory / SPILL)
            for path in sorted(directory.iterdir()):
                if path.is_dir() and path.name != SPILL:
                    self._open_topic(path)
        except BaseException:
            self.close()
            raise

    def _open_topic(self, path: Path) -> None:
        try:
            check_name(path.name)
            if not is_begun(path):
                settle_modes(path, self._mode, exact=self._is_told)
                topic = Topic(path, max_epochs=self.limits.max_epochs)
                self.topics[path.name] = topic
                topic.identify()
        except RefusedRecords:
            _log.warning("%s is not a topic, and is left alone", path)
        except (CorruptFile, OSError) as fault:
            self.faults[path.name] = str(fault)
            _log.error("topic %s is out of use: %s", path.name, fault)
        except IngestError as fault:
            _log.error("topic %s could not be given an id: %s", path.name, fault)

    def close(self) -> None:
        """Close all files; what was answered is on disk."""
        for topic in self.topics.values():
            topic.close()
        self._syncing.shutdown()
        os.close(self._lock)

    # Writing, by one thread

    def topic_to_write(self, name: str, partitions: int | None) -> Topic:
        """A topic, made if it is new."""
        check_name(name)
        if name in self.faults:
            raise IngestError(f"topic {name} is out of use: {self.faults[name]}")
        topic = self.topics.get(name)
        if topic is not None:
            if topic.fault:
                raise IngestError(f"topic {name} is out of use: {topic.fault}")
            if partitions is not None and partitions != len(topic.partitions):
                raise RefusedRecords(
                    f"topic {name} has {len(topic.partitions)} partitions, not {partitions}; "
                    "that cannot be changed, so leave the number out"
                )
            topic.begin_epoch()
            return topic
        there = len(self.topics) + len(self.faults)
        if there >= self.limits.max_topics:
            raise RefusedRecords(f"there are {there} topics already (max_topics)")
        count = self.limits.partitions if partitions is None else partitions
        if not 1 <= count <= self.limits.max_partitions:
            raise RefusedRecords(
                f"a topic has from 1 to {self.limits.max_partitions} partitions, not {count}"
            )
        self._check_disk()
        try:
            topic = Topic(
                self.directory / name,
                count,
                max_epochs=self.limits.max_epochs,
                mode=self._mode if self._is_told else None,
            )
        except OSError as error:
            raise IngestError(
                f"topic {name} could not be made in {self.directory}: {error.strerror}"
            ) from None
        self.topics[name] = topic
        return topic

    def check_position(self, name: str, position: TopicPosition | None) -> None:
        """Raise `TopicReplaced` unless the topic exists and has the rows before a position."""
        if position is None or name in self.faults:
            return
        if name not in self.topics:
            raise replaced(name, f"it is missing, and the offsets belong to {position.topic_id}")
        self.topics[name].check_position(position)

    def register(
        self, topic: Topic, producer_id: str, instance: str = "", keep: Collection[str] = ()
    ) -> int:
        """Make room for a producer, and tell the last sequence number that is stored of it.

        Those to be kept are not forgotten for that.
        """
        known = self._remembered(topic, producer_id, keep)
        topic.own(producer_id, instance)
        return known

    def _remembered(self, topic: Topic, producer_id: str, keep: Collection[str]) -> int:
        check_name(producer_id, "producer")
        topic.jobs.check_free(producer_id)
        known = topic.producers.get(producer_id)
        if known is not None:
            return known[0]
        if len(topic.producers) >= self.limits.max_producers:
            topic.forget_producers(self._now() - int(self.limits.producer_memory * 1e6), keep)
            topic.forget_idle_producers(keep)
            if len(topic.producers) >= self.limits.max_producers:
                raise RefusedRecords(
                    f"topic {topic.name} remembers {len(topic.producers)} producers already "
                    "(max_producers); use an id again, or raise the limit"
                )
        topic.producers[producer_id] = (0, self._now())
        return 0

    def begin(
        self,
        topic: Topic,
        once: Once,
        again: bool = False,
        is_dense: bool = False,
        owner: str = "",
        attempt: Attempt | None = None,
    ) -> tuple[bool, Recollection | None]:
        """Let a job write to a topic: whether nothing is to be sent, and what has to be read."""
        check_name(once.job, "job")
        topic.job_owners.check(once.job, owner)
        is_new = once.job not in topic.jobs.names  # for which others may have been forgotten
        found = topic.jobs.open(
            once,
            topic.ends(),
            self._now(),
            self.limits,
            again=again,
            is_dense=is_dense,
            attempt=attempt,
        )
        self._claim(topic, once.job, owner, is_new)
        return found

    def _claim(self, topic: Topic, job: str, owner: str, is_new: bool) -> None:
        """Record the owner of a job; scan all jobs only if the owners can have changed."""
        if is_new or topic.job_owners.may_claim(job, owner):
            topic.job_owners.claim({job: owner}, topic.jobs.names)

    def check_after(self, name: str, once: Once, after: int | None) -> None:
        """Raise `TopicReplaced` unless the topic knows a step that a job has ended in it."""
        if after is None or after < 0 or name in self.faults:
            return
        topic = self.topics.get(name)
        missing = f"job {once.job!r} has ended its step {after} in it, but it does not exist"
        if topic is not None:
            missing = topic.jobs.missing_step(once.job, after)
        if missing:
            raise replaced(
                name,
                f"{missing}: it was recreated or restored from an older copy, or the job wrote to "
                "another topic or server before",
            )

    def recall(self, topic: Topic, read: Recollection) -> None:
        """Know what was read of the rows of a job, in place of what is idle."""
        self._free_ids(read.ledger.size, {(read.once.job, read.once.part)})
        if read.ledger.is_spilled and not self._free_file({(read.once.job, read.once.part)}):
            raise self._too_many_ids()
        topic.jobs.install(read, self._now())

    def end_step(
        self,
        name: str,
        job: str,
        step: int,
        run: str,
        rows: Fingerprint | None = None,
        *,
        allow_extra: bool = False,
        read: Recollection | None = None,
        positions: Iterable[TopicPosition] = (),
        owner: str = "",
    ) -> Recollection | None:
        """End a step of a job in a topic; without the topic, the step must have no rows.

        Return the `Recollection` to read first, if any; see `Jobs.end`.
        """
        check_name(name)
        check_name(job, "job")
        for position in positions:
            self.check_position(name, position)
        if name not in self.topics and name not in self.faults:
            if rows is not None and rows.count:
                raise UnknownTopic(
                    f"step {step} of job {job!r} ends with {rows.count:,} rows in topic {name}, "
                    "but the topic does not exist: it was removed meanwhile; run the step again"
                )
            return None
        topic = self.topic_to_write(name, None)
        topic.job_owners.check(job, owner)
        is_new = job not in topic.jobs.names
        missing = topic.jobs.end(
            job,
            step,
            run,
            topic.ends(),
            self._now(),
            self.limits,
            rows=rows,
            allow_extra=allow_extra,
            read=read,
        )
        if missing is None:
            self._claim(topic, job, owner, is_new)
        return missing

    def commit(self, groups: dict[Topic, list[Submission]]) -> None:
        """Store what waits, a group a topic; what fails fails for its topic alone."""
        now = int(self._clock.now() * 1e6)
        self._make_room_for_ids(groups)
        for topic, submissions in groups.items():
            try:
                if topic.fault:
                    raise IngestError(f"topic {topic.name} is out of use: {topic.fault}")
                self._check_disk()
                accepted = [each for each in submissions if each.fault is None]
                topic.commit(accepted, now, self._syncing)
            except Exception as error:  # noqa: BLE001 -- one topic's trouble is not another's
                self._refuse(topic, submissions, error)
            self._rotate_full(topic)

    def _make_room_for_ids(self, groups: dict[Topic, list[Submission]]) -> None:
        """Free ids of what is idle where there are too many; refuse what has no room even so."""
        coming = [
            (topic, each)
            for topic, group in groups.items()
            for each in group
            if each.once is not None
        ]
        busy = {(each.once.job, each.once.part) for _, each in coming if each.once is not None}
        if not coming or self._free_ids(sum(len(each.records.values) for _, each in coming), busy):
            return
        for topic, each in coming:
            if each.once is not None and not topic.jobs.is_spilled(each.once.job):
                each.fault = self._too_many_ids()

    def _too_many_ids(self) -> RefusedRecords:
        return RefusedRecords(
            f"{MAX_FILES} jobs of this server use spill files already, and the row ids of another "
            f"do not fit in memory ({self.limits.max_ids:,}, max_ids); retry when one of them has "
            "ended its step, or raise the limit"
        )

    def _free_ids(self, more: int, keep: Collection[tuple[str, int]]) -> bool:
        """Make room in memory for more ids: evict those that can be read again, then spill.

        Ids that somebody needs to go on are not evicted, but may spill to a file. Return whether
        there is room.
        """
        topics = list(self.topics.values())
        over = sum(topic.jobs.ids for topic in topics) + more - self.limits.max_ids
        if over <= 0:
            return True
        found = [(idle, topic) for topic in topics for idle in topic.jobs.idle(keep)]
        for idle, topic in sorted(found, key=lambda pair: pair[0].cost):
            topic.jobs.let_go(idle)
            over -= idle.size
            if over <= 0:
                return True
        large = [(size, name, topic) for topic in topics for size, name in topic.jobs.large()]
        for size, name, topic in sorted(large, key=lambda each: each[0], reverse=True):
            if not self._free_file(keep):
                return False
            topic.jobs.spill(name)
            over -= size
            if over <= 0:
                return True
        # Only the ids of this submission are left, which are in memory anyway.
        return True

    def _free_file(self, keep: Collection[tuple[str, int]]) -> bool:
        """Make room for one more spill file; return whether there is."""
        topics = list(self.topics.values())
        if sum(topic.jobs.files for topic in topics) < MAX_FILES:
            return True
        now = self._now()
        found = [(idle, topic) for topic in topics for idle in topic.jobs.idle_files(keep, now)]
        if not found:
            return False
        idle, topic = min(found, key=lambda pair: pair[0].cost)
        topic.jobs.let_go(idle)
        return True

    def _refuse(self, topic: Topic, submissions: list[Submission], error: Exception) -> None:
        if isinstance(error, IngestError):
            fault = error
            _log.error("%s", fault)
        else:
            fault = IngestError(f"topic {topic.name}: could not be stored: {error!r}")
            _log.error("%s", fault, exc_info=error)
        for submission in submissions:
            if not submission.is_done:
                submission.fault = submission.fault or fault

    def _rotate_full(self, topic: Topic) -> None:
        for part in topic.partitions:
            try:
                if part.log_size:
                    self._begun.setdefault(part, time.monotonic())
                if part.log_size >= self.limits.roll_size:
                    self._rotate(part)
            except OSError as error:
                _log.error("a log in %s could not be finished: %s", part.directory, error)

    def rotate_old(self, everything: bool = False) -> None:
        """Finish the logs that are old enough to become segments."""
        horizon = time.monotonic() - self.limits.roll_age
        for part, begun in list(self._begun.items()):
            if everything or begun <= horizon:
                self._rotate(part)

    def _rotate(self, part: Partition) -> None:
        part.rotate()
        self._begun.pop(part, None)

    def free_bytes(self) -> int:
        """The room on the disk."""
        try:
            found = os.statvfs(self.directory)
        except OSError as error:
            raise IngestError(f"{self.directory} is not there: {error.strerror}") from None
        return found.f_bavail * found.f_frsize

    def _check_disk(self) -> None:
        free = self.free_bytes()
        if free < self.limits.low_water:
            raise DiskLow(
                f"{self.directory} has {free:,} bytes left, less than {self.limits.low_water:,} "
                "(low_water): nothing is stored until there is room"
            )

    def _now(self) -> int:
        """Return the time for expiry by age, which ignores a pending clock jump."""
        return int(self._clock.cautious() * 1e6)

    # Rolling, by one thread

    def roll(self) -> int:
        """Turn the logs that are finished now into segments; returns how many there were."""
        rolled = 0
        for topic, part in self._parts_to_keep_up():
            before = part.rolled
            self._roll(topic, part)
            rolled += part.rolled - before
            self._retain(topic, part)  # others may have much to roll before all of them have
            if part.rolled > before:
                give_back()  # a log was read, and its segment encoded, in this thread
        return rolled

    def _parts_to_keep_up(self) -> Iterator[tuple[Topic, Partition]]:
        """What is in use; where damage was found at the start, nothing is changed."""
        for topic in list(self.topics.values()):
            for part in topic.partitions:
                if topic.is_settled and not part.fault:
                    yield topic, part

    def _roll(self, topic: Topic, part: Partition) -> None:
        try:
            part.roll()
        except CorruptFile as fault:
            part.put_out_of_use(str(fault))
            topic.fault = topic.fault or part.fault
        except OSError as error:
            self._trouble(part, f"a log in {part.directory} is not a segment yet: {error}")
        else:
            self._troubles.pop(part, None)

    def _trouble(self, part: Partition, what: str) -> None:
        """Say what is wrong, once: it is tried again twice a second."""
        if self._troubles.get(part) != what:
            _log.error("%s", what)
        self._troubles[part] = what

    def retain(self) -> int:
        """Remove segments that are too old or too many; returns how many bytes that freed."""
        return sum(self._retain(topic, part) for topic, part in self._parts_to_keep_up())

    def _retain(self, topic: Topic, part: Partition) -> int:
        if part.fault or topic.readers_fault or topic.jobs.fault:
            return 0
        count = self._expendable(topic, part)
        try:
            return part.drop(count) if count else 0
        except OSError as error:
            self._trouble(part, f"segments in {part.directory} could not be removed: {error}")
            return 0

    def _expendable(self, topic: Topic, part: Partition) -> int:
        """How many of the oldest segments of a partition may go."""
        limits = self.limits
        segments = part.manifest.segments
        size = part.segments_size
        horizon = self._now() - int(limits.producer_memory * 1e6)
        held = [offsets.get(part.number, 0) for offsets in topic.readers.values()]
        held += topic.jobs.needed(part.number, horizon)
        reached = None if limits.retention_past_readers else min(held, default=None)
        count = 0
        now, noticed = self._now(), int(self._clock.noticed * 1e6)
        times = part.stored_times() if part.was_set_back else None
        for at, segment in enumerate(segments):
            stored = segment.stored_at if times is None else times[at]
            # A wrong clock stored it, so it was stored no later than that was detected. Within
            # the tolerance the clock may only have been slowed down or corrected.
            if stored > now + TOLERANCE * 1e6:
                stored = noticed
            old = limits.retention_age is not None and stored < now - limits.retention_age * 1e6
            large = limits.retention_size is not None and size > limits.retention_size
            read = reached is None or segment.last < reached
            if not read or not (old or large):
                break
            count += 1
            size -= segment.size
        return count

    # Reading, by any thread

    def info(self) -> list[TopicInfo]:
        """What every topic holds, or why it cannot be used."""
        known = [self.info_of(topic) for topic in list(self.topics.values())]
        lost = [TopicInfo(name, [], fault=fault) for name, fault in self.faults.items()]
        return sorted(known + lost, key=lambda topic: topic.topic)

    def info_of(self, topic: Topic) -> TopicInfo:
        """What a topic holds."""
        return topic.info(self.limits.producer_memory, self._now())

    def topic_to_read(self, name: str, may_read: Callable[[str], bool] = lambda _: True) -> Topic:
        """A topic that is there; the error names others, of those that may be read."""
        if name in self.faults:
            raise IngestError(f"topic {name} is out of use: {self.faults[name]}")
        topic = self.topics.get(name)
        if topic is None:
            names = sorted(filter(may_read, list(self.topics)))
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            there = ", ".join(names[:_NAMED]) + more if names else "there are none"
            raise UnknownTopic(f"there is no topic {name[:120]!r}; topics: {there}")
        return topic


def group_by_topic(
    submissions: Iterable[tuple[Topic, Submission]],
) -> dict[Topic, list[Submission]]:
    """Submissions of each topic, in order."""
    groups: dict[Topic, list[Submission]] = {}
    for topic, submission in submissions:
        groups.setdefault(topic, []).append(submission)
    return groups


def _own(directory: Path) -> int:
    """Make the directory ours until the process ends, whatever ends it."""
    try:
        make_directory(directory)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise IngestError(
            f"cannot store anything in {directory}: {error.strerror}; give a directory that can "
            "be written"
        ) from None
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < deadline:
                time.sleep(_PATIENCE / 100)
                continue
            os.close(lock)
            raise IngestError(f"another server has {directory}; a directory is for one") from None
        return lock


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Have the directory as a server has it."""
    lock = _own(directory)
    try:
        yield
    finally:
        os.close(lock)
