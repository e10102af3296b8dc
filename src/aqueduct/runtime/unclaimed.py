"""The halves in a message of `bytes`, which the application may claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aqueduct.codec import ChannelHalf
from aqueduct.wire.frames import MessageFrame

if TYPE_CHECKING:
    from aqueduct.runtime.connection_driver import ConnectionDriver


class Unclaimed:
    """The halves of a message of `bytes`: claimed on first use, closed if never used."""

    __slots__ = ("_driver", "_halves", "_message")

    def __init__(self, driver: ConnectionDriver, message: MessageFrame) -> None:
        self._driver = driver
        self._message = message
        self._halves: tuple[ChannelHalf, ...] | None = None

    def halves(self) -> tuple[ChannelHalf, ...]:
        """Return their handles, the same ones each time."""
        if self._halves is None:
            attachments = self._message.attachments
            self._halves = tuple(self._driver.claim(one, None, bytes) for one in attachments)
        return self._halves

    def __del__(self) -> None:
        loop = self._driver.loop
        if self._halves is None and not loop.is_closed():
            loop.call_soon_threadsafe(self._driver.abandon, self._message)
