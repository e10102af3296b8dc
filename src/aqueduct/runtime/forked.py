"""What stands in for a connection's core in a child process after fork()."""

from __future__ import annotations

from aqueduct.errors import ForkedConnectionError
from aqueduct.wire.frames import Message, MessageRun


class ForkedCore:
    """Stands in for the core in a child process."""

    def take(self, channel: int, limit: int, now: float) -> list[Message | MessageRun]:
        """Never."""
        raise ForkedConnectionError(FORKED_REASON, channel=channel)

    def finish(self, channel: int, now: float) -> None:
        """The parent's business."""

    cancel = close = finish

    def give_up(self, channel: int) -> bool:
        """Nobody waits here."""
        return False


FORKED = ForkedCore()
FORKED_REASON = "this connection was made before fork(); connect again in the child process"
