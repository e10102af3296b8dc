"""Which rows of a job are new, though its tasks, or all of it, are run again: pure decisions.

A job has steps, a step is written by one or more runs, and a run shares the rows of the step out
over parts, each of which may be attempted several times. Within a run a part always has the same
rows, in any order; over runs only the rows of the whole step are the same. A row's id is a hash of
what is in it, and how many equal rows came before it in its attempt of its part.

Within a run, a row is the same as another if its part and its id are the same. A further run of
the step has to account for what the runs before have stored, whoever sends it: of the rows with
one hash, as many are skipped as are stored, and the rest is new.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence

import msgspec

ID_HEADER = "aqueduct-id"
"""The header of a row that holds its id."""
ID_SIZE = 20
HASH_SIZE = 16
"""The bytes of an id that tell what is in a row; the rest is the number among equal ones."""
MAX_PARTS = 100_000
"""Of one step; also those of all jobs of a topic that are written down, which are complete in steps
that are not over: each is, whenever a job goes on."""
MAX_STEP = 2**63 - 1
MAX_RUNS = 100
"""Runs of a step that are remembered, so that they are refused."""
RUN_SHOWN = 8
"""Characters of a run in a producer's id."""
_HEX = frozenset("0123456789abcdef")


class OnceFault(Exception):
    """Rows are not to be stored, and a sentence that says why."""


class Once(msgspec.Struct, frozen=True):
    """Whose rows a producer sends, so that each is stored once, however often it is sent."""

    job: str
    """What all of it belongs to: up to 100 letters, digits, dots, dashes and underscores."""
    step: int
    """The job's steps follow each other, with rising numbers."""
    run: str
    """Made up (``uuid.uuid4().hex``) by whoever begins, or begins anew, to write a step."""
    part: int
    """Of the rows of the step, as this run shares them out."""
    unique: bool = False
    """Whether an id is never used twice in the step, whatever its part and run."""

    @property
    def producer_id(self) -> str:
        """What the rows have as id of their producer."""
        return f"{self.job}.{self.step}.{self.run[:RUN_SHOWN]}.{self.part}"

    def check(self) -> None:
        """Raise for what cannot be, except in the name of the job."""
        if not 0 <= self.step <= MAX_STEP:
            raise OnceFault(f"steps are numbered from 0 on, and {self.step} is none")
        if not 0 <= self.part < MAX_PARTS:
            raise OnceFault(f"parts are numbered from 0 to {MAX_PARTS - 1:,}, not {self.part}")
        check_run(self.run)


def check_run(run: str) -> None:
    """Raise unless this can tell a run from others."""
    if not RUN_SHOWN <= len(run) <= 64 or not _HEX.issuperset(run):
        raise OnceFault(
            f"{run[:80]!r} cannot tell a run from others; take {RUN_SHOWN} to 64 hexadecimal "
            "digits, such as uuid.uuid4().hex"
        )


def parse_producer_id(producer_id: str) -> tuple[str, int, str, int] | None:
    """Job, step, beginning of the run, and part; None if this is another kind of id."""
    fields = producer_id.rsplit(".", 3)
    if len(fields) != 4:
        return None
    job, step, run, part = fields
    if not (_is_number(step) and _is_number(part)):
        return None
    if len(run) != RUN_SHOWN or not _HEX.issuperset(run):
        return None
    return job, int(step), run, int(part)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


class Job(msgspec.Struct, frozen=True):
    """What is written down of a job: how far it is, so that nothing older is taken for new."""

    step: int
    runs: list[str]
    """Those that have written this step, in order; the last one may still."""
    unique: bool
    offsets: dict[int, int]
    """By partition, where the step began: its rows are there or behind."""
    time: int
    """When this was written down."""
    parts: list[int] = []
    """Those that the last run has completed."""
    is_over: bool = False


class Plan(enum.Enum):
    """What is to be done for a producer that begins."""

    NEW_STEP = enum.auto()
    NEW_RUN = enum.auto()
    GO_ON = enum.auto()
    NOTHING = enum.auto()
    """All that it has to send is stored."""


def plan(job: Job | None, once: Once) -> Plan:
    """What is to be done for a producer; raises if others have taken its place."""
    if job is None or once.step > job.step:
        return Plan.NEW_STEP
    check_step(job, once.job, once.step, once.run)
    if job.is_over:
        return Plan.NOTHING
    if once.unique != job.unique:
        raise OnceFault(
            f"step {job.step} of job {once.job!r} was begun with "
            f"{'ids that are unique' if job.unique else 'ids made of what is in a row'}, and has "
            "to be ended like that; change it with the next step"
        )
    if once.run != job.runs[-1]:
        return Plan.NEW_RUN
    return Plan.NOTHING if once.part in job.parts else Plan.GO_ON


def check_step(job: Job, name: str, step: int, run: str) -> None:
    """Raise if a job is at a later step, or has been taken over by another run."""
    if step < job.step:
        raise OnceFault(f"step {step} of job {name!r} came after its step {job.step} had begun")
    if step == job.step and not job.is_over and run in job.runs[:-1]:
        raise OnceFault(
            f"run {run[:RUN_SHOWN]} of step {step} of job {name!r} was superseded: run "
            f"{job.runs[-1][:RUN_SHOWN]} has begun to write this step anew"
        )


