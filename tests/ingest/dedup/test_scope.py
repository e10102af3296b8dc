"""Deduplication of the rows of a job, however often parts and runs are repeated."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aqueduct.ingest.dedup.ledger import Ledger
from aqueduct.ingest.dedup.scope import (
    MAX_ENDED,
    Fingerprint,
    Job,
    Plan,
    ScopeFault,
    StepFault,
    WriteScope,
    check_replay,
    check_stored,
    cut_ids,
    ended_steps,
    fingerprint_of,
    parse_producer_id,
    plan,
    record_ended,
)
from aqueduct.ingest.dedup.spill import SpilledIds
from tests.ingest.jobbing import RUNS, ids_of, shared_out, unique_ids_of

PLENTY = 1_000_000
SEEDS = st.integers(0, 2**32)


class Model:
    """A model of a server: rows in a list, and a ledger that may be lost."""

    def __init__(self, unique: bool, directory: Path, max_recalled: int) -> None:
        self.unique = unique
        self.directory = directory
        self.max_recalled = max_recalled
        self.rows: list[tuple[int, bytes, bytes]] = []
        self.job: Job | None = None
        self.ledger: Ledger | None = None

    def open(self, scope: WriteScope) -> bool:
        """Return whether rows are to be sent."""
        what = plan(self.job, scope)
        if what is Plan.NOTHING_TO_SEND:
            return False
        if what is Plan.NEW_STEP:
            self.job = Job(scope.step, [scope.run], scope.unique, {}, 0)
        elif what is Plan.NEW_RUN:
            assert self.job is not None
            self.job = Job(scope.step, [*self.job.runs, scope.run], scope.unique, {}, 0)
        if what is not Plan.CONTINUE:
            self.ledger = None
        if self.ledger is None or not self.ledger.knows(scope.part):
            self.remember(scope.part, is_new=what is not Plan.CONTINUE)
        return True

    def remember(self, asked: int, is_new: bool) -> None:
        assert self.job is not None
        is_first = len(self.job.runs) == 1
        ledger = Ledger(
            unique=self.unique,
            is_first_run=is_first,
            is_new_run=is_new,
            max_recalled=self.max_recalled,
            spill=lambda ids: SpilledIds(self.directory, ids),
        )
        if not is_new and not ledger.is_rebuildable:
            raise ScopeFault("a new run is needed")
        for part, row_id, _ in self.rows:
            if ledger.is_by_part and part != asked:
                ledger.forget(part)
                ledger.count([row_id])
            else:
                ledger.recall(part, [row_id])
        if self.ledger is None:
            self.ledger = ledger
        self.ledger.adopt(asked, ledger)

    def make_room(self, rng: random.Random) -> None:
        """Evict the ids of a part, even while it is being sent, or spill all ids to a file."""
        if self.ledger is not None and rng.random() < 0.1:
            self.ledger.spill()
        if self.ledger is not None and self.ledger.is_by_part and self.ledger.parts():
            self.ledger.forget(rng.choice(self.ledger.parts())[0])

    def send(self, scope: WriteScope, values: list[bytes], ids: list[bytes], fails: bool) -> None:
        if plan(self.job, scope) is Plan.NOTHING_TO_SEND:
            return
        if self.ledger is None or not self.ledger.knows(scope.part):
            raise ScopeFault("open it again")
        new = self.ledger.admit(scope.part, ids)
        if fails:
            self.ledger = None
            raise ScopeFault("could not be stored")
        self.rows += [(scope.part, ids[at], values[at]) for at in new]

    def complete(self, scope: WriteScope) -> None:
        if self.ledger is None:
            raise ScopeFault("open it again")
        assert self.job is not None
        parts = sorted({*self.job.parts, scope.part})
        self.job = Job(self.job.step, self.job.runs, self.unique, {}, 0, parts)
        self.ledger.complete(scope.part)

    @property
    def stored(self) -> Counter[bytes]:
        return Counter(value for _, _, value in self.rows)


class Driver:
    """Runs a step repeatedly, with random faults."""

    def __init__(
        self, wanted: list[bytes], unique: bool, rng: random.Random, directory: Path
    ) -> None:
        self.wanted = wanted
        self.unique = unique
        self.rng = rng
        self.server = Model(unique, directory, rng.choice((1, PLENTY, PLENTY, PLENTY)))
        self.left = iter(RUNS)
        self.zombies: list[tuple[WriteScope, list[bytes], list[bytes]]] = []
        """Abandoned attempts, and the rows that they still have to send."""
        self.begin_run()

    def begin_run(self) -> None:
        self.run = next(self.left)
        count = self.rng.randint(1, 4)
        rows = self.rng.sample(self.wanted, len(self.wanted))
        choices = [self.rng.randrange(count) for _ in rows]
        self.parts = shared_out(rows, choices, count)

    def attempt(self, part: int, dies: bool) -> bool:
        """Send a part in any order, or some of it; return whether it is complete."""
        scope = WriteScope("job", 1, self.run, part, self.unique)
        values = self.rng.sample(self.parts[part], len(self.parts[part]))
        ids = unique_ids_of(values) if self.unique else ids_of(values)
        if not self.server.open(scope):
            return True
        end = self.rng.randint(0, len(values)) if dies else len(values)
        at = 0
        while at < end:
            size = self.rng.randint(1, 4)
            fails = dies and self.rng.random() < 0.1
            stop = min(at + size, end)
            self.server.send(scope, values[at:stop], ids[at:stop], fails)
            at = stop
            if dies and self.rng.random() < 0.1:
                self.server.ledger = None  # the server was restarted
            if dies and self.rng.random() < 0.1:
                self.server.make_room(self.rng)
        if dies:
            self.zombies.append((scope, values[end:], ids[end:]))
            return False
        self.server.complete(scope)
        return True

    def fail_write(self) -> None:
        """Cause one random fault."""
        if self.rng.random() < 0.2:
            self.begin_run()
        if self.rng.random() < 0.2:
            self.server.ledger = None
        if self.rng.random() < 0.3:
            self.server.make_room(self.rng)
        try:
            if self.zombies and self.rng.random() < 0.3:
                self.server.send(*self.rng.choice(self.zombies), fails=False)
            part = self.rng.randrange(len(self.parts))
            self.attempt(part, dies=self.rng.random() < 0.7)
        except ScopeFault:
            if self.rng.random() < 0.5:
                self.begin_run()

    def finish(self) -> None:
        """Send all parts of one run without faults, and end the step."""
        self.write_all()
        ids = unique_ids_of(self.wanted) if self.unique else ids_of(self.wanted)
        rows, scope = fingerprint_of(b"".join(ids)), WriteScope("job", 1, self.run, 0)
        ledger = self.server.ledger
        if ledger is not None:
            assert ledger.left in (0, None)
            assert ledger.stored == rows
            check_stored(scope, ledger.stored, ledger.left, rows, unique=self.unique)

    def write_all(self) -> None:
        for _ in range(2):
            try:
                for part in self.rng.sample(range(len(self.parts)), len(self.parts)):
                    assert self.attempt(part, dies=False)
                return
            except ScopeFault:
                self.begin_run()
        raise AssertionError("a new run has to work")


@given(st.lists(st.integers(0, 4), max_size=24), st.booleans(), SEEDS.map(random.Random))
@settings(max_examples=1_000, deadline=None)
def test_the_admitted_rows_are_the_expected_rows(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[int],
    unique: bool,
    rng: random.Random,
) -> None:
    if unique:
        contents = sorted(set(contents))
    wanted = [b"row %d" % each for each in contents]
    driver = Driver(wanted, unique, rng, tmp_path_factory.getbasetemp() / "spilled")
    for _ in range(rng.randint(0, 20)):
        driver.fail_write()
        assert driver.server.stored <= Counter(wanted)
    driver.finish()
    assert driver.server.stored == Counter(wanted)
    driver.begin_run()
    driver.finish()
    assert driver.server.stored == Counter(wanted)


SCOPE = WriteScope("job", 5, RUNS[1], 3)


@pytest.mark.parametrize(
    ("job", "what"),
    [
        (None, Plan.NEW_STEP),
        (Job(4, [RUNS[0]], False, {}, 0), Plan.NEW_STEP),
        (Job(4, [RUNS[0]], False, {}, 0, is_over=True), Plan.NEW_STEP),
        (Job(5, [RUNS[0]], False, {}, 0), Plan.NEW_RUN),
        (Job(5, [RUNS[0], RUNS[1]], False, {}, 0), Plan.CONTINUE),
        (Job(5, [RUNS[1]], False, {}, 0, [2, 4]), Plan.CONTINUE),
        (Job(5, [RUNS[1]], False, {}, 0, [2, 3]), Plan.NOTHING_TO_SEND),
        (Job(5, [RUNS[0]], False, {}, 0, [3]), Plan.NEW_RUN),
        (Job(5, [RUNS[0]], False, {}, 0, is_over=True), Plan.NOTHING_TO_SEND),
        (Job(5, [RUNS[1], RUNS[0]], True, {}, 0, is_over=True), Plan.NOTHING_TO_SEND),
    ],
)
def test_the_plan_follows_from_the_journaled_state(job: Job | None, what: Plan) -> None:
    assert plan(job, SCOPE) is what


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (Job(6, [RUNS[1]], False, {}, 0), "step 5 of job 'job' came after its step 6 had begun"),
        (Job(6, [RUNS[1]], False, {}, 0, is_over=True), "came after its step 6"),
        (Job(5, [RUNS[1], RUNS[0]], False, {}, 0), "was superseded by run 00000001, which writes"),
        (Job(5, [RUNS[1]], True, {}, 0), "was begun with unique ids"),
    ],
)
def test_superseded_runs_are_rejected(job: Job, sentence: str) -> None:
    with pytest.raises(ScopeFault, match=sentence):
        plan(job, SCOPE)


@pytest.mark.parametrize(
    ("scope", "sentence"),
    [
        (WriteScope("job", -1, RUNS[0], 0), "invalid step .*: steps are numbered from 0"),
        (WriteScope("job", 2**63, RUNS[0], 0), "invalid step .*: steps are numbered from 0"),
        (WriteScope("job", 0, RUNS[0], -1), "parts are numbered from 0 to 99,999"),
        (WriteScope("job", 0, RUNS[0], 100_000), "parts are numbered"),
        (WriteScope("job", 0, "short", 0), "invalid run 'short': use 8 to 64 hexadecimal"),
        (WriteScope("job", 0, "x" * 32, 0), "invalid run 'x.*: use 8 to 64 hexadecimal"),
        (WriteScope("job", 0, "a" * 65, 0), "use 8 to 64 hexadecimal digits"),
    ],
)
def test_invalid_scopes_are_rejected(scope: WriteScope, sentence: str) -> None:
    with pytest.raises(ScopeFault, match=sentence):
        scope.check()


def test_a_producer_id_names_job_step_run_and_part() -> None:
    scope = WriteScope("a.job.with-dots", 17, RUNS[2], 4)
    assert scope.producer_id == "a.job.with-dots.17.00000003.4"
    assert parse_producer_id(scope.producer_id) == ("a.job.with-dots", 17, "00000003", 4)
    for other in ("p", "a.b.c.d", "job.1.00000003.x", "job.1.003.4", "job.²." + "0" * 8 + ".4"):
        assert parse_producer_id(other) is None


def test_recalled_ids_spill_above_the_limit(tmp_path: Path) -> None:
    ids = ids_of([b"%d" % number for number in range(10)])
    for is_first in (True, False):
        ledger = Ledger(
            unique=False,
            is_first_run=is_first,
            max_recalled=3,
            spill=lambda known: SpilledIds(tmp_path, known),
        )
        ledger.recall(0, ids[:3])
        assert (ledger.size, ledger.is_spilled) == (3, False)
        ledger.recall(0, ids[3:6])
        assert (ledger.size, ledger.is_spilled) == (0, True)
        assert list(ledger.admit(0, [*ids[4:8], ids[7]])) == [2, 3]
        assert list(ledger.admit(0, ids)) == [8, 9]
        assert ledger.stored == fingerprint_of(b"".join(ids))
        assert ledger.left == 0


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=40), st.integers(0, 40), SEEDS)
def test_a_fingerprint_does_not_depend_on_order_parts_and_occurrences(
    contents: list[bytes], cut: int, seed: int
) -> None:
    rng = random.Random(seed)
    ids = [each + rng.randbytes(4) for each in contents]
    whole = fingerprint_of(b"".join(ids))
    total = sum(int.from_bytes(each, "little") for each in contents) % 2**128
    assert whole == Fingerprint(len(ids), total.to_bytes(16, "little"))
    mixed = [each + rng.randbytes(4) for each in rng.sample(contents, len(contents))]
    parts = fingerprint_of(b"".join(mixed[:cut])) + fingerprint_of(b"".join(mixed[cut:]))
    assert parts == whole


@pytest.mark.parametrize("count", [0, 1, 2, 3, 255, 256, 257, 511, 513, 5_000])
def test_a_fingerprint_is_the_sum_of_all_content_hashes(count: int) -> None:
    joined = random.Random(count).randbytes(20 * count)
    total = sum(int.from_bytes(each[:16], "little") for each in cut_ids(joined)) % 2**128
    assert fingerprint_of(joined) == Fingerprint(count, total.to_bytes(16, "little"))


def test_a_fingerprint_tells_how_often_a_row_occurs() -> None:
    scope, twice, thrice = (fingerprint_of(count * bytes(range(20))) for count in (1, 2, 3))
    assert len({scope.digest, twice.digest, thrice.digest}) == 3
    many = fingerprint_of(10_001 * bytes(range(20)))
    assert many == sum((fingerprint_of(73 * bytes(range(20))) for _ in range(137)), Fingerprint())


@pytest.mark.parametrize("wrong", [Fingerprint(-1), Fingerprint(2**63), Fingerprint(1, b"short")])
def test_an_invalid_fingerprint_is_rejected(wrong: Fingerprint) -> None:
    with pytest.raises(ScopeFault, match="invalid fingerprint: the count is"):
        wrong.check()


def test_fingerprints_of_the_last_ended_steps_are_kept() -> None:
    ended = b""
    for step in range(200):
        ended = record_ended(ended, step, Fingerprint(step) if step % 2 else None)
    known = ended_steps(ended)
    assert list(known) == list(range(200 - MAX_ENDED, 200))
    assert (known[198], known[199]) == (None, Fingerprint(199))
    job = Job(200, [RUNS[0]], False, {}, 0, ended=ended)
    assert plan(job, WriteScope("job", 151, RUNS[5], 0)) is Plan.NOTHING_TO_SEND
    assert plan(job, WriteScope("job", 200, RUNS[0], 0)) is Plan.CONTINUE
    for step in (10, 150):  # forgotten, and ended without a fingerprint: neither can be compared
        with pytest.raises(ScopeFault, match=f"step {step} of job 'job' came after its step 200"):
            plan(job, WriteScope("job", step, RUNS[5], 0))


ROWS = fingerprint_of(b"".join(ids_of([b"1", b"2"])))
OTHERS = fingerprint_of(b"".join(ids_of([b"1", b"3"])))


def test_a_replayed_step_must_have_the_same_rows() -> None:
    check_replay("query", 7, ROWS, ROWS)
    for rows, words in ((OTHERS, "2 different rows"), (Fingerprint(), "0"), (ROWS + OTHERS, "4")):
        sentence = f"step 7 of job 'query' ended with 2 rows and was replayed with {words}:"
        with pytest.raises(StepFault, match=sentence):
            check_replay("query", 7, ROWS, rows)


@pytest.mark.parametrize(
    ("stored", "left", "rows", "unique", "sentence"),
    [
        (ROWS, 0, ROWS, False, ""),
        (ROWS, None, ROWS, True, ""),
        (ROWS, 0, OTHERS, False, "has 2 stored rows, but run 00000002 ends it with 2 other"),
        (ROWS + OTHERS, 0, ROWS, False, "has 4 stored rows, but run 00000002 ends it with 2:"),
        (ROWS, 0, ROWS + ROWS, False, "the server has lost rows"),
        (ROWS, 0, ROWS + ROWS, True, ""),
        (ROWS, None, ROWS + OTHERS, True, ""),
        (ROWS, 1, ROWS + OTHERS, True, "ends it with 4: an earlier run or attempt had other rows"),
        (ROWS + OTHERS, None, ROWS, True, "failOnExtraRows=false"),
    ],
)
def test_a_step_ends_with_the_rows_that_are_stored(
    stored: Fingerprint, left: int | None, rows: Fingerprint, unique: bool, sentence: str
) -> None:
    with pytest.raises(StepFault, match=sentence) if sentence else nullcontext():
        check_stored(SCOPE, stored, left, rows, unique=unique)


def test_concatenated_ids_are_split() -> None:
    ids = ids_of([b"1", b"1", b"2"])
    assert list(cut_ids(b"".join(ids))) == ids
    assert not cut_ids(b"")
