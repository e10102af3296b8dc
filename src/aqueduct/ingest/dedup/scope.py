"""Deduplicates the rows of jobs whose tasks or steps are retried: pure decisions.

A job has steps, one or more runs write a step, and a run distributes the rows of the step over
parts, each of which may be attempted several times. Within a run a part always has the same rows,
in any order; across runs only the rows of the whole step are the same. The id of a row is a hash
of its content and the number of equal rows before it in the attempt.

Within a run, rows with the same part and the same id are duplicates. A later run of the step must
account for the rows that earlier runs have stored, whichever part sends them: of the rows with
equal content, as many are skipped as are stored, and the rest are new.

An ended step keeps a `Fingerprint` of its rows. A replayed step (a replayed batch, a restored or
copied checkpoint) stores nothing, and succeeds only if its fingerprint is the same.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

import msgspec

from aqueduct.errors import AqueductError

ID_HEADER = "aqueduct-id"
"""The header of a row that holds its id."""
ID_SIZE = 20
HASH_SIZE = 16
"""The bytes of an id that are the content hash; the rest counts rows with equal content."""
MAX_PARTS = 100_000
"""Parts of one step; also the completed parts in unfinished steps of all jobs of a topic, because
each change of a job journals all of its parts."""
MAX_STEP = 2**63 - 1
MAX_RUNS = 100
"""Former runs of a step that are remembered, so that they are rejected."""
MAX_ENDED = 128
"""Ended steps of a job whose fingerprints are kept. Spark keeps 100 batches in a checkpoint
(spark.sql.streaming.minBatchesToRetain), so this covers every batch that it can replay."""
RUN_SHOWN = 8
"""Characters of a run in a producer id."""
_HEX = frozenset("0123456789abcdef")


class ScopeFault(AqueductError):
    """Rows must not be stored; the text says why."""


class StepFault(ScopeFault):
    """The rows of a step differ from those stored for it."""


class ExtraRows(StepFault):
    """A step has rows that the run which ends it lacks; callers may accept them."""


class Fingerprint(msgspec.Struct, frozen=True):
    """Count and hash of rows, independent of their order and of their distribution over parts.

    The digest is the sum, modulo 2^128, of the content hashes of the rows (the first 16 bytes of
    their ids, little-endian). Unlike XOR, a sum does not cancel equal rows. Fingerprints of parts
    are added to get the one of the step.
    """

    count: int = 0
    digest: bytes = bytes(HASH_SIZE)

    def __add__(self, other: Fingerprint) -> Fingerprint:
        total = int.from_bytes(self.digest, "little") + int.from_bytes(other.digest, "little")
        return Fingerprint(self.count + other.count, _digest(total))

    def check(self) -> None:
        """Raise `ScopeFault` if the fingerprint is malformed."""
        if not 0 <= self.count <= MAX_STEP or len(self.digest) != HASH_SIZE:
            raise ScopeFault(
                f"invalid fingerprint: the count is {self.count}, the digest has "
                f"{len(self.digest)} bytes, not {HASH_SIZE}; pass the sum of Producer.fingerprint"
            )


_LANES = 256
"""Ids added in parallel, each in a field of 160 bits; a power of 2."""
_LANE_BITS = 8 * ID_SIZE
_CONTENTS = int.from_bytes((HASH_SIZE * b"\xff" + bytes(ID_SIZE - HASH_SIZE)) * _LANES, "little")
"""Masks the content hashes of ids: the upper 32 bits of each field are left for the carries."""


def fingerprint_of(joined: bytes) -> Fingerprint:
    """Return the fingerprint of rows, from their concatenated ids."""
    # Adding ids in long integers takes a seventh of the time of a loop over the ids.
    fields = 0
    for start in range(0, len(joined), _LANES * ID_SIZE):
        ids = joined[start : start + _LANES * ID_SIZE]
        fields += int.from_bytes(ids, "little") & _CONTENTS
    count = len(joined) // ID_SIZE
    lanes = min(_LANES, 1 << (count - 1).bit_length())
    while lanes > 1:
        lanes //= 2
        bits = lanes * _LANE_BITS
        fields = (fields >> bits) + (fields & ((1 << bits) - 1))
    return Fingerprint(count, _digest(fields))


def _digest(total: int) -> bytes:
    return (total % (1 << 8 * HASH_SIZE)).to_bytes(HASH_SIZE, "little")


class WriteScope(msgspec.Struct, frozen=True):
    """The job, step, run and part of the rows that a producer sends; each row is stored once."""

    job: str
    """The name of the job: up to 100 letters, digits, dots, dashes and underscores."""
    step: int
    """The number of the step; steps of a job have rising numbers."""
    run: str
    """A random id (``uuid.uuid4().hex``) of one attempt to write the whole step."""
    part: int
    """The number of the part, as this run distributes the rows."""
    unique: bool = False
    """Whether each row id occurs once in the step, whatever its part and run."""

    @property
    def producer_id(self) -> str:
        """The producer id of the rows."""
        return f"{self.job}.{self.step}.{self.run[:RUN_SHOWN]}.{self.part}"

    def check(self) -> None:
        """Raise `ScopeFault` for an invalid step, part or run; the name is checked elsewhere."""
        if not 0 <= self.step <= MAX_STEP:
            raise ScopeFault(f"invalid step {self.step}: steps are numbered from 0")
        if not 0 <= self.part < MAX_PARTS:
            raise ScopeFault(
                f"invalid part {self.part}: parts are numbered from 0 to {MAX_PARTS - 1:,}"
            )
        check_run(self.run)


def check_run(run: str) -> None:
    """Raise `ScopeFault` unless the id of a run is valid."""
    if not RUN_SHOWN <= len(run) <= 64 or not _HEX.issuperset(run):
        raise ScopeFault(
            f"invalid run {run[:80]!r}: use {RUN_SHOWN} to 64 hexadecimal digits, such as "
            "uuid.uuid4().hex"
        )


def parse_producer_id(producer_id: str) -> tuple[str, int, str, int] | None:
    """Return job, step, prefix of the run, and part; None for the id of another producer."""
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
    """The journaled state of a job."""

    step: int
    """The current step."""
    runs: list[str]
    """The runs of the step, in order; the last one may still write."""
    unique: bool
    offsets: dict[int, int]
    """By partition, its end when the step began: the rows of the step have later offsets."""
    time: int
    """When the state was journaled, in microseconds since 1970."""
    parts: list[int] = []
    """The parts that the last run has completed, in order."""
    is_over: bool = False
    """Whether the step has ended."""
    is_dense: bool = False
    """Whether the job ends every step in this topic, also steps without rows."""
    began: int = 0
    """When the step began, in microseconds since 1970; 0 if unknown."""
    ended: bytes = b""
    """Packed fingerprints of the last ended steps, see `record_ended`."""


_ENDED = struct.Struct(f"<QQ{HASH_SIZE}s")
_UNKNOWN = 2**64 - 1
"""The count of a step that ended without a fingerprint."""


def record_ended(ended: bytes, step: int, rows: Fingerprint | None) -> bytes:
    """Add an ended step to the packed fingerprints, and drop those beyond MAX_ENDED."""
    count, digest = (_UNKNOWN, bytes(HASH_SIZE)) if rows is None else (rows.count, rows.digest)
    return (ended + _ENDED.pack(step, count, digest))[-MAX_ENDED * _ENDED.size :]


def ended_steps(ended: bytes) -> dict[int, Fingerprint | None]:
    """Return the fingerprints by step; None for a step that ended without one."""
    found = _ENDED.iter_unpack(ended[: len(ended) // _ENDED.size * _ENDED.size])
    return {
        step: None if count == _UNKNOWN else Fingerprint(count, digest)
        for step, count, digest in found
    }


class Plan(enum.Enum):
    """What to do when a producer opens a part."""

    NEW_STEP = enum.auto()
    NEW_RUN = enum.auto()
    CONTINUE = enum.auto()
    NOTHING_TO_SEND = enum.auto()
    """The rows are stored, or the fingerprint comparison at the end fails."""


def plan(job: Job | None, scope: WriteScope) -> Plan:
    """Return what to do for a producer; raise `ScopeFault` if a later run or step exists."""
    if job is None or scope.step > job.step:
        return Plan.NEW_STEP
    if is_ended(job, scope.step):
        return Plan.NOTHING_TO_SEND
    check_step(job, scope.job, scope.step, scope.run)
    if scope.unique != job.unique:
        raise ScopeFault(
            f"step {job.step} of job {scope.job!r} was begun with "
            f"{'unique ids' if job.unique else 'content ids'}: end it with the same kind of ids, "
            "and change the kind with the next step"
        )
    if scope.run != job.runs[-1]:
        return Plan.NEW_RUN
    return Plan.NOTHING_TO_SEND if scope.part in job.parts else Plan.CONTINUE


def is_ended(job: Job, step: int) -> bool:
    """Return whether a step has ended; of earlier steps, only those with a kept fingerprint."""
    if step == job.step:
        return job.is_over
    return step < job.step and ended_steps(job.ended).get(step) is not None


def check_step(job: Job, name: str, step: int, run: str) -> None:
    """Raise if a job is at a later step, or has been taken over by another run."""
    if step < job.step:
        raise ScopeFault(
            f"step {step} of job {name!r} came after its step {job.step} had begun: an older or "
            "copied checkpoint is in use, or a job name was reused. No row was stored. Continue "
            "from the newest checkpoint, or use another job (in Spark, a new checkpoint or "
            "another writeId)"
        )
    if step == job.step and not job.is_over and run in job.runs[:-1]:
        raise ScopeFault(
            f"run {run[:RUN_SHOWN]} of step {step} of job {name!r} was superseded by run "
            f"{job.runs[-1][:RUN_SHOWN]}, which writes the step again"
        )


def check_replay(name: str, step: int, known: Fingerprint, rows: Fingerprint) -> None:
    """Raise `StepFault` unless a replayed step has the rows that it had when it ended."""
    if known != rows:
        others = " different rows" if known.count == rows.count else ""
        raise StepFault(
            f"step {step} of job {name!r} ended with {known.count:,} rows and was replayed with "
            f"{rows.count:,}{others}: an older or copied checkpoint is in use, or a job name was "
            "reused. No replayed row was stored. Continue from the newest checkpoint, or use "
            "another job (in Spark, a new checkpoint or another writeId)"
        )


def check_stored(
    scope: WriteScope, stored: Fingerprint, left: int | None, rows: Fingerprint, *, unique: bool
) -> None:
    """Raise `StepFault` if the stored rows of a step differ from those of the run that ends it.

    ``left`` is the number of rows of earlier runs that this run did not send, None if unknown.
    With unique ids a row that is sent twice is stored once, so a smaller stored count proves
    nothing. An equal or larger count with another digest proves rows of earlier runs.
    """
    if stored == rows:
        return
    found = (
        f"step {scope.step} of job {scope.job!r} has {stored.count:,} stored rows, but run "
        f"{scope.run[:RUN_SHOWN]} ends it with {rows.count:,}"
    )
    if stored.count < rows.count and not (unique and stored.count):
        raise StepFault(
            f"{found}: the server has lost rows, or is another server. The step stays open: run it "
            "again (in Spark, restart the query)"
        )
    if left or not unique or stored.count >= rows.count:
        others = " others" if stored.count == rows.count else ""
        raise ExtraRows(
            f"{found}{others}: an earlier run or attempt had other rows. They stay stored, and the "
            "step stays open. Produce the same rows in each run (in Spark, use the same "
            "checkpoint, or idColumn), or accept the rows of both (allow_extra=True; in Spark, "
            "option failOnExtraRows=false)"
        )


class Attempt:
    """One producer that writes a part, from when it is opened until it has ended."""

    __slots__ = ("is_open", "job", "part")

    def __init__(self, scope: WriteScope) -> None:
        self.job = scope.job
        self.part = scope.part
        self.is_open = True
        """Set to False, by any thread, when the producer has ended."""


def must_resend(scope: WriteScope) -> str:
    """Return the error text for a part whose ids were dropped."""
    return (
        f"the server dropped the row ids of step {scope.step} of job {scope.job!r}: send all rows "
        "of this part again"
    )


def unknown_run(scope: WriteScope) -> str:
    """Return the error text for a reconnecting producer whose run is unknown."""
    return (
        f"run {scope.run[:RUN_SHOWN]} of step {scope.step} of job {scope.job!r} has written "
        "before, but this server does not know it: it lost its data, or is another server; run "
        "the step again from its beginning"
    )


def lost_run(scope: WriteScope) -> str:
    """Return the error text for a second or later run whose ids were lost."""
    return (
        f"the server lost the row ids of run {scope.run[:RUN_SHOWN]}, which was not the first run "
        f"of step {scope.step} of job {scope.job!r}: it was restarted, failed to store records, or "
        "needed the memory. The step has to be run again by a new run (restart the query)"
    )


def cut_ids(joined: bytes) -> Sequence[bytes]:
    """Split concatenated ids."""
    return struct.unpack(len(joined) // ID_SIZE * f"{ID_SIZE}s", joined)
