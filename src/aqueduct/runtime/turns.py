"""How much of a turn of the event loop each connection and each sender may use.

A turn ends when the loop has run all tasks that are ready; then connections flush what was sent.
Sending does not wait while there is credit, so that without a bound one task could keep the loop
for seconds, and one sender could keep all others of its connection from sending.
"""

from __future__ import annotations

from typing import Final

from aqueduct.runtime.waiters import Waiters

TURN_BYTES: Final = 256 * 1024
"""Bytes that one turn of the event loop may queue before senders yield to it."""
_ALL_BYTES: Final = 4 * 1024 * 1024
"""The same for all connections with a flush due, as long as each gets `_LEAST_BYTES`."""
_MOST_DIVIDED: Final = 4
"""Connections that divide `TURN_BYTES`; with more of them, `_ALL_BYTES` counts."""
_LEAST_BYTES: Final = 32 * 1024
"""Bytes that each connection may queue: shorter turns cost throughput, because a flush costs about
as much as 50 short messages."""
PART_BYTES: Final = 4 * 1024
"""Bytes that a sender may queue before the next one gets its part. Waking a task costs as much as a
few short messages."""


def bytes_for(busy: int) -> int:
    """Return the bytes of a turn for a connection while ``busy`` others wait for their flush.

    An iteration of the event loop then takes about as long with several busy connections as with
    one, and with a thousand not longer than it takes to flush them.
    """
    if busy < _MOST_DIVIDED:
        return TURN_BYTES // (1 + busy)
    share = _ALL_BYTES // (1 + busy)
    most = TURN_BYTES // _MOST_DIVIDED
    return most if share > most else share if share > _LEAST_BYTES else _LEAST_BYTES


class SenderQueue:
    """The tasks of one connection that wait to send because their turn is full.

    They take parts of the next turns in the order in which they came: with many tasks, the first
    one would otherwise use each turn as a whole.
    """

    __slots__ = ("_part", "_waiting")

    def __init__(self) -> None:
        self._waiting = Waiters()
        self._part = PART_BYTES

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self) -> int:
        """Wait for a part of a turn, and return its size."""
        await self._waiting.wait()
        return self._part

    def start_turn(self, left: int) -> None:
        """Wake as many tasks as ``left`` bytes have parts for."""
        count = min(len(self._waiting), max(1, left // PART_BYTES))
        if count:
            self._part = max(PART_BYTES, left // count)
        for _ in range(count):
            self._waiting.wake()

    def end(self) -> None:
        """Wake all tasks: the connection has ended."""
        self._waiting.wake_all()
