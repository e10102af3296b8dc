"""Checkers of the channel protocol: its promises, tested on the record of a run."""

from __future__ import annotations

from aqueduct.testing.checkers import (
    credit,
    delivery,
    endings,
    fates,
    lineage,
    priorities,
    streams,
    timing,
)
from aqueduct.testing.checkers.base import CHECKERS, Violation
from aqueduct.testing.checkers.endings import EVERYTHING_ENDS
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.record import Record

__all__ = ["CHECKERS", "EVERYTHING_ENDS", "RunFacts", "Violation", "check"]

OF_DRAFT = (EVERYTHING_ENDS, "only documented errors")
"""The checkers that also judge a side that knows only the draft."""

MODULES = (delivery, fates, lineage, credit, timing, streams, priorities, endings)


def check(record: Record) -> list[Violation]:
    """Return all violations in a run, in the order of the checkers.

    A side that knows only the draft breaks many promises of this specification. Of it, only the end
    is checked: whether our side answered its ghosts, so that nothing of them is left.
    """
    found = CHECKERS.run(RunFacts(record))
    if record.draft is None:
        return found
    return [
        violation
        for violation in found
        if violation.side != record.draft or violation.checker in OF_DRAFT
    ]
