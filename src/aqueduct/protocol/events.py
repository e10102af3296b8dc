"""Events for the application. An ``…Ended`` event is the last one of its channel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aqueduct.wire.primitives import HeaderPairs


class End(Enum):
    """How a half of a channel ended, as its application sees it."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    RECEIVER_CLOSED = "receiver closed"
    LOST = "lost in transit"
    CONNECTION = "connection ended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PeerHeaders:
    """The peer's connection headers arrived. A server must call ``accept`` or ``refuse`` now."""

    headers: HeaderPairs


@dataclass(frozen=True, slots=True)
class Readable:
    """The receiver's queue is no longer empty: call ``take``."""

    channel: int


@dataclass(frozen=True, slots=True)
class Writable:
    """A sender that raised WouldBlock has room again."""

    channel: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """These messages arrived, and the peer's application can reach them. This is final."""

    channel: int
    reliable: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The peer will never process these messages (nacks). This is final."""

    channel: int
    reliable: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ReceiverEnded:
    """The receiver ended: nothing more arrives.

    FINISHED comes after the queue was drained, as does STOPPED, which this side caused itself.

    ``lineage`` (LOST, at the creator only) names the lost ancestors, nearest first.
    """

    channel: int
    how: End
    lineage: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SenderEnded:
    """The sender ended. A message not reported Delivered before was not delivered.

    FINISHED: the peer has all messages, except for lost unreliable ones. CANCELLED: our own cancel
    took effect. RECEIVER_CLOSED: the peer stopped receiving first. LOST: the channel was lost in
    transit. CONNECTION: the connection ended.
    """

    channel: int
    how: End
    lineage: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """The connection ended. Each open half got its ``…Ended`` event with CONNECTION before."""

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
