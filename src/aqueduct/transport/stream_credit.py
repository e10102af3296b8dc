"""How many streams a side may open: what the peer allows, less a reserve for control."""

from __future__ import annotations

from typing import Final

from aqueduct.protocol.actions import Room

MAX_STREAM_RESERVE: Final = 64
"""Most streams reserved for control; a quarter of the initial stream credit if that is less. With
the reserve, channels and their streams can end while messages wait for credit (AQ-STREAM-9)."""
MAX_EARLY_STREAMS = 1_024
"""Most streams a client opens before it has the server's headers (AQ-COST-1); more of them wait."""


class StreamCredit:
    """Counts the streams that this side opens."""

    __slots__ = ("_reserve", "limit", "opened")

    def __init__(self) -> None:
        self.opened = 0
        """Streams that were opened."""
        self.limit = self._reserve = 0
        """Streams that the peer allows in total, and those of them reserved for control."""

    def set_limit(self, limit: int) -> None:
        """Set how many streams the peer allows in total."""
        if not self._reserve or limit < self.limit:  # keep the initial one
            self._reserve = min(MAX_STREAM_RESERVE, limit // 4)
        self.limit = limit

    def forget_limit(self) -> None:
        """Forget the peer's limit, which another one replaces."""
        self.limit = self._reserve = 0

    @property
    def left_for_messages(self) -> int:
        """Streams that messages may still open."""
        return self.limit - self._reserve - self.opened

    def measure(self, room: Room, *, is_early: bool) -> None:
        """Set the streams that there is room for."""
        room.streams = self.limit - self.opened
        room.message_streams = room.streams - self._reserve
        if is_early:
            early = MAX_EARLY_STREAMS - self.opened
            room.streams = min(room.streams, early)
            room.message_streams = min(room.message_streams, early)
