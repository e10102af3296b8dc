"""Which row ids of a step stay in memory."""

from __future__ import annotations

from aqueduct.ingest.dedup.ledger import Ledger
from aqueduct.ingest.dedup.scope import Attempt, WriteScope, fingerprint_of
from tests.ingest.jobbing import RUNS, ids_of


def attempt_of(part: int) -> Attempt:
    return Attempt(WriteScope("job", 0, RUNS[0], part))


def test_a_part_whose_ids_were_evicted_takes_no_more_memory() -> None:
    ledger = Ledger(unique=False, is_first_run=True)
    attempt = attempt_of(1)
    ledger.open(1, attempt)
    ids = ids_of([b"%d" % number for number in range(9)])
    assert len(ledger.admit(1, ids[:3], attempt)) == 3
    ledger.forget(1)
    assert len(ledger.admit(1, ids[3:6], attempt)) == 3
    assert ledger.size == 0
    ledger.open(1, attempt_of(1))  # reads the rows back
    assert len(ledger.admit(1, ids[6:], attempt)) == 3
    assert ledger.size == 3
    assert ledger.stored == fingerprint_of(b"".join(ids))


def test_an_attempt_that_ended_without_rows_does_not_pin_the_ids_of_the_next() -> None:
    ledger = Ledger(unique=False, is_first_run=True)
    first, second = attempt_of(1), attempt_of(1)
    ledger.open(1, first)
    first.is_open = False
    ledger.open(1, second)
    ledger.admit(1, ids_of([b"row"]), second)
    assert ledger.can_forget(1)


def test_an_attempt_that_may_still_write_pins_the_ids_of_its_part() -> None:
    ledger = Ledger(unique=False, is_first_run=True)
    second = attempt_of(1)
    ledger.open(1, attempt_of(1))
    ledger.open(1, second)
    ledger.admit(1, ids_of([b"row"]), second)
    assert not ledger.can_forget(1)


def test_an_attempt_that_stored_rows_pins_the_ids_of_its_part() -> None:
    ledger = Ledger(unique=False, is_first_run=True)
    first, second = attempt_of(1), attempt_of(1)
    ledger.open(1, first)
    ids = ids_of([b"one", b"two"])
    ledger.admit(1, ids[:1], first)
    first.is_open = False
    ledger.open(1, second)
    assert list(ledger.admit(1, ids, second)) == [1]
    assert not ledger.can_forget(1)
