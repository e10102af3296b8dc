"""What a handle stands on: a port, local or networked, swapped when a half is sent away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from aqueduct.errors import ChannelMoved
from aqueduct.runtime.headers import Headers
from aqueduct.wire.primitives import HeaderPairs

T = TypeVar("T")


class Outcome(Enum):
    """What became of one message."""

    DELIVERED = "delivered"
    LOST = "lost"


Receipt = asyncio.Future[Outcome]
"""Awaits the fate of one message."""


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """A received message with everything that came with it."""

    payload: T
    headers: Headers
    number: int
    attached: Attached | None = field(default=None, repr=False, compare=False)
    """Holds the halves of a message of `bytes` until somebody asks for them."""

    @property
    def attachments(self) -> tuple[Any, ...]:
        """The halves in a message of `bytes`, of `bytes` themselves; who asks must end them.

        A typed message has its halves in its fields, and none here. Halves that nobody asked for
        are closed when the message goes away.
        """
        return () if self.attached is None else self.attached.halves()


class Attached(Protocol):
    """The halves that came with a message, to be had once."""

    def halves(self) -> tuple[Any, ...]:
        """Handles of them."""


@dataclass(slots=True)
class Parcel:
    """A message on its way through a port."""

    value: Any
    headers: HeaderPairs
    receipt: Receipt | None

    def settle(self, outcome: Outcome) -> None:
        """Tell whoever waits for the receipt, if anybody does."""
        if self.receipt is not None and not self.receipt.done():
            self.receipt.set_result(outcome)


NOTHING = object()
"""What `pop` returns when there is no message right now."""


class SendPort(Protocol):
    """The sending side of a port."""

    oneshot: bool

    def offer(self, value: Any) -> bool:
        """Queue a message without headers if there is room and no need to yield; the hot path."""

    def send(self, value: Any, headers: HeaderPairs, receipt: Receipt | None) -> None:
        """Queue a message now, or raise; WouldBlock if there is no room."""

    async def wait(self) -> None:
        """Until there may be room, or the port changed."""

    def give_up(self) -> None:
        """Somebody met a full window, and does not wait for it."""

    def is_pressed(self) -> bool:
        """Whether so much was queued in this turn that the loop should get to send it."""

    def finish(self) -> None:
        """No more messages."""

    def cancel(self) -> None:
        """Give up."""

    async def flush(self) -> None:
        """Until everything sent so far has arrived."""

    def is_open(self) -> bool:
        """Whether it could still send."""

    def abandon(self) -> None:
        """The handle was forgotten."""

    def statistics(self) -> dict[str, int]:
        """Counters."""


class ReceivePort(Protocol):
    """The receiving side of a port."""

    oneshot: bool
    ready: list[Any]
    """Values that `pop` would return next, the next one last; to be taken directly."""

    def pop(self) -> Any:
        """The next message's value, NOTHING, or the end as an exception."""

    def pop_message(self) -> Any:
        """The next as a `Message`, NOTHING, or the end as an exception."""

    def pop_many(self, limit: int) -> list[Any]:
        """Up to so many values, an empty list, or the end as an exception."""

    async def wait(self) -> None:
        """Until there may be a message, or the port changed."""

    def close(self) -> None:
        """Stop receiving."""

    def is_open(self) -> bool:
        """Whether a message may still come."""

    def abandon(self) -> None:
        """The handle was forgotten."""

    def statistics(self) -> dict[str, int]:
        """Counters."""


class MovedPort:
    """Stands in for a half that was sent away: everything raises."""

    oneshot = False

    def __init__(self) -> None:
        self.ready: list[Any] = []

    def _moved(self, *_: Any) -> Any:
        raise ChannelMoved("this half was sent away in a message; the peer holds it now")

    offer = send = pop = pop_message = pop_many = _moved

    async def wait(self) -> None:
        """There is nothing to wait for."""
        self._moved()

    flush = wait

    def is_pressed(self) -> bool:
        """Nothing is queued here."""
        return False

    def finish(self) -> None:
        """The peer's business now."""

    cancel = close = abandon = give_up = finish

    def is_open(self) -> bool:
        """Not here."""
        return False

    def statistics(self) -> dict[str, int]:
        """Nothing is counted here any more."""
        return {}


MOVED = MovedPort()
