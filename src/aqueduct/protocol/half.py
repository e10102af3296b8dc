"""What the two kinds of halves have in common, and what all halves of a connection share."""

from __future__ import annotations

from enum import IntEnum

from aqueduct.errors import LocalProtocolError
from aqueduct.protocol.config import SAFE_DATAGRAM, Config
from aqueduct.protocol.events import End, Event
from aqueduct.protocol.flow import Credit
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.protocol.outgoing_stream import OutgoingStream
from aqueduct.protocol.scheduling import BlockedSenders
from aqueduct.protocol.timers import NEVER, Timers
from aqueduct.wire.chanid import Side
from aqueduct.wire.sequence import ParserLimits


class Ownership(IntEnum):
    """Whether the application holds the handle of a half."""

    UNCLAIMED = 0
    """Not yet: the application has not taken the message that carries it."""
    APPLICATION = 1
    """Yes: the application gets the events of the half."""
    RELEASED = 2
    """No longer: the application released it, or got its last event."""


class Context:
    """What the connection and its halves share: settings, credit, timers, and both outputs."""

    __slots__ = (
        "acks_due",
        "blocked",
        "config",
        "credit",
        "events",
        "lingering",
        "out",
        "parser_limits",
        "path_rtt",
        "queued_objects",
        "rtt",
        "side",
        "timers",
    )

    def __init__(self, side: Side, config: Config) -> None:
        self.side = side
        self.config = config
        self.rtt = 0.0
        """The smoothed round-trip time."""
        self.path_rtt = 0.0
        """The round-trip time of the path without queues."""
        initial = config.initial_limits
        limits = config.limits
        # AQ-LIMIT-2: what the initial limits allow is always accepted.
        self.parser_limits = ParserLimits(
            max_message=max(limits.max_message, initial.max_message),
            max_headers=max(limits.max_headers, initial.max_headers),
            max_attachments=max(limits.max_attachments, initial.max_attachments),
        )
        self.out = Outgoing(min(config.max_datagram, SAFE_DATAGRAM), config.quantum)
        self.events: list[Event] = []
        self.timers = Timers()
        self.credit = Credit(config, self.timers)
        self.blocked = BlockedSenders(
            self.credit.send_window, self.timers, config.starvation_timeout
        )
        self.acks_due: dict[int, float] = {}
        """Channels to be acked once all input of this turn was read, with the time of the last."""
        self.lingering = 0
        """Halves of the peer's creation that ended on the wire and were not taken yet."""
        self.queued_objects = 0
        """Messages in all queues that are kept as objects."""

    def set_rtt(self, rtt: float, path: float) -> None:
        """Set the smoothed round-trip time, and that of the path without queues."""
        self.rtt = rtt
        self.path_rtt = path

    def end(self) -> None:
        """Release everything at the end of the connection."""
        self.timers.clear()
        self.credit.clear()
        self.blocked.clear()
        self.acks_due.clear()
        self.lingering = self.queued_objects = 0


class Half:
    """The part of a sender or receiver that does not depend on the direction."""

    __slots__ = (
        "_context",
        "_credit",
        "_end",
        "attached",
        "channel",
        "control",
        "lingers",
        "owner",
        "wake_at",
    )

    def __init__(self, context: Context, channel: int, owner: Ownership) -> None:
        self._context = context
        self._credit = context.credit
        self.channel = channel
        self.owner = owner
        self.attached = owner is not Ownership.UNCLAIMED
        """Whether the message that carries the other half's handle has arrived."""
        self.lingers = False
        """Whether the peer has ended the half and no longer counts it."""
        self.wake_at = NEVER
        self.control: OutgoingStream | None = None
        """Our stream for the control frames of the half."""
        self._end: End | None = None
        """How the half ended on the wire, if it did."""

    def _emit(self, event: Event) -> None:
        if self.owner is Ownership.APPLICATION:
            self._context.events.append(event)


def as_bytes(payload: object) -> bytes:
    """Return the payload as bytes, which cannot change after it was sent."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise LocalProtocolError(f"a payload is bytes, not {type(payload).__name__}")
