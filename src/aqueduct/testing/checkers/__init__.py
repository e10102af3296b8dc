"""Checkers: promises of the protocol, tested on the record of a run, with no look into a core."""

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
from aqueduct.testing.checkers.facts import Facts
from aqueduct.testing.record import Record

__all__ = ["CHECKERS", "EVERYTHING_ENDS", "Facts", "Violation", "check"]

MODULES = (delivery, fates, lineage, credit, timing, streams, endings)


def check(record: Record) -> list[Violation]:
    """Everything that is wrong with a run, in the order of the checkers."""
    facts = Facts(record)
    return [violation for find in CHECKERS.values() for violation in find(facts)]
