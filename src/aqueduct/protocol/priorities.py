"""Priority classes of senders: which messages leave first when not all of them can."""

from __future__ import annotations

from typing import Final

CLASSES: Final = 8
"""Priority classes: 0 is the most urgent, 7 the least."""
DEFAULT_PRIORITY: Final = 4


def check_priority(priority: object) -> int:
    """Return a priority; raise `TypeError` or `ValueError` if it is none (AQ-PRIO-1)."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(f"a priority is an int from 0 to {CLASSES - 1}, not {priority!r}")
    if not 0 <= priority < CLASSES:
        raise ValueError(
            f"a priority is from 0, which leaves first, to {CLASSES - 1}, not {priority}"
        )
    return priority
