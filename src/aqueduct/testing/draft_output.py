"""The frames of a simulated peer that knows only the reference draft, on streams and datagrams."""

from __future__ import annotations

from aqueduct.protocol.actions import Action, ResetStream, Room, WriteStream
from aqueduct.protocol.connection import Attach, Give
from aqueduct.protocol.events import Event
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.testing.draft_halves import NEVER, DraftHalf, DraftReceiver, DraftSender
from aqueduct.wire.chanid import Side, channel_id, first_index
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    ForgetChannel,
    Frame,
    RouteTo,
    SentUnreliable,
    Version,
)
from aqueduct.wire.ranges import RangeSet

RESET_CODE = 0x10
DATAGRAM_SIZE = 1_150
PRELUDE = 64
"""More than VERSION and ROUTE_TO take."""


class DraftOutput:
    """Writes frames, and chooses their streams."""

    def __init__(self, side: Side) -> None:
        self._actions: list[Action] = []
        self._events: list[Event] = []
        self._datagram_size = DATAGRAM_SIZE
        self._next_stream = 0
        self._next_index: dict[int, int] = {}
        self.side = side
        self._version_acked = False
        self.output = Outgoing(0)
        """Nothing ever waits in it: this side hands over everything at once."""
        self.has_ended = False

    def handle_rtt(self, rtt: float, least: float | None = None) -> None:
        """Ignore the round-trip time: the receipt deadline is one second."""

    def handle_datagram_limit(self, size: int) -> None:
        """Set how many bytes of a datagram the path can carry now."""
        self._datagram_size = min(size, DATAGRAM_SIZE)

    def _fits(self, frame: Frame) -> bool:
        """Return whether a frame fits a datagram."""
        return PRELUDE + len(frame.encode()) <= self._datagram_size

    def set_priority(self, channel: int, priority: int) -> None:
        """Do nothing: this side sends in the order of the calls."""

    def poll_actions(self, room: Room | None = None) -> list[Action]:
        """Return what the transport must do."""
        actions, self._actions = self._actions, []
        return actions

    def poll_events(self) -> list[Event]:
        """Return the events of the application."""
        events, self._events = self._events, []
        return events

    def _new_id(self, one: Attach) -> int:
        sender = self.side if one.give is Give.RECEIVER else self.side.other
        space = channel_id(self.side, sender, one.oneshot, 0)
        index = self._next_index.get(space, first_index(space))
        self._next_index[space] = index + 1
        return channel_id(self.side, sender, one.oneshot, index)

    def _encode(self, *frames: Frame) -> bytes:
        start = b"" if self._version_acked else Version().encode()
        return start + b"".join(frame.encode() for frame in frames)

    def _open(self, *frames: Frame, fin: bool = False) -> int:
        stream = self._next_stream
        self._next_stream += 1
        self._actions.append(WriteStream(stream, self._encode(*frames), fin))
        return stream

    def _write(self, stream: int, *frames: Frame, fin: bool = False) -> None:
        self._actions.append(WriteStream(stream, b"".join(f.encode() for f in frames), fin))

    def _route(self, half: DraftHalf, *frames: Frame, fin: bool = False) -> int:
        half.route_at = NEVER
        if isinstance(half, DraftSender):
            half.named = True
        return self._open(RouteTo(half.channel), *frames, fin=fin)

    def _report(self, receiver: DraftReceiver, frame: Frame, *, fin: bool = False) -> None:
        """Send a frame of the receiver on its one stream for acks."""
        if receiver.control is None:
            receiver.control = self._route(receiver, frame, fin=fin)
        else:
            self._write(receiver.control, frame, fin=fin)

    def _reset_streams(self, sender: DraftSender) -> None:
        for stream in (*sender.messages, sender.control):
            if stream is not None:
                self._actions.append(ResetStream(stream, RESET_CODE))
        sender.messages, sender.control = [], None

    def _answer_route(self, half: DraftHalf, now: float) -> None:
        if half.route_at <= now:
            self._route(half, fin=True)

    def _announce(self, sender: DraftSender) -> None:
        sender.announce_at = NEVER
        frame = SentUnreliable(sender.unreliable - sender.announced)
        sender.announced = sender.unreliable
        if sender.control is None:
            sender.control = self._route(sender, frame)
        elif frame.count:
            self._write(sender.control, frame)

    def _ack(self, receiver: DraftReceiver) -> None:
        receiver.ack_at = NEVER
        if receiver.unacked:
            self._report(receiver, AckReliable(tuple(receiver.unacked.ranges())))
            receiver.unacked = RangeSet()

    def _decide(self, receiver: DraftReceiver, until: int) -> None:
        """Ack and nack the announced numbers below ``until``."""
        lengths: list[int] = []
        acked = True
        position = receiver.decided
        while position < until:
            start = position
            while position < until and (position in receiver.datagrams) is acked:
                position += 1
            lengths.append(position - start)
            acked = not acked
        receiver.decided = max(receiver.decided, until)
        if lengths:
            self._report(receiver, AckNackUnreliable(tuple(lengths)))

    def _forget(self, channel: int) -> None:
        self._open(RouteTo(channel), ForgetChannel(), fin=True)
