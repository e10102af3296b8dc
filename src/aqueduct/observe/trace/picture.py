"""Draws channels and the fates of their messages for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from rich.text import Text

DELIVERED = "delivered"
DROPPED = "dropped"
NACKED = "nacked"
LOST = "lost"
OPEN = "open"

# mark, mark in ASCII, colour, meaning
LEGEND = {
    DELIVERED: ("✓", "+", "green", "delivered, and taken by the application"),
    DROPPED: ("⌫", "<", "yellow", "acked, but dropped unread when its channel was closed"),
    NACKED: ("✗", "x", "red", "nacked: never processed, and the sender knows"),
    LOST: ("☠", "L", "magenta", "lost with a channel above it"),
    OPEN: ("·", ".", "dim", "open when the run ended"),
}

_COLOURS = {
    "finished": "green",
    "cancelled": "yellow",
    "receiver closed": "yellow",
    "closed": "yellow",
    "lost in transit": "magenta",
    "open": "dim",
}
_SHOWN_ONE_BY_ONE = 6


class Marks:
    """Draws fates as symbols, or in ASCII."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._mark = 1 if ascii_only else 0
        self._arrow = "->" if ascii_only else "→"
        self._times = "*" if ascii_only else "\N{MULTIPLICATION SIGN}"

    def draw(self, fates: Iterable[str]) -> Text:
        """Return a mark per message, or a count where many in a row share a fate."""
        text = Text()
        for fate, group in groupby(fates):
            length = sum(1 for _ in group)
            mark, colour = LEGEND[fate][self._mark], LEGEND[fate][2]
            one_by_one = length <= _SHOWN_ONE_BY_ONE
            text.append(mark * length if one_by_one else f"{mark}{self._times}{length} ", colour)
        return text

    def title(self, name: str, sender: str, receiver: str, mode: str | None, ending: str) -> Text:
        """Return the line that describes a channel."""
        text = Text()
        text.append(name, style="bold")
        text.append(f"  {sender} {self._arrow} {receiver}  ")
        if mode is not None:
            text.append(f"{mode}, ")
        text.append(ending, style=_COLOURS.get(ending, "red"))
        return text

    def legend(self, counts: Mapping[str, int]) -> Text:
        """Return the meaning and the count of each mark that occurs."""
        text = Text()
        for fate, entry in LEGEND.items():
            if counts.get(fate):
                text.append(f"{entry[self._mark]} ", style=entry[2])
                text.append(f"{counts[fate]:4}  {entry[3]}\n")
        return text
