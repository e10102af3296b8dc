"""What all halves of one connection share: limits, windows, timers, and the ways out."""

from __future__ import annotations

from enum import IntEnum

from aqueduct.protocol.config import Config
from aqueduct.protocol.events import Event
from aqueduct.protocol.flow import Window, WrittenOff
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.protocol.timers import Timers
from aqueduct.protocol.turns import Turns
from aqueduct.wire.chanid import Side
from aqueduct.wire.sequence import ParserLimits


class Owner(IntEnum):
    """Who has the handle of a half."""

    NOBODY = 0
    """The message that carries it has not been taken: the application does not know of it."""
    APPLICATION = 1
    """The application holds it and hears of it."""
    GONE = 2
    """The application is done with it, or has had its last word."""


class Link:
    """The common ground of a connection and its halves."""

    __slots__ = (
        "config",
        "drained_later",
        "dropped",
        "events",
        "lingering",
        "out",
        "overdue",
        "parser_limits",
        "peer_limits",
        "receive_channel_window",
        "receive_window",
        "reporters",
        "rtt",
        "send_window",
        "side",
        "timers",
        "turns",
        "unreported",
        "waiting",
        "written_off",
    )

    def __init__(self, side: Side, config: Config) -> None:
        self.side = side
        self.config = config
        initial = config.initial_limits
        self.peer_limits = initial
        self.rtt = 0.0
        limits = config.limits
        # AQ-LIMIT-2: what the initial limits allow is always accepted.
        self.parser_limits = ParserLimits(
            max_message=max(limits.max_message, initial.max_message),
            max_headers=max(limits.max_headers, initial.max_headers),
            max_attachments=max(limits.max_attachments, initial.max_attachments),
        )
        self.out = Outgoing(config.max_datagram)
        self.timers = Timers()
        self.events: list[Event] = []
        self.send_window = Window(
            initial.connection_window, initial.channel_reserve, initial.reserve_window
        )
        # AQ-FLOW-8: the peer may have written off bytes of lost channels that are still here.
        allowed = max(limits.connection_window, initial.connection_window)
        reserve = max(limits.channel_reserve, initial.channel_reserve)
        pool = 2 * max(limits.reserve_window, initial.reserve_window)
        # AQ-FLOW-10: a message larger than the window may overtake those that used the reserves.
        self.receive_window = Window(2 * allowed, reserve, pool + reserve)
        self.receive_channel_window = max(limits.channel_window, initial.channel_window)
        self.lingering = 0
        """Halves of the peer's creation that ended on the wire, and that nobody has taken yet."""
        self.dropped = 0
        """Unreliable messages dropped for lack of credit."""
        self.written_off = WrittenOff(self.send_window, self.timers)
        self.waiting = 0
        """Messages in all queues, as far as they are kept as objects."""
        self.drained_later = 0
        """Bytes in the queues of finished channels that the peer no longer counts."""
        self.turns = Turns(self.send_window, self.timers, config.starvation_timeout)
        """Senders that wait for room in the connection window."""
        self.unreported = 0
        """Bytes taken by the application over all channels and not yet reported DEQUEUED."""
        self.overdue: dict[int, float] = {}
        """Channels that have many messages to ack, as soon as this turn's input was read."""
        self.reporters: dict[int, None] = {}
        """Channels that have unreported bytes, oldest first."""

    def end(self) -> None:
        """The connection is over: nothing is outstanding, nobody waits."""
        self.timers = Timers()
        self.send_window.clear()
        self.receive_window.clear()
        self.written_off = WrittenOff(self.send_window, self.timers)
        self.drained_later = self.unreported = self.waiting = self.lingering = 0
        self.turns = Turns(self.send_window, self.timers, self.config.starvation_timeout)
        self.reporters.clear()
        self.overdue.clear()
