"""Checkers of the channel protocol: its promises, tested on the record of a run."""

from __future__ import annotations

from aqueduct.testing.checkers import (
    credit,
    delivery,
    endings,
    fates,
    lineage,
    streams,
    timing,
)
from aqueduct.testing.checkers.base import CHECKERS, Violation
from aqueduct.testing.checkers.endings import EVERYTHING_ENDS
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.record import Record

__all__ = ["CHECKERS", "EVERYTHING_ENDS", "RunFacts", "Violation", "check"]

MODULES = (delivery, fates, lineage, credit, timing, streams, endings)


def check(record: Record) -> list[Violation]:
    """Return all violations in a run, in the order of the checkers."""
    return CHECKERS.run(RunFacts(record))
