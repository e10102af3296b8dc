"""The jobs of a topic: what is written down of them, and which rows of their steps are known.

What is written down says how far each job is; the ids are in the rows. So after a restart, and
after a group that could not be stored, what is known of a step is read from its rows. They do not
tell what a run was spared because a run before it had stored it: a step that had more than one
run then needs another one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from aqueduct.ingest.faults import CorruptFile, IngestError, RefusedRecords
from aqueduct.ingest.limits import IngestLimits
from aqueduct.ingest.manifest import read_checked, write_checked
from aqueduct.ingest.once import (
    ID_HEADER,
    MAX_PARTS,
    MAX_RUNS,
    Job,
    Ledger,
    Once,
    OnceFault,
    Plan,
    check_run,
    check_step,
    parse_producer_id,
    plan,
)
from aqueduct.ingest.partition import Partition

NAME = "jobs.json"
_OVER_MEMORY = 600 * 1_000_000
"""Microseconds for which a job that was over with its first step is remembered, though others need
its place: attempts of its parts that nobody waits for have ended by then."""
_PATIENCE = 600 * 1_000_000
"""Microseconds for which a run that sends nothing keeps what only memory knows of it, though others
need the room: it has to begin anew if it comes back."""


@dataclass(frozen=True)
class Recollection:
    """What has to be read before a producer may begin, by any thread, and where it goes then."""

    once: Once
    ledger: Ledger
    ends: dict[int, int]
    job: Job
    known: Ledger | None = None
    """What it adds to, if other parts of the job are known."""

    def read(self, partitions: Sequence[Partition]) -> None:
        """Fill the ledger from the rows of the step."""
        try:
            for part in partitions:
                # What retention has removed was stored, and nobody knows by which id.
                start = max(self.job.offsets.get(part.number, 0), part.manifest.first)
                end = self.ends[part.number]
                if start < end:
                    for batch in part.read(start, end):
                        self._recall(batch)
        except OnceFault as fault:
            raise RefusedRecords(str(fault)) from None

    def _recall(self, batch: pa.RecordBatch) -> None:
        producers = batch.column("producer_id")
        for producer in pc.unique(producers).to_pylist():
            found = parse_producer_id(producer)
            if found is None or found[:2] != (self.once.job, self.once.step):
                continue
            part = found[3]
            if self.ledger.is_by_part and part != self.once.part:
                self.ledger.forget(part)  # until somebody comes to write it
                continue
            headers = batch.column("headers").filter(pc.equal(producers, producer))
            self.ledger.recall(part, ids_of(headers))


def ids_of(headers: pa.Array) -> list[bytes]:
    """The ids of rows, which are in the last header of each that has one."""
    headers = headers.filter(pc.greater(pc.list_value_length(headers), 0))
    last = pc.subtract(headers.offsets.slice(1), pa.scalar(1, pa.int32()))
    names, values = (headers.values.field(number).take(last) for number in (0, 1))
    ids: list[bytes] = values.filter(pc.equal(names, ID_HEADER)).to_pylist()
    return ids


@dataclass(frozen=True)
class Idle:
    """Ids that can be freed."""

    is_lost: bool
    """Whether nobody can read them again: their run has to begin anew then."""
    used: int
    job: str
    part: int | None
    """Whose ids they are; None for all of the job."""
    size: int

    @property
    def cost(self) -> tuple[bool, int]:
        """What is missed least is the least."""
        return self.is_lost, self.used


class Jobs:
    """All jobs that write to a topic. One thread uses it, except where something else is said."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self.fault = ""
        """Why nobody knows how far jobs are; then they are refused, and all else goes on."""
        self._jobs: dict[str, Job] = {}
        """Replaced as a whole, so that other threads may look."""
        self._ledgers: dict[str, Ledger] = {}
        self._begun: dict[str, str] = {}
        """By job, its last run, if that has stored nothing since it was written down."""
        self._used: dict[str, int] = {}
        self._admitted: set[str] = set()
        """Jobs of which rows were admitted that are not stored yet."""
        try:
            self._jobs = read_checked(self._path, dict[str, Job], "a list of jobs")
        except FileNotFoundError:
            pass
        except CorruptFile as fault:
            self.fault = str(fault)
        if not all(job.runs for job in self._jobs.values()):
            self.fault = f"{self._path}: a job without runs"

    # Beginning

    def open(
        self,
        once: Once,
        ends: dict[int, int],
        now: int,
        limits: IngestLimits,
        *,
        again: bool = False,
    ) -> tuple[bool, Recollection | None]:
        """Begin, or go on, to write a part: whether nothing is to be sent, and what has to be read.

        ``ends`` is where the partitions of the topic end now; ``again`` is for one that was open
        before, and does not send again what it was told is stored.
        """
        try:
            once.check()
            self._check_known()
            job = self._jobs.get(once.job)
            what = plan(job, once)
            if what is Plan.NOTHING:
                return True, None
            if again and what is not Plan.GO_ON:
                raise OnceFault(_unknown(once))
            if what is Plan.NEW_STEP:
                job = Job(once.step, [once.run], once.unique, ends, now)
                self._write(self._with_room_for(once.job, now, limits), once.job, job)
                self._ledgers[once.job] = _ledger(job, limits)
                self._begun.pop(once.job, None)
            elif what is Plan.NEW_RUN:
                assert job is not None
                runs = [*job.runs, once.run][-MAX_RUNS:]
                job = replace(job, runs=runs, parts=[], time=now)
                self._write(self._jobs, once.job, job)
                self._ledgers.pop(once.job, None)
                self._begun[once.job] = once.run
            assert job is not None
            self._used[once.job] = now
            if once.job in self._ledgers and self._ledgers[once.job].knows(once.part):
                return False, None
            ledger = _ledger(job, limits)
            if not ledger.can_be_made_again and self._begun.get(once.job) != once.run:
                raise OnceFault(_lost(once))
            if any(ends[number] < offset for number, offset in job.offsets.items()):
                # Somebody has given up rows: what is stored from now on may be before those.
                offsets = {number: min(end, job.offsets[number]) for number, end in ends.items()}
                job = replace(job, offsets=offsets)
                self._write(self._jobs, once.job, job)
        except OnceFault as fault:
            raise RefusedRecords(str(fault)) from None
        return False, Recollection(once, ledger, ends, job, self._ledgers.get(once.job))

    def install(self, read: Recollection, now: int) -> None:
        """What was read is what is known from now on, unless something has come in between."""
        name, part = read.once.job, read.once.part
        job = self._jobs.get(name)
        if job is None or (job.step, job.runs) != (read.job.step, read.job.runs):
            raise RefusedRecords(f"another run of job {name!r} has begun meanwhile")
        if self._ledgers.get(name) is not read.known:
            # Other parts went on while this was read, and what is known of them was dropped: they
            # have rows that were not there to be read.
            raise RefusedRecords(_look_again(read.once))
        self._ledgers.setdefault(name, read.ledger).adopt(part, read.ledger)
        self._ledgers[name].use(part, now)
        self._begun.pop(name, None)

    def _check_known(self) -> None:
        if self.fault:
            raise OnceFault(f"nobody knows how far the jobs of this topic are: {self.fault}")

    def _with_room_for(self, name: str, now: int, limits: IngestLimits) -> Mapping[str, Job]:
        """The jobs without some that are as good as forgotten, if one is to be added."""
        if name in self._jobs:
            return self._jobs
        horizon = now - int(limits.producer_memory * 1e6)
        jobs = {each: job for each, job in self._jobs.items() if self._last_use(each) >= horizon}
        if len(jobs) >= limits.max_jobs:
            horizon = now - _OVER_MEMORY
            jobs = {
                each: job
                for each, job in jobs.items()
                if job.step or not job.is_over or self._last_use(each) >= horizon
            }
        if len(jobs) >= limits.max_jobs:
            raise OnceFault(
                f"{len(jobs)} jobs write to this topic already (max_jobs); those that have not "
                "written for long make room. Make what is written again and again the steps of "
                "one job (writeId and writeStep in Spark), or raise the limit"
            )
        return jobs

    def _last_use(self, name: str) -> int:
        return max(self._jobs[name].time, self._used.get(name, 0))

    def _write(self, jobs: Mapping[str, Job], name: str, job: Job) -> None:
        """Have a job written down, and others no more."""
        self._replace({**jobs, name: job})

    def _replace(self, jobs: dict[str, Job]) -> None:
        try:
            write_checked(self._path, jobs)
        except OSError as error:
            raise IngestError(f"{self._path} could not be written: {error}") from None
        for gone in self._jobs.keys() - jobs.keys():
            self._used.pop(gone, None)
            self._begun.pop(gone, None)
            self._ledgers.pop(gone, None)
        self._jobs = jobs

    # Storing

    def admit(self, once: Once, ids: Sequence[bytes], now: int) -> Sequence[int]:
        """The places of the rows that are new; they are stored with the next group, or `drop`."""
        try:
            job = self._jobs.get(once.job)
            what = plan(job, once)
            if what is Plan.NOTHING:
                return ()
            ledger = self._ledgers.get(once.job)
            if what is not Plan.GO_ON or ledger is None or not ledger.knows(once.part):
                raise OnceFault(_look_again(once))
            self._used[once.job] = now
            self._admitted.add(once.job)
            places = ledger.admit(once.part, ids)
            ledger.use(once.part, now)
            return places
        except OnceFault as fault:
            raise RefusedRecords(str(fault)) from None

    def kept(self) -> None:
        """All that was admitted is stored."""
        self._admitted.clear()

    def drop(self) -> None:
        """What was admitted is not stored: what is known of those jobs has to be read again."""
        for name in self._admitted:
            self._ledgers.pop(name, None)
        self._admitted.clear()

    # Making room

    @property
    def ids(self) -> int:
        """How many ids and hashes are in memory."""
        return sum(ledger.size for ledger in self._ledgers.values())

    def idle(self, keep: Collection[tuple[str, int]], now: int) -> Iterator[Idle]:
        """What can be freed, but not of parts to be kept, by the names of their jobs."""
        busy = {job for job, _ in keep}
        for name, ledger in self._ledgers.items():
            used = self._last_use(name)
            if ledger.is_by_part:
                for part, part_used, size in ledger.parts():
                    if size and (name, part) not in keep:
                        yield Idle(False, part_used, name, part, size)
            elif name not in busy:
                is_lost = not ledger.can_be_made_again
                if ledger.size and (not is_lost or used < now - _PATIENCE):
                    yield Idle(is_lost, used, name, None, ledger.size)

    def let_go(self, idle: Idle) -> None:
        """Free ids; who goes on with them has them read again, or begins anew."""
        if idle.part is None:
            del self._ledgers[idle.job]
        else:
            self._ledgers[idle.job].forget(idle.part)

    # Ending

    def complete(self, parts: Iterable[Once], now: int) -> None:
        """Write down that parts are complete; all of their rows are stored."""
        jobs = dict(self._jobs)
        done = [once for once in parts if plan(jobs.get(once.job), once) is Plan.GO_ON]
        for once in done:
            job = jobs[once.job]
            at = bisect_left(job.parts, once.part)
            if not _has(job.parts, once.part):
                jobs[once.job] = replace(
                    job, parts=[*job.parts[:at], once.part, *job.parts[at:]], time=now
                )
        if not done:
            return
        if sum(len(job.parts) for job in jobs.values()) > MAX_PARTS:
            raise RefusedRecords(
                f"the jobs of this topic have more than {MAX_PARTS:,} parts that are complete, in "
                "steps that are not over; end those, or make fewer parts"
            )
        self._replace(jobs)
        for once in done:
            if once.job in self._ledgers:
                self._ledgers[once.job].complete(once.part)

    def end(
        self, name: str, step: int, run: str, ends: dict[int, int], now: int, limits: IngestLimits
    ) -> None:
        """Write down that a step is over."""
        try:
            check_run(run)
            self._check_known()
            Once(name, step, run, 0).check()
            job = self._jobs.get(name)
            if job is None or step > job.step:
                over = Job(step, [run], False, ends, now, is_over=True)
                self._write(self._with_room_for(name, now, limits), name, over)
            else:
                check_step(job, name, step, run)
                if not job.is_over:
                    over = replace(job, is_over=True, parts=[], time=now)
                    self._write(self._jobs, name, over)
        except OnceFault as fault:
            raise RefusedRecords(str(fault)) from None
        self._ledgers.pop(name, None)
        self._begun.pop(name, None)

    # Looking, by any thread

    def check_free(self, producer_id: str) -> None:
        """Raise if rows with this id of their producer are those of a job."""
        found = parse_producer_id(producer_id)
        if found is not None and found[0] in self._jobs:
            raise RefusedRecords(f"{producer_id!r} is for rows of a job; take another id")

    def needed(self, partition: int, horizon: int) -> list[int]:
        """Offsets from which on rows of a partition may be needed, of jobs used since a time."""
        return [
            job.offsets.get(partition, 0)
            for job in self._jobs.values()
            if not job.is_over and job.time >= horizon
        ]


def _ledger(job: Job, limits: IngestLimits) -> Ledger:
    return Ledger(unique=job.unique, is_first_run=len(job.runs) == 1, max_ids=limits.max_ids)


def _has(parts: Sequence[int], part: int) -> bool:
    at = bisect_left(parts, part)
    return at < len(parts) and parts[at] == part


def _look_again(once: Once) -> str:
    return (
        f"what is stored of step {once.step} of job {once.job!r} has to be looked at again: send "
        "all rows of this part again"
    )


def _unknown(once: Once) -> str:
    return (
        f"run {once.run[:8]} of step {once.step} of job {once.job!r} is not known here, and has "
        "written before: the server has lost what it stored, or is another one; run the step "
        "again from its beginning"
    )


def _lost(once: Once) -> str:
    return (
        f"run {once.run[:8]} was not the first to write step {once.step} of job {once.job!r}, and "
        "what it has sent is not known any more, since the server was restarted, could not store "
        "something, or needed the memory: the step has to be run again by a new run (restart the "
        "query)"
    )
