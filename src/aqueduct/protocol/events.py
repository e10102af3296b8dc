"""What the application learns; an ``…Ended`` event is the last word on its channel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aqueduct.wire.primitives import HeaderPairs


class End(Enum):
    """How a half of a channel ended, as its owner sees it."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    RECEIVER_CLOSED = "receiver closed"
    LOST = "lost in transit"
    CONNECTION = "connection ended"


@dataclass(frozen=True, slots=True)
class PeerHeaders:
    """The peer's connection headers came. A server now owes ``accept`` or ``refuse``."""

    headers: HeaderPairs


@dataclass(frozen=True, slots=True)
class Readable:
    """The receiver's queue is no longer empty: ``take`` has something."""

    channel: int


@dataclass(frozen=True, slots=True)
class Writable:
    """A sender that raised WouldBlock has room again."""

    channel: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The peer has these messages, and its application can reach them: their one, good fate."""

    channel: int
    reliable: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The peer will never process these messages (committing nacks)."""

    channel: int
    reliable: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ReceiverEnded:
    """Nothing more will be received; FINISHED comes after the queue was drained.

    ``lineage`` (LOST at the creator only) names the lost channels above, nearest first.
    """

    channel: int
    how: End
    lineage: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SenderEnded:
    """The sender is done. A message not reported Delivered by now was not delivered.

    FINISHED: the peer has all of it (unreliable losses aside). CANCELLED: our own cancel took
    effect. RECEIVER_CLOSED: the peer stopped receiving first. LOST, CONNECTION: what they say.
    """

    channel: int
    how: End
    lineage: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """The connection is over; an ``…Ended`` event with CONNECTION came first for each open half."""

    code: int
    reason: str
    by_peer: bool


Event = (
    PeerHeaders
    | Readable
    | Writable
    | Delivered
    | Undelivered
    | ReceiverEnded
    | SenderEnded
    | ConnectionEnded
)
