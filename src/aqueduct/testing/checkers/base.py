"""What a checker is: a named function from the facts of a run to the violations it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aqueduct.testing.checkers.facts import Facts
from aqueduct.wire.chanid import Side, describe

Check = Callable[[Facts], Iterator["Violation"]]

CHECKERS: dict[str, Check] = {}
"""All checkers by name, in the order they run."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which, when, by whom, on what."""

    checker: str
    text: str
    time: float | None = None
    side: Side | None = None
    channel: int | None = None
    number: int | None = None

    def __str__(self) -> str:
        parts = [f"[{self.checker}]"]
        if self.time is not None:
            parts.append(f"{self.time:.6f}")
        if self.side is not None:
            parts.append(self.side.name.lower())
        if self.channel is not None:
            parts.append(describe(self.channel))
        if self.number is not None:
            parts.append(f"message {self.number}")
        return f"{' '.join(parts)}: {self.text}"


def checker(check: Check) -> Check:
    """Put a function among the checkers, under its own name."""
    CHECKERS[check.__name__.replace("_", " ")] = check
    return check
