"""Checkers of ScalableIPC: its promises, tested on the record of a run."""

from __future__ import annotations

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.ipc.checkers import delivery, endings, sizes, timing
from aqueduct.testing.ipc.checkers.base import CHECKERS
from aqueduct.testing.ipc.checkers.facts import IpcFacts
from aqueduct.testing.ipc.record import IpcRecord

__all__ = ["CHECKERS", "IpcFacts", "check"]

MODULES = (delivery, endings, sizes, timing)


def check(record: IpcRecord) -> list[Violation]:
    """Return all violations in a run, in the order of the checkers."""
    return CHECKERS.run(IpcFacts(record))