class Ledger:
    """The rows of one step that are known: which of those that come are new.

    What is admitted counts as stored from then on. If it is not, the ledger is wrong, and another
    has to be made from the rows that are stored.
    """

    def __init__(self, *, unique: bool, is_first_run: bool, max_ids: int) -> None:
        self._unique = unique
        self._is_first_run = is_first_run
        self._max_ids = max_ids
        self._ids: dict[int, set[bytes]] = {}
        """By part, what this run has sent; in unique mode all is under part 0."""
        self._stored: dict[bytes, int] = {}
        """By hash, rows of the step that runs before this one have stored."""
        self._seen: dict[bytes, int] = {}
        """By hash, rows that this run has sent, of all parts; for further runs only."""
        self._size = 0
        self._used: dict[int, int] = {}
        """By part, when somebody last wrote it."""
        self._forgotten: set[int] = set()
        """Parts of which rows are stored whose ids are not here; for a first run only."""

    @property
    def size(self) -> int:
        """How many ids and hashes it holds."""
        return self._size + len(self._stored) + len(self._seen)

    @property
    def can_be_made_again(self) -> bool:
        """Whether the rows that are stored tell all that it holds."""
        return self._unique or self._is_first_run

    @property
    def is_by_part(self) -> bool:
        """Whether a part can be known without the others."""
        return self._is_first_run and not self._unique

    def knows(self, part: int) -> bool:
        """Whether the ids of a part are here; if not, they have to be read, and adopted."""
        return part not in self._forgotten

    def parts(self) -> list[tuple[int, int, int]]:
        """Parts, with when each was used and how many ids it has here."""
        return [(part, self._used.get(part, 0), len(ids)) for part, ids in self._ids.items()]

    def use(self, part: int, now: int) -> None:
        """Note that somebody writes a part, so that others are forgotten before it."""
        if part in self._ids:
            self._used[part] = now

    def forget(self, part: int) -> None:
        """Do without the ids of a part, of which rows are stored."""
        self._size -= len(self._ids.pop(part, ()))
        self._used.pop(part, None)
        self._forgotten.add(part)

    def adopt(self, part: int, other: Ledger) -> None:
        """Take the ids of a part from a ledger that was made of what is stored."""
        if part in self._forgotten:
            self._forgotten.remove(part)
            known = self._ids[part] = other._ids.get(part, set())
            self._size += len(known)

    def recall(self, part: int, ids: Iterable[bytes]) -> None:
        """Note rows of a part that were found stored."""
        if self.can_be_made_again:
            known = self._known(part)
            before = len(known)
            known.update(ids)
            self._size += len(known) - before
        else:
            for each in ids:
                content = each[:HASH_SIZE]
                self._stored[content] = self._stored.get(content, 0) + 1
        self._check_size(0)

    def admit(self, part: int, ids: Sequence[bytes]) -> Sequence[int]:
        """The places of those rows that are new, and count as stored from now on."""
        if not ids:
            return ()
        known = self._ids.get(self._place(part), set())
        # As a rule all of them are new, which is seen in two quick passes.
        fresh = ids if known.isdisjoint(ids) else list(set(ids) - known)
        self._check_size(len(fresh))
        known = self._known(part)
        before = len(known)
        known.update(fresh)
        added = len(known) - before
        self._size += added
        places: Sequence[int]
        places = range(len(ids)) if added == len(ids) else _first_places(ids, fresh)
        return places if self.can_be_made_again else self._not_accounted_for(ids, places)

    def _not_accounted_for(self, ids: Sequence[bytes], places: Iterable[int]) -> list[int]:
        """Of the rows that are new to this run, those that no run before has stored."""
        stored, seen = self._stored, self._seen
        new = []
        for place in places:
            content = ids[place][:HASH_SIZE]
            count = seen[content] = seen.get(content, 0) + 1
            if count > stored.get(content, 0):
                new.append(place)
        return new

    def complete(self, part: int) -> None:
        """Forget the ids of a part: nobody asks for them again."""
        if not self._unique:
            self._size -= len(self._ids.pop(part, ()))
            self._used.pop(part, None)
            self._forgotten.discard(part)

    def _place(self, part: int) -> int:
        return 0 if self._unique else part

    def _known(self, part: int) -> set[bytes]:
        return self._ids.setdefault(self._place(part), set())

    def _check_size(self, more: int) -> None:
        if self.size + more > self._max_ids:
            raise OnceFault(
                f"this step has more than {self._max_ids:,} rows to be told apart (max_ids); make "
                "smaller steps (maxOffsetsPerTrigger in Spark), or raise the limit"
            )


def _first_places(ids: Sequence[bytes], wanted: Iterable[bytes]) -> list[int]:
    """Where each of the wanted ids is for the first time."""
    waiting = set(wanted)
    places = []
    for place, each in enumerate(ids):
        if each in waiting:
            waiting.remove(each)
            places.append(place)
    return places


def cut_ids(joined: bytes) -> Sequence[bytes]:
    """Ids that came one behind the other."""
    return struct.unpack(len(joined) // ID_SIZE * f"{ID_SIZE}s", joined)
