"""The jobs of a topic: their journal, and the ids of the stored rows of their steps.

The journal has the progress of each job; the ids are in the rows. After a restart, and after a
commit group that failed, the ids of a step are therefore read from its rows. The rows do not show
which ones a run skipped because an earlier run had stored them: a step with more than one run then
needs a new run.

Ids that exceed `max_ids` spill to a file, see `aqueduct.ingest.dedup.spill`.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from aqueduct.ingest.dedup.journal import Journal
from aqueduct.ingest.dedup.ledger import Idle, Ledger, MemoryIds
from aqueduct.ingest.dedup.recollection import Recollection
from aqueduct.ingest.dedup.scope import (
    MAX_PARTS,
    MAX_RUNS,
    Attempt,
    ExtraRows,
    Fingerprint,
    Job,
    Plan,
    ScopeFault,
    StepFault,
    WriteScope,
    check_replay,
    check_run,
    check_step,
    check_stored,
    ended_steps,
    is_ended,
    lost_run,
    must_resend,
    parse_producer_id,
    plan,
    record_ended,
    unknown_run,
)
from aqueduct.ingest.dedup.spill import NAME as SPILL
from aqueduct.ingest.dedup.spill import SpilledIds, SpillFault
from aqueduct.ingest.errors import CorruptFile, IngestError, RefusedRecords, StepConflict
from aqueduct.ingest.protocol import StepInfo
from aqueduct.ingest.server.memory import release_free_memory
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import TopicStorage
from aqueduct.ingest.storage.checked import write_blob

FORGOTTEN = "forgotten.json"
"""Exists once a job was evicted: from then on an unknown job may be an evicted one."""
_log = logging.getLogger("aqueduct.ingest")
_ENDED_TTL = 600 * 1_000_000
"""Microseconds before a job that ended with its step 0 may be evicted: abandoned attempts of its
parts have ended by then."""
_IDLE_TIMEOUT = 600 * 1_000_000
"""Microseconds before the spill file of an idle run may be evicted if its ids cannot be read back:
the run must then begin again."""
_FEW = 64
"""Attempts to record before closed ones are removed."""
RECALLERS = 4
"""Threads that may read ids from rows at once: each gets an equal share of `max_ids`."""
SHOWN_STEPS = 100
"""Unfinished steps in the listing of a topic: first those that keep rows from retention, then the
others, each with the longest idle first."""


class Jobs:
    """All jobs that write to a topic. For one thread, except where stated otherwise."""

    def __init__(self, storage: TopicStorage, scratch: Path) -> None:
        """``scratch``: a local directory for spill files."""
        self._journal = Journal(storage)
        self._spill = scratch / SPILL
        self.fault = ""
        """Why the progress of jobs is unknown; then jobs are rejected, other producers are not."""
        self._jobs: dict[str, Job] = {}
        self._unfinished: dict[str, Job] = {}
        """Jobs with an unfinished step; replaced as a whole, so that other threads may read it."""
        self._ledgers: dict[str, Ledger] = {}
        self._begun: dict[str, str] = {}
        """By job, its last run, if that has stored nothing since it was journaled."""
        self._used: dict[str, int] = {}
        self._location = storage.location
        self._forgotten = storage.blob(FORGOTTEN)
        self._has_forgotten = self._forgotten.read() is not None
        self._admitted: set[str] = set()
        """Jobs with rows that were admitted and not stored yet."""
        self._attempts: list[Attempt] = []
        """Open attempts, and some that have closed."""
        self._most_attempts = _FEW
        try:
            self._jobs = self._journal.read()
        except CorruptFile as fault:
            self.fault = str(fault)
        if not all(job.runs for job in self._jobs.values()):
            self.fault = f"{self._journal.path}: a job without runs"
        self._unfinished = {name: job for name, job in self._jobs.items() if not job.is_over}

    def close(self) -> None:
        """Close the journal and the spill files."""
        self._journal.close()
        self._ledgers.clear()

    # Beginning

    def open(
        self,
        scope: WriteScope,
        ends: dict[int, int],
        now: int,
        limits: IngestSettings,
        *,
        is_reconnect: bool = False,
        is_dense: bool = False,
        attempt: Attempt | None = None,
    ) -> tuple[bool, Recollection | None]:
        """Open a part for writing.

        Return whether the part is done already, and what must be read back before it is written.
        ``ends`` has the end of each partition. ``is_reconnect``: the producer has reconnected, and
        does not repeat acknowledged rows. ``is_dense``: the job ends every step in this topic.
        While ``attempt`` is open, it never has to send rows again because others need memory.
        """
        try:
            scope.check()
            self._check_known()
            job = self._jobs.get(scope.job)
            what = plan(job, scope)
            if what is Plan.NOTHING_TO_SEND:
                return True, None
            if is_reconnect and what is not Plan.CONTINUE:
                raise ScopeFault(unknown_run(scope))
            if what is Plan.NEW_STEP:
                _warn_if_left(job, scope)
                job = Job(
                    scope.step,
                    [scope.run],
                    scope.unique,
                    ends,
                    now,
                    is_dense=is_dense,
                    began=now,
                    ended=b"" if job is None else job.ended,
                )
                self._write(scope.job, job, self._make_room(scope.job, now, limits))
                self._ledgers[scope.job] = self._ledger(job, limits)
                self._begun.pop(scope.job, None)
            elif what is Plan.NEW_RUN:
                assert job is not None
                runs = [*job.runs, scope.run][-MAX_RUNS:]
                job = replace(job, runs=runs, parts=[], time=now)
                self._write(scope.job, job)
                self._ledgers.pop(scope.job, None)
                self._begun[scope.job] = scope.run
            assert job is not None
            self._used[scope.job] = now
            if attempt is not None:
                self._note(attempt)
            if scope.job in self._ledgers:
                self._ledgers[scope.job].open(scope.part, attempt)
                if self._ledgers[scope.job].knows(scope.part):
                    return False, None
            is_new_run = self._begun.get(scope.job) == scope.run
            ledger = self._ledger(job, limits, is_new_run=is_new_run)
            if not ledger.is_rebuildable and not is_new_run:
                raise ScopeFault(lost_run(scope))
            if any(ends[number] < offset for number, offset in job.offsets.items()):
                # A repair has cut rows off: new rows may get offsets before the recorded ones.
                offsets = {number: min(end, job.offsets[number]) for number, end in ends.items()}
                job = replace(job, offsets=offsets)
                self._write(scope.job, job)
        except ScopeFault as fault:
            raise RefusedRecords(str(fault)) from None
        return False, Recollection(scope, ledger, ends, job, self._ledgers.get(scope.job))

    def _note(self, attempt: Attempt) -> None:
        self._attempts.append(attempt)
        if len(self._attempts) > self._most_attempts:
            self._attempts = [each for each in self._attempts if each.is_open]
            self._most_attempts = 2 * len(self._attempts) + _FEW

    def _ledger(self, job: Job, limits: IngestSettings, *, is_new_run: bool = True) -> Ledger:
        return Ledger(
            unique=job.unique,
            is_first_run=len(job.runs) == 1,
            is_new_run=is_new_run,
            max_recalled=limits.max_ids // RECALLERS,
            spill=self._to_file,
        )

    def _to_file(self, ids: MemoryIds) -> SpilledIds:
        """Move ids to a spill file, and return their memory."""
        spilled = SpilledIds(self._spill, ids)
        ids.clear()
        release_free_memory()
        return spilled

    def install(self, read: Recollection, now: int) -> None:
        """Use the ids that were read back, unless the job has changed meanwhile."""
        name, part = read.scope.job, read.scope.part
        job = self._jobs.get(name)
        if job is None or (job.step, job.runs) != (read.job.step, read.job.runs):
            raise RefusedRecords(f"another run of job {name!r} began during the read of its rows")
        if self._ledgers.get(name) is not read.known:
            # The ids of other parts were dropped during the read, so rows that they have stored
            # since are missing here.
            raise RefusedRecords(must_resend(read.scope))
        ledger = self._ledgers.setdefault(name, read.ledger)
        try:
            ledger.adopt(part, read.ledger)
        except SpillFault:  # an incomplete ledger would admit duplicates
            del self._ledgers[name]
            raise
        ledger.use(part, now)
        self._begun.pop(name, None)

    def _check_known(self) -> None:
        if self.fault:
            raise ScopeFault(f"the progress of the jobs of this topic is unknown: {self.fault}")

    def _make_room(self, name: str, now: int, limits: IngestSettings) -> dict[str, Job | None]:
        """Return the jobs to evict before a new one is added; raise if none can be."""
        if name in self._jobs or len(self._jobs) < limits.max_jobs:
            return {}
        horizon = now - int(limits.producer_memory * 1e6)
        old: dict[str, Job | None] = {
            each: None for each in self._jobs if self._last_use(each) < horizon
        }
        if len(self._jobs) - len(old) >= limits.max_jobs:
            horizon = now - _ENDED_TTL
            for each, job in self._jobs.items():
                if job.is_over and not job.step and self._last_use(each) < horizon:
                    old[each] = None
        if len(self._jobs) - len(old) >= limits.max_jobs:
            raise ScopeFault(
                f"{len(self._jobs)} jobs write to this topic already (max_jobs), and none has been "
                "idle for producer_memory. Make repeated writes the steps of one job (writeId and "
                "writeStep in Spark), or raise the limit"
            )
        return old

    def _last_use(self, name: str) -> int:
        return max(self._jobs[name].time, self._used.get(name, 0))

    def _write(self, name: str, job: Job, others: Mapping[str, Job | None] | None = None) -> None:
        """Record a job in the journal, and change others or, with None, evict them."""
        self._change({**(others or {}), name: job})

    def _change(self, changes: Mapping[str, Job | None]) -> None:
        before = {name: self._jobs.get(name) for name in changes}
        self._apply(changes)
        try:
            if not self._has_forgotten and None in changes.values():
                write_blob(self._forgotten, {"version": 1})
                self._has_forgotten = True
            self._journal.write(changes, self._jobs)
        except IngestError:
            self._apply(before)
            raise
        unfinished = dict(self._unfinished)
        for name, job in changes.items():
            if job is None or job.is_over:
                unfinished.pop(name, None)
                self._forget(name)
            else:
                unfinished[name] = job
        self._unfinished = unfinished

    def _apply(self, changes: Mapping[str, Job | None]) -> None:
        for name, job in changes.items():
            if job is None:
                self._jobs.pop(name, None)
            else:
                self._jobs[name] = job

    def _forget(self, name: str) -> None:
        """Drop the in-memory state of a job."""
        self._used.pop(name, None)
        self._begun.pop(name, None)
        self._ledgers.pop(name, None)

    def missing_step(self, name: str, after: int) -> str:
        """Return why this topic cannot be the one where a job ended a step; empty if it may be."""
        job = self._jobs.get(name)
        if self.fault or after < 0:
            return ""
        if job is not None:
            done = job.step if job.is_over else job.step - 1
            if done >= after or not job.is_dense:
                return ""
            return f"job {name!r} has ended its step {after}, but here only its step {done}"
        if self._has_forgotten:
            _log.warning(
                "job %s is unknown in %s, and may have been evicted: it continues after step %d",
                name, self._location, after,
            )  # fmt: skip
            return ""
        return f"job {name!r} has ended its step {after}, but is unknown here"

    # Storing

    def admit(
        self, scope: WriteScope, ids: Sequence[bytes], now: int, attempt: Attempt | None = None
    ) -> Sequence[int]:
        """Return the indices of the new rows; `confirm_admitted` or `drop_admitted` must follow."""
        try:
            job = self._jobs.get(scope.job)
            what = plan(job, scope)
            if what is Plan.NOTHING_TO_SEND:
                return ()
            ledger = self._ledgers.get(scope.job)
            if what is not Plan.CONTINUE or ledger is None or not ledger.takes(scope.part, attempt):
                raise ScopeFault(must_resend(scope))
            self._used[scope.job] = now
            self._admitted.add(scope.job)
            indices = ledger.admit(scope.part, ids, attempt)
            ledger.use(scope.part, now)
            return indices
        except ScopeFault as fault:
            raise RefusedRecords(str(fault)) from None
        except SpillFault as fault:
            self._ledgers.pop(scope.job, None)
            raise RefusedRecords(str(fault)) from None

    def confirm_admitted(self) -> None:
        """Record that all admitted rows are stored."""
        self._admitted.clear()

    def drop_admitted(self) -> None:
        """Drop the ids of jobs whose admitted rows were not stored: they are read back later."""
        for name in self._admitted:
            self._ledgers.pop(name, None)
        self._admitted.clear()

    def drop_job(self, name: str) -> None:
        """Drop the ids of a job after a failed write, so that they are read from its rows again."""
        self._admitted.discard(name)
        self._ledgers.pop(name, None)

    # Making room

    @property
    def ids(self) -> int:
        """The number of ids and hashes in memory."""
        return sum(ledger.size for ledger in self._ledgers.values())

    @property
    def files(self) -> int:
        """The number of jobs with a spill file."""
        return sum(ledger.is_spilled for ledger in self._ledgers.values())

    def is_spilled(self, name: str) -> bool:
        """Return whether the ids of a job are in a spill file."""
        return name in self._ledgers and self._ledgers[name].is_spilled

    def idle(self, keep: Collection[tuple[str, int]]) -> Iterator[Idle]:
        """Yield ids that can be evicted and read again.

        Parts that are open, or in ``keep``, are left out, unless they are written without them.
        """
        open_parts = self._open_parts(keep)
        busy = {job for job, _ in open_parts}
        for name, ledger in self._ledgers.items():
            if ledger.is_by_part:
                for part, part_used, size in ledger.parts():
                    is_busy = (name, part) in open_parts or ledger.is_awaited(part)
                    if size and (not is_busy or ledger.can_forget(part)):
                        yield Idle(False, part_used, name, part, size, is_busy)
            elif name not in busy and ledger.size and ledger.is_rebuildable:
                yield Idle(False, self._last_use(name), name, None, ledger.size)

    def _open_parts(self, keep: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        return {(each.job, each.part) for each in self._attempts if each.is_open}.union(keep)

    def large(self) -> Iterator[tuple[int, str]]:
        """Yield the jobs whose ids can spill to a file, each with its number of ids in memory."""
        for name, ledger in self._ledgers.items():
            if ledger.size:
                yield ledger.size, name

    def spill(self, name: str) -> None:
        """Spill the ids of a job to a file; if that fails they are dropped."""
        try:
            self._ledgers[name].spill()
        except SpillFault as fault:
            _log.error("%s", fault)
            del self._ledgers[name]

    def idle_files(self, keep: Collection[tuple[str, int]], now: int) -> Iterator[Idle]:
        """Yield jobs whose spill file can be evicted: none of their parts is open or in ``keep``.

        A further run that was idle for long makes room even if it is open.
        """
        kept = {job for job, _ in keep}
        busy = {job for job, _ in self._open_parts(keep)}
        for name, ledger in self._ledgers.items():
            used = self._last_use(name)
            is_lost = not ledger.is_rebuildable
            is_old = used < now - _IDLE_TIMEOUT
            if ledger.is_spilled and (name not in kept and is_old if is_lost else name not in busy):
                yield Idle(is_lost, used, name, None, 0)

    def evict(self, idle: Idle) -> None:
        """Evict ids; they are read back when needed, or their run must begin again."""
        if idle.part is None:
            del self._ledgers[idle.job]
        else:
            self._ledgers[idle.job].forget(idle.part)

    # Ending

    def complete(self, parts: Iterable[WriteScope], now: int) -> None:
        """Journal that parts are complete; all of their rows are stored."""
        done = [scope for scope in parts if plan(self._jobs.get(scope.job), scope) is Plan.CONTINUE]
        changes: dict[str, Job | None] = {}
        jobs = dict(self._unfinished)
        for scope in done:
            job = jobs[scope.job]
            if scope.part not in job.parts:
                completed = [*job.parts]
                insort(completed, scope.part)
                changes[scope.job] = jobs[scope.job] = replace(job, parts=completed, time=now)
        if not done:
            return
        if sum(len(job.parts) for job in jobs.values()) > MAX_PARTS:
            raise RefusedRecords(
                f"unfinished steps of this topic have more than {MAX_PARTS:,} completed parts; end "
                "those steps, or use fewer parts"
            )
        if changes:
            self._change(changes)
        for scope in done:
            if scope.job in self._ledgers:
                try:
                    self._ledgers[scope.job].complete(scope.part)
                except SpillFault as fault:  # the part is complete; others are read back
                    _log.error("%s", fault)
                    del self._ledgers[scope.job]

    def end(
        self,
        name: str,
        step: int,
        run: str,
        ends: dict[int, int],
        now: int,
        limits: IngestSettings,
        *,
        rows: Fingerprint | None = None,
        allow_extra: bool = False,
        read: Recollection | None = None,
    ) -> Recollection | None:
        """Record that a step has ended, with the fingerprint of its rows.

        If the stored rows are not in memory, return a `Recollection` to read; call this again with
        it afterwards. Raise `StepConflict` if the fingerprint does not match the stored rows.
        """
        try:
            check_run(run)
            self._check_known()
            scope = WriteScope(name, step, run, 0)
            scope.check()
            if rows is not None:
                rows.check()
            job = self._jobs.get(name)
            if job is not None and is_ended(job, step):
                self._check_ended(job, scope, rows)
                return None
            others: dict[str, Job | None] = {}
            if job is None or step > job.step:
                if rows is not None:
                    check_stored(scope, Fingerprint(), None, rows, unique=False)
                _warn_if_left(job, scope)
                others = self._make_room(name, now, limits)
            else:
                check_step(job, name, step, run)
                if rows is not None:
                    ledger = self._ledgers.get(name) or (None if read is None else read.ledger)
                    if ledger is None:
                        unread = self._ledger(job, limits, is_new_run=False)
                        return Recollection(scope, unread, ends, job, only_counts=True)
                    self._check_stored(job, scope, ledger, rows, allow_extra)
            before = b"" if job is None else job.ended
            # Only an unfinished step needs runs, offsets and parts; most jobs have ended theirs.
            over = Job(
                step,
                [run],
                False,
                {},
                now,
                is_over=True,
                is_dense=job is not None and job.is_dense,
                ended=record_ended(before, step, rows),
            )
            self._write(name, over, others)
        except StepFault as fault:
            raise StepConflict(str(fault)) from None
        except ScopeFault as fault:
            raise RefusedRecords(str(fault)) from None
        return None

    def _check_ended(self, job: Job, scope: WriteScope, rows: Fingerprint | None) -> None:
        """Raise `StepConflict` if a replayed step has other rows than when it ended."""
        known = ended_steps(job.ended).get(scope.step)
        if known is None or rows is None:
            _log.warning(
                "step %d of job %r was ended again, and the server cannot compare its rows: %s",
                scope.step, scope.job,
                "the request has no fingerprint" if rows is None else "it ended without one",
            )  # fmt: skip
        else:
            check_replay(scope.job, scope.step, known, rows)

    def _check_stored(
        self, job: Job, scope: WriteScope, ledger: Ledger, rows: Fingerprint, allow_extra: bool
    ) -> None:
        """Raise `StepConflict` if the stored rows differ from those of the run that ends it."""
        if ledger.is_partial:
            _log.warning(
                "step %d of job %r ended, but the server cannot compare its rows: retention has "
                "removed some of them",
                scope.step, scope.job,
            )  # fmt: skip
            return
        try:
            check_stored(scope, ledger.stored, ledger.left, rows, unique=job.unique)
        except ExtraRows as fault:
            if not allow_extra:
                raise
            _log.warning("ended with extra rows (allow_extra): %s", fault)

    # Reading, by any thread

    @property
    def names(self) -> Collection[str]:
        """The names of all jobs."""
        return self._jobs.keys()

    def check_free(self, producer_id: str) -> None:
        """Raise `RefusedRecords` if a producer id belongs to a job."""
        found = parse_producer_id(producer_id)
        if found is not None and found[0] in self._jobs:
            raise RefusedRecords(f"producer id {producer_id!r} belongs to a job; use another id")

    def needed(self, partition: int, horizon: int) -> list[int]:
        """Return the first offsets that unfinished steps used since ``horizon`` need."""
        return [
            job.offsets.get(partition, 0)
            for name, job in self._unfinished.items()
            if max(job.time, self._used.get(name, 0)) >= horizon
        ]

    def unfinished(self, memory: float | None = None, now: int = 0) -> list[StepInfo]:
        """Return the unfinished steps, longest idle first.

        ``memory`` is how many seconds an idle step keeps its rows. Steps that keep none ``now``,
        in microseconds since 1970, come last: there may be many of them.
        """
        found = [
            StepInfo(
                name,
                job.step,
                len(job.runs),
                job.began or job.time,
                used := max(job.time, self._used.get(name, 0)),
                job.offsets,
                None if memory is None else used + int(memory * 1e6),
            )
            for name, job in self._unfinished.items()
        ]
        return sorted(found, key=lambda step: ((step.kept_until or now) < now, step.last_used))


def _warn_if_left(job: Job | None, scope: WriteScope) -> None:
    """Log a warning if a job begins a step before it has ended the previous one."""
    if job is not None and not job.is_over:
        _log.warning(
            "step %d of job %r begins before its step %d has ended: rows of that step may be "
            "missing",
            scope.step, scope.job, job.step,
        )  # fmt: skip
