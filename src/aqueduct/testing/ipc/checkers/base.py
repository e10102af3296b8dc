"""The registry of the checkers of ScalableIPC."""

from __future__ import annotations

from aqueduct.testing.checkers.base import CheckerRegistry, Violation
from aqueduct.testing.ipc.checkers.facts import IpcFacts, IpcMessageFacts

CHECKERS: CheckerRegistry[IpcFacts] = CheckerRegistry()
checker = CHECKERS.add


def about(message: IpcMessageFacts, text: str, time: float | None = None) -> Violation:
    """Return a violation that concerns one message."""
    sent = message.sent
    when = sent.time if time is None else time
    whose = f"{sent.message[:3].hex()} of {sent.endpoint}/{sent.life} to {sent.remote}"
    return Violation(f"{whose} {text}", when)
