"""The memory of decoded requests, over all connections of a server.

A request of 100 KB can decode to 16,384 offsets of 128 bytes each. The server therefore reserves
memory for a request before it decodes it. Each connection has an allowance of its own; beyond it
connections share a budget, and a connection without room waits without blocking the others.
"""

from __future__ import annotations

import asyncio

from aqueduct.ingest.identity import MAX_OFFSETS, MAX_POSITIONS

MAX_REQUEST = 1024 * 1024
"""Bytes of one encoded request; the largest useful one, with 16 positions, has 200 KB."""
ALLOWANCE = 256 * 1024
"""Bytes of decoded requests that each connection may always have: a position in each of ten topics
with 64 partitions."""
MAX_DECODED = 32 * 1024 * 1024
"""Bytes of decoded requests of all connections, beyond their allowances."""
SHARE = 4
"""The divisor of the budget that is left: a connection may take 1/SHARE of it."""

_TEXT = 4
"""Bytes of memory for each byte of text: all characters are as wide as the widest one."""
_OFFSETS = 32
"""Bytes of memory for each byte of offsets: an entry of 4 bytes takes up to 128."""
_MOST_OFFSETS = 128 * MAX_OFFSETS * MAX_POSITIONS


def decoded_size(encoded: int) -> int:
    """Return an upper bound on the memory of a decoded request with ``encoded`` bytes."""
    return _TEXT * encoded + min(_OFFSETS * encoded, _MOST_OFFSETS)


class Decoded:
    """The decoded requests of all connections."""

    def __init__(self) -> None:
        self.used = 0
        """Bytes beyond allowances."""
        self._waiting: dict[Account, tuple[int, asyncio.Future[Reservation]]] = {}
        """In order of arrival; a request that fits may overtake larger ones."""

    async def reserve(self, account: Account, size: int) -> Reservation:
        """Wait for room for a request; a connection waits for one at a time."""
        if account.fits(size):
            return Reservation(account, size)
        turn: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting[account] = size, turn
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().free()
            raise
        finally:
            self._waiting.pop(account, None)

    def grant(self) -> None:
        """Grant the pending reservations that fit now."""
        for account, (size, turn) in list(self._waiting.items()):
            if not turn.done() and account.fits(size):
                turn.set_result(Reservation(account, size))


class Account:
    """The decoded requests of one connection."""

    __slots__ = ("_decoded", "held")

    def __init__(self, decoded: Decoded) -> None:
        self._decoded = decoded
        self.held = 0
        """Bytes of its requests."""

    async def reserve(self, encoded: int) -> Reservation:
        """Wait for room for a request with ``encoded`` bytes."""
        return await self._decoded.reserve(self, decoded_size(encoded))

    def fits(self, size: int) -> bool:
        """Return whether there is room now: in the allowance, or in a fair share of the rest.

        A connection without requests may use all of the rest.
        """
        own, after = _beyond(self.held), _beyond(self.held + size)
        left = MAX_DECODED - (self._decoded.used - own)
        return not after or after <= (left // SHARE if self.held else left)

    def change(self, size: int) -> None:
        """Add the size of a request; a negative size releases it."""
        before = _beyond(self.held)
        self.held += size
        self._decoded.used += _beyond(self.held) - before
        if size < 0:
            self._decoded.grant()


class Reservation:
    """Memory of one request."""

    __slots__ = ("_account", "_size")

    def __init__(self, account: Account, size: int) -> None:
        self._account = account
        self._size = size
        account.change(size)

    def free(self) -> None:
        """Release the memory; further calls do nothing."""
        size, self._size = self._size, 0
        if size:
            self._account.change(-size)


def _beyond(held: int) -> int:
    return max(held - ALLOWANCE, 0)
