"""Read slots, shared fairly over connections.

A slot is the right to have a range of rows open, which takes memory. A holder that waits for its
client, not for the disk, is idle: it loses its slot when another holder needs one. To resume, it
has to read its rows again. Resumed holders therefore read only a few at a time, or slow clients
would occupy all threads and the disk with reads that are repeated for each batch they take.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from itertools import chain
from typing import Protocol


class Holder(Protocol):
    """An object that may hold a slot."""

    has_slot: bool
    was_evicted: bool
    """Whether it lost its slot while it was idle; reset by the holder when its client keeps up."""

    @property
    def size(self) -> int:
        """Bytes that it keeps in memory."""

    @property
    def connection(self) -> Hashable:
        """The connection whose share of the slots this holder uses."""

    def evict(self) -> None:
        """Free all memory that it holds."""


_Queue = OrderedDict[Hashable, deque[tuple[asyncio.Future[None], Holder]]]
"""Waiting holders by connection, in round-robin order."""


class Slots:
    """A pool of slots with a limit per connection and a queue of waiting holders."""

    def __init__(self, count: int, per_connection: int, idle_bytes: int) -> None:
        """``per_connection``: the limit of each; ``idle_bytes``: memory of all idle holders."""
        self.free = count
        self._per_connection = per_connection
        self._idle_bytes = idle_bytes
        self._held: dict[Hashable, int] = {}
        """By connection, the number of slots that it holds; no entry for 0."""
        self._idle: OrderedDict[int, Holder] = OrderedDict()
        """By identity, holders that may be evicted, longest idle first."""
        self._waiting: _Queue = OrderedDict()
        self._resuming: _Queue = OrderedDict()
        """Waiting holders that were evicted."""
        self._resumed: set[int] = set()
        """By identity, resumed holders that have not become idle since."""
        self._most_resumed = max(count // 8, 1)

    def is_wanted(self, holder: Holder) -> bool:
        """Return whether a waiting holder may take this holder's slot."""
        if self._held.get(holder.connection, 0) > self._per_connection:
            return True
        return any(
            connection == holder.connection or self._held.get(connection, 0) < self._per_connection
            for connection in chain(self._waiting, self._resuming)
        )

    async def acquire(self, holder: Holder) -> None:
        """Wait for a slot, in turn with the other connections."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._resuming if holder.was_evicted else self._waiting
        waiting.setdefault(holder.connection, deque()).append((turn, holder))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            _forget(waiting, turn, holder)
            if holder.has_slot:
                self.release(holder)
            raise

    def idle(self, holder: Holder) -> None:
        """Mark a holder as waiting for its client: its slot may be taken."""
        self._idle[id(holder)] = holder
        self._resumed.discard(id(holder))
        kept = sum(each.size for each in self._idle.values())
        for each in self._idle.values():
            if kept <= self._idle_bytes:
                break
            if each.size:
                kept -= each.size
                each.evict()
        self._grant()

    def busy(self, holder: Holder) -> None:
        """Mark a holder as using its slot again."""
        self._idle.pop(id(holder), None)

    def release(self, holder: Holder) -> None:
        """Return a slot to the pool."""
        self.busy(holder)
        if holder.has_slot:
            self._take(holder)
            self._grant()

    def _take(self, holder: Holder) -> None:
        holder.has_slot = False
        self._resumed.discard(id(holder))
        self.free += 1
        left = self._held.pop(holder.connection) - 1
        if left:
            self._held[holder.connection] = left

    def _grant(self) -> None:
        """Grant slots to waiting holders, round-robin over connections.

        Resumed holders come last, except that one of them can always be at work.
        """
        if not self._resumed:
            self._grant_from(self._resuming, 1)
        self._grant_from(self._waiting, len(self._idle) + self.free)
        self._grant_from(self._resuming, self._most_resumed - len(self._resumed))

    def _grant_from(self, waiting: _Queue, most: int) -> None:
        passed = 0
        while most > 0 and passed < len(waiting):
            connection, queue = next(iter(waiting.items()))
            waiting.move_to_end(connection)
            if not self._make_room(connection):
                passed += 1
                continue
            passed = 0
            turn, holder = queue.popleft()
            if not queue:
                del waiting[connection]
            if turn.done():
                continue
            most -= 1
            self.free -= 1
            self._held[connection] = self._held.get(connection, 0) + 1
            holder.has_slot = True
            if holder.was_evicted:
                self._resumed.add(id(holder))
            turn.set_result(None)

    def _make_room(self, connection: Hashable) -> bool:
        """Return whether there is a slot for a connection; evict an idle holder if necessary."""
        is_full = self._held.get(connection, 0) >= self._per_connection
        if self.free and not is_full:
            return True
        idle = [
            each for each in self._idle.values() if not is_full or each.connection == connection
        ]
        if not idle:
            return False
        victim = max(idle, key=lambda each: self._held[each.connection])
        self.busy(victim)
        self._take(victim)
        victim.was_evicted = True
        victim.evict()
        return True


def _forget(waiting: _Queue, turn: asyncio.Future[None], holder: Holder) -> None:
    queue = waiting.get(holder.connection)
    if queue is not None and (turn, holder) in queue:
        queue.remove((turn, holder))
        if not queue:
            del waiting[holder.connection]
