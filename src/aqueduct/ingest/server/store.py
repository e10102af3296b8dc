"""All topics of a server: opened, created, written and kept up."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from aqueduct.ingest.dedup.recollection import Recollection
from aqueduct.ingest.dedup.scope import Attempt, Fingerprint, WriteScope
from aqueduct.ingest.dedup.spill import NAME as SPILL
from aqueduct.ingest.dedup.spill import clear
from aqueduct.ingest.errors import DiskLow, IngestError, RefusedRecords, UnknownTopic
from aqueduct.ingest.identity import History, TopicPosition, new_topic_id
from aqueduct.ingest.protocol import TopicInfo
from aqueduct.ingest.server.clock import TOLERANCE, Clock
from aqueduct.ingest.server.memory import release_free_memory
from aqueduct.ingest.server.topic import Submission, Topic, replaced
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import Retention, Storage, check_name

_log = logging.getLogger("aqueduct.ingest")
MAX_FILES = 8
"""Jobs with a spill file at once: each takes up to 8 MiB of memory (`spill.CACHE`)."""
_NAMED = 10
"""The most topics that an error lists."""


class Store:
    """The data of an ingest server. One thread writes; other threads may roll and read."""

    def __init__(
        self,
        storage: Storage,
        limits: IngestSettings,
        clock: Clock | Callable[[], float] | None = None,
        *,
        scratch: Path,
    ) -> None:
        """Open and recover all topics of a storage, which is closed with the store.

        ``scratch`` is a local directory for temporary files.
        """
        self.storage = storage
        self.limits = limits
        if clock is None:
            clock = Clock(hold=limits.clock_hold)
        self._clock = clock if isinstance(clock, Clock) else Clock(clock, clock)
        self._scratch = scratch
        self.topics: dict[str, Topic] = {}
        self.faults: dict[str, str] = {}
        """Topics that cannot be opened, and why."""
        try:
            clear(scratch / SPILL)
            for name in storage.names():
                self._open_topic(name)
        except BaseException:
            self.close()
            raise

    def _open_topic(self, name: str) -> None:
        try:
            topic = Topic(
                self.storage.open(name), scratch=self._scratch, max_epochs=self.limits.max_epochs
            )
        except IngestError as fault:
            self.faults[name] = str(fault)
            _log.error("topic %s is out of use: %s", name, fault)
            return
        self.topics[name] = topic
        try:
            topic.identify()
        except IngestError as fault:
            _log.error("topic %s could not be given an id: %s", name, fault)

    def close(self) -> None:
        """Close all topics and the storage; acknowledged records are durable."""
        for topic in self.topics.values():
            topic.close()
        self.storage.close()

    # Writing, by one thread

    def topic_to_write(self, name: str, partitions: int | None) -> Topic:
        """Return a topic for writing; create it if it does not exist."""
        check_name(name)
        if name in self.faults:
            raise IngestError(f"topic {name} is out of use: {self.faults[name]}")
        topic = self.topics.get(name)
        if topic is not None:
            if topic.fault:
                raise IngestError(f"topic {name} is out of use: {topic.fault}")
            if partitions is not None and partitions != len(topic.partitions):
                raise RefusedRecords(
                    f"topic {name} has {len(topic.partitions)} partitions, not {partitions}; the "
                    "number cannot be changed, so omit it"
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
        history = History(new_topic_id()).begun(dict.fromkeys(range(count), 0), 1)
        topic = Topic(
            self.storage.create(name, count, history),
            scratch=self._scratch,
            max_epochs=self.limits.max_epochs,
            is_new=True,
        )
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
        """Register a producer, and return its last stored sequence number.

        Idle producers may be forgotten to make room, except those in ``keep``.
        """
        check_name(producer_id, "producer")
        topic.jobs.check_free(producer_id)
        if producer_id not in topic.producers:
            self._make_room_for_producer(topic, keep)
            topic.producers[producer_id] = (0, self._now())
        topic.owners[producer_id] = instance
        return topic.producers[producer_id][0]

    def _make_room_for_producer(self, topic: Topic, keep: Collection[str]) -> None:
        if len(topic.producers) >= self.limits.max_producers:
            topic.forget_producers(self._now() - int(self.limits.producer_memory * 1e6), keep)
            if len(topic.producers) >= self.limits.max_producers:
                raise RefusedRecords(
                    f"topic {topic.name} remembers {len(topic.producers)} producers already "
                    "(max_producers); use an id again, or raise the limit"
                )

    def begin(
        self,
        topic: Topic,
        scope: WriteScope,
        is_reconnect: bool = False,
        is_dense: bool = False,
        owner: str = "",
        attempt: Attempt | None = None,
    ) -> tuple[bool, Recollection | None]:
        """Open a part of a job for writing; return the result of `Jobs.open`."""
        check_name(scope.job, "job")
        topic.job_owners.check(scope.job, owner)
        is_new = scope.job not in topic.jobs.names  # for which others may have been forgotten
        found = topic.jobs.open(
            scope,
            topic.ends(),
            self._now(),
            self.limits,
            is_reconnect=is_reconnect,
            is_dense=is_dense,
            attempt=attempt,
        )
        self._claim(topic, scope.job, owner, is_new)
        return found

    def _claim(self, topic: Topic, job: str, owner: str, is_new: bool) -> None:
        """Record the owner of a job; scan all jobs only if the owners can have changed."""
        if is_new or topic.job_owners.may_claim(job, owner):
            topic.job_owners.claim({job: owner}, topic.jobs.names)

    def check_after(self, name: str, scope: WriteScope, after: int | None) -> None:
        """Raise `TopicReplaced` unless the topic knows a step that a job has ended in it."""
        if after is None or after < 0 or name in self.faults:
            return
        topic = self.topics.get(name)
        missing = f"job {scope.job!r} has ended its step {after} in it, but it does not exist"
        if topic is not None:
            missing = topic.jobs.missing_step(scope.job, after)
        if missing:
            raise replaced(
                name,
                f"{missing}: it was recreated or restored from an older copy, or the job wrote to "
                "another topic or server before",
            )

    def recall(self, topic: Topic, read: Recollection) -> None:
        """Install the ids that were read back for a job; evict idle ids to make room."""
        self._free_ids(read.ledger.size, {(read.scope.job, read.scope.part)})
        if read.ledger.is_spilled and not self._free_file({(read.scope.job, read.scope.part)}):
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
        """Store submissions, one group per topic; a failure affects only its topic."""
        now = int(self._clock.now() * 1e6)
        self._make_room_for_ids(groups)
        for topic, submissions in groups.items():
            try:
                if topic.fault:
                    raise IngestError(f"topic {topic.name} is out of use: {topic.fault}")
                self._check_disk()
                accepted = [each for each in submissions if each.fault is None]
                topic.commit(accepted, now)
            except Exception as error:  # noqa: BLE001 -- other topics must be stored
                self._refuse(topic, submissions, error)
            topic.storage.rotate(self.limits.roll_size, math.inf)

    def _make_room_for_ids(self, groups: dict[Topic, list[Submission]]) -> None:
        """Evict idle ids if there are too many; fail submissions for which there is no room."""
        coming = [
            (topic, each)
            for topic, group in groups.items()
            for each in group
            if each.scope is not None
        ]
        busy = {(each.scope.job, each.scope.part) for _, each in coming if each.scope is not None}
        if not coming or self._free_ids(sum(len(each.records.values) for _, each in coming), busy):
            return
        for topic, each in coming:
            if each.scope is not None and not topic.jobs.is_spilled(each.scope.job):
                each.fault = self._too_many_ids()

    def _too_many_ids(self) -> RefusedRecords:
        return RefusedRecords(
            f"{MAX_FILES} jobs of this server use spill files already, and the row ids of another "
            f"do not fit in memory ({self.limits.max_ids:,}, max_ids); retry when one of them has "
            "ended its step, or raise the limit"
        )

    def _free_ids(self, more: int, keep: Collection[tuple[str, int]]) -> bool:
        """Make room in memory for more ids: evict those that can be read again, then spill.

        Ids that an open attempt needs are not evicted, but may spill to a file. Return whether
        there is room.
        """
        topics = list(self.topics.values())
        over = sum(topic.jobs.ids for topic in topics) + more - self.limits.max_ids
        if over <= 0:
            return True
        found = [(idle, topic) for topic in topics for idle in topic.jobs.idle(keep)]
        for idle, topic in sorted(found, key=lambda pair: pair[0].cost):
            topic.jobs.evict(idle)
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
        # Only the ids of these submissions are left, which are in memory anyway.
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
        topic.jobs.evict(idle)
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

    def rotate_old(self, everything: bool = False) -> None:
        """Finish the logs that are old enough to become segments."""
        age = 0.0 if everything else self.limits.roll_age
        for topic in self.topics.values():
            topic.storage.rotate(self.limits.roll_size, age)

    def _check_disk(self) -> None:
        free = self.storage.free_bytes()
        if free < self.limits.low_water:
            raise DiskLow(
                f"{self.storage.location} has {free:,} bytes left, less than "
                f"{self.limits.low_water:,} (low_water): nothing is stored until there is room"
            )

    def _now(self) -> int:
        """Return the time for expiry by age, which ignores a pending clock jump."""
        return int(self._clock.cautious() * 1e6)

    # Upkeep, by one thread

    def roll(self) -> int:
        """Turn the logs that are finished now into segments; return how many were made."""
        rolled = 0
        try:
            for topic in list(self.topics.values()):
                for partition in range(len(topic.partitions)):
                    rolled += topic.storage.roll(partition)
                    self._retain(topic, partition)  # rolling all partitions first may take long
        finally:
            if rolled:
                # Once, not per segment: other threads page the memory in again.
                release_free_memory()
        return rolled

    def _retain(self, topic: Topic, partition: int) -> int:
        """Remove the rows of a partition that are too old or too many; return the bytes freed."""
        if topic.partitions[partition].fault or topic.readers.fault or topic.jobs.fault:
            return 0
        limits, now = self.limits, self._now()
        retention = Retention(
            stored_before=(
                None if limits.retention_age is None else now - int(limits.retention_age * 1e6)
            ),
            max_bytes=limits.retention_size,
            # Within the tolerance the clock may only have been slowed down or corrected.
            latest=now + int(TOLERANCE * 1e6),
            noticed=int(self._clock.noticed * 1e6),
        )
        offset = topic.storage.expired(partition, retention)
        if not limits.retention_past_readers:
            horizon = now - int(limits.producer_memory * 1e6)
            needed = [offsets.get(partition, 0) for offsets in topic.readers.offsets.values()]
            needed += topic.jobs.needed(partition, horizon)
            offset = min(offset, *needed) if needed else offset
        return topic.storage.drop_before(partition, offset)

    # Reading, by any thread

    def info(self) -> list[TopicInfo]:
        """Return what every topic contains, or why it is out of use."""
        known = [self.info_of(topic) for topic in list(self.topics.values())]
        lost = [TopicInfo(name, [], fault=fault) for name, fault in self.faults.items()]
        return sorted(known + lost, key=lambda topic: topic.topic)

    def info_of(self, topic: Topic) -> TopicInfo:
        """Return what a topic contains."""
        return topic.info(self.limits.producer_memory, self._now())

    def topic_to_read(self, name: str, may_read: Callable[[str], bool] = lambda _: True) -> Topic:
        """Return an existing topic; the error names some that ``may_read`` allows."""
        if name in self.faults:
            raise IngestError(f"topic {name} is out of use: {self.faults[name]}")
        topic = self.topics.get(name)
        if topic is None:
            names = sorted(filter(may_read, list(self.topics)))
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            there = ", ".join(names[:_NAMED]) + more if names else "there are none"
            raise UnknownTopic(f"there is no topic {name[:120]!r}; topics: {there}")
        return topic
