"""Checkers: named functions from the facts of a run to the violations that they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.wire.chanid import Side, describe

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise of the protocol: what, when and where."""

    text: str
    time: float | None = None
    side: Side | None = None
    channel: int | None = None
    number: int | None = None
    checker: str = ""
    """The name of the checker that found it, set by `CheckerRegistry.run`."""

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


Check = Callable[[F], Iterator[Violation]]


class CheckerRegistry(dict[str, Check[F]], Generic[F]):
    """The checkers of one protocol by name, in the order in which they run."""

    def add(self, check: Check[F]) -> Check[F]:
        """Register a function under its own name; used as a decorator."""
        self[check.__name__.replace("_", " ")] = check
        return check

    def run(self, facts: F) -> list[Violation]:
        """Return the violations that all checkers find, in their order."""
        return [
            replace(violation, checker=name)
            for name, check in self.items()
            for violation in check(facts)
        ]


CHECKERS: CheckerRegistry[RunFacts] = CheckerRegistry()
checker = CHECKERS.add
