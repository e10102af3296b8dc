"""Checkers of ScalableIPC: its promises, tested on the record of a run, not on a core."""

from __future__ import annotations

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.ipc.checkers import delivery, endings, sizes, timing
from aqueduct.testing.ipc.checkers.base import CHECKERS
from aqueduct.testing.ipc.checkers.facts import Facts
from aqueduct.testing.ipc.record import Record

__all__ = ["CHECKERS", "Facts", "check"]

MODULES = (delivery, endings, sizes, timing)


def check(record: Record) -> list[Violation]:
    """Everything that is wrong with a run, in the order of the checkers."""
    facts = Facts(record)
    return [violation for find in CHECKERS.values() for violation in find(facts)]
