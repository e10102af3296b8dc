"""Which messages leave first: priority classes, and fair shares within a class.

Theory of operation. Datagrams leave before messages, and messages of a more urgent class before
those of the others (AQ-PRIO-3). Within a class the senders take turns, a quantum of bytes each
(deficit round robin): a stream can be cut anywhere, so that a turn ends to the byte. So that no
class starves, what leaves is counted in quanta, and in each cycle of 16 every class has one that it
gets first if it waits (AQ-PRIO-4). A transport without room for messages may still take datagrams:
they use up no turn of a class that waits.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

CLASSES: Final = 8
"""Priority classes: 0 is the most urgent, 7 the least."""
DEFAULT_PRIORITY: Final = 4

_CYCLE: Final = 2 * CLASSES
"""Quanta in which each class has one of its own."""


def check_priority(priority: object) -> int:
    """Return a priority; raise `TypeError` or `ValueError` if it is none (AQ-PRIO-1)."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(f"a priority is an int from 0 to {CLASSES - 1}, not {priority!r}")
    if not 0 <= priority < CLASSES:
        raise ValueError(
            f"a priority is from 0, which leaves first, to {CLASSES - 1}, not {priority}"
        )
    return priority


class Flow:
    """What one sender has to send, as far as the scheduler knows it."""

    __slots__ = ("deficit", "is_waiting", "priority")

    def __init__(self, priority: int = DEFAULT_PRIORITY) -> None:
        self.priority = priority
        """Set it by `Scheduler.move`."""
        self.deficit = 0
        """Bytes that are left of its quantum."""
        self.is_waiting = False


class Scheduler:
    """The flows that wait, and whose turn it is."""

    __slots__ = ("_classes", "_left", "_over", "_turn", "quantum", "waiting")

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        """Bytes of a turn; it may change at any time."""
        self._classes: list[OrderedDict[Flow, None]] = [OrderedDict() for _ in range(CLASSES)]
        self._turn = 0
        """The current quantum of the cycle; in the odd ones, one class goes first."""
        self._left = quantum
        """Bytes that are left of it."""
        self._over = 0
        """Bytes by which the turn before a class's own was exceeded, less than 0: they shorten the
        turn behind it."""
        self.waiting = 0
        """How many flows wait."""

    def add(self, flow: Flow) -> None:
        """Let a flow wait behind the others of its class, with a full quantum."""
        if not flow.is_waiting:
            flow.is_waiting = True
            flow.deficit = self.quantum
            self._classes[flow.priority][flow] = None
            self.waiting += 1

    def remove(self, flow: Flow) -> None:
        """Remove a flow that has nothing to send, or cannot send it."""
        if flow.is_waiting:
            flow.is_waiting = False
            del self._classes[flow.priority][flow]
            self.waiting -= 1

    def move(self, flow: Flow, priority: int) -> None:
        """Change the class of a flow."""
        was_waiting = flow.is_waiting
        self.remove(flow)
        flow.priority = priority
        if was_waiting:
            self.add(flow)

    def clear(self) -> None:
        """Remove all flows."""
        for flows in self._classes:
            for flow in flows:
                flow.is_waiting = False
            flows.clear()
        self.waiting = 0

    def flows(self) -> list[Flow]:
        """Return the flows that wait, by class."""
        return [flow for flows in self._classes for flow in flows]

    def next(self, *, with_datagrams: bool) -> Flow | None:
        """Return the flow whose turn it is; None if nothing waits, or a datagram is first."""
        if self._turn % 2:
            favoured = self._classes[self._turn // 2]
            if favoured:
                return next(iter(favoured))
        if not with_datagrams and self.waiting:
            for flows in self._classes:
                if flows:
                    return next(iter(flows))
        return None

    def grant(self, flow: Flow, *, with_datagrams: bool) -> int:
        """Return how many bytes the next flow may send at once."""
        if self.waiting == 1 and not with_datagrams:
            return 1 << 62
        return flow.deficit if flow.deficit < self._left else self._left

    def spend(self, size: int) -> None:
        """Count bytes of a flow that have left."""
        self._left -= size
        if self._left <= 0:
            # Never past a turn: what is larger than a quantum must not skip that of a class.
            over = max(self._left + self._over, 1 - self.quantum)
            self._turn = (self._turn + 1) % _CYCLE
            self._over = over if self._is_own_turn() else 0
            self._left = self.quantum + over - self._over

    def spend_datagram(self, size: int) -> None:
        """Count bytes of a datagram that has left."""
        if not self._is_own_turn():
            self.spend(size)

    def charge(self, flow: Flow, size: int) -> None:
        """Count bytes that the next flow has sent; it still has more to send."""
        self.spend(size)
        flow.deficit -= size
        if flow.deficit <= 0:
            flow.deficit = self.quantum
            self._classes[flow.priority].move_to_end(flow)

    def _is_own_turn(self) -> bool:
        """Return whether a class that waits has the current turn for itself."""
        return self._turn % 2 == 1 and bool(self._classes[self._turn // 2])
