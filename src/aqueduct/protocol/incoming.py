"""An incoming stream or datagram: its parser, and where its frames go."""

from __future__ import annotations

from aqueduct.protocol.receiver import Receiver
from aqueduct.protocol.sender import Sender
from aqueduct.wire.sequence import ParserLimits, SequenceParser

COST_OF_WAITING = 256
"""What a sequence that has to wait counts besides its bytes: about what it costs in memory."""


class Incoming:
    """One sequence of frames on its way in."""

    __slots__ = ("early", "fin", "half", "held", "number", "parser", "route")

    def __init__(self, number: int, limits: ParserLimits) -> None:
        self.number = number
        """The transport's number of the stream; -1 for a datagram."""
        self.parser: SequenceParser | None = SequenceParser(limits)
        """None once the rest is nobody's business."""
        self.half: Sender | Receiver | None = None
        self.fin = False
        self.route = -1
        """The channel this leads to, while the connection is not ready to go there."""
        self.early: bytearray | None = None
        """What came after that."""
        self.held = 0

    @property
    def is_datagram(self) -> bool:
        """Whether this is a datagram."""
        return self.number < 0

    def is_reading(self) -> bool:
        """Whether its frames are wanted now: it does not wait, and is not ignored."""
        return self.parser is not None and self.early is None

    def feed(self, data: bytes) -> None:
        """More bytes of the stream."""
        if self.early is not None:
            self.early += data
        elif self.parser is not None:
            self.parser.feed(data)

    def ignore(self) -> None:
        """The rest is nobody's business."""
        self.parser = self.early = None

    def wait(self, route: int) -> None:
        """Hold the rest until the connection is ready (AQ-CONN-3)."""
        self.route = route
        self.early = bytearray()

    def go_on(self) -> None:
        """The connection is ready: what was held is read."""
        early, self.early = self.early, None
        if early and self.parser is not None:
            self.parser.feed(bytes(early))

    def holds(self) -> int:
        """Bytes this keeps in memory now."""
        held = self.parser.held if self.parser is not None else 0
        return held + len(self.early) + COST_OF_WAITING if self.early is not None else held
