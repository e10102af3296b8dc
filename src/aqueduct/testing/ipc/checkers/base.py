"""What a checker of ScalableIPC is: a named function from the facts of a run to violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.ipc.checkers.facts import Facts, MessageFacts

Check = Callable[[Facts], Iterator[Violation]]

CHECKERS: dict[str, Check] = {}
"""All checkers by name, in the order they run."""


def checker(check: Check) -> Check:
    """Put a function among the checkers, under its own name."""
    CHECKERS[check.__name__.replace("_", " ")] = check
    return check


def about(message: MessageFacts, name: str, text: str, time: float | None = None) -> Violation:
    """A promise about one message that was broken."""
    sent = message.sent
    when = sent.time if time is None else time
    whose = f"{sent.message[:3].hex()} of {sent.who}/{sent.life} to {sent.remote}"
    return Violation(name, f"{whose} {text}", when)
