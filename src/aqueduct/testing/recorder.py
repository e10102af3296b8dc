"""The observers of a simulated connection, which record each frame when sent and when arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from aqueduct.errors import RemoteProtocolError
from aqueduct.observe.base import PortCounters
from aqueduct.protocol.events import Event
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.record import (
    NO_CHANNEL,
    ConnectionClosed,
    ConnectionGone,
    CoreFault,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageTaken,
    Polled,
    RecordEntry,
    RttMeasured,
    StreamEnded,
)
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import (
    ConnectionHeaders,
    Frame,
    MessageFrame,
    MessageRun,
    RouteTo,
    message_head,
)
from aqueduct.wire.sequence import ParserLimits, SequenceParser

_NO_LIMITS = ParserLimits(max_message=2**62, max_headers=2**62, max_attachments=2**62)


class _Transfer:
    """The frames of one stream or datagram, each with the position of its end."""

    __slots__ = ("arrived", "arrived_bytes", "channel", "ends", "fed", "frames", "number", "parser")

    def __init__(self, number: int) -> None:
        self.number = number
        self.parser = SequenceParser(_NO_LIMITS)
        self.channel = NO_CHANNEL
        self.fed = 0
        self.frames: list[FrameSent] = []
        self.ends: list[int] = []
        self.arrived = 0
        self.arrived_bytes = 0


class RecordObserver:
    """Writes one side of a simulated connection to a record; implements `Observer`.

    Frames are decoded when they are sent. Which frames arrived is known from the positions of
    their ends in the stream, so the two observers of a connection work together: make them with
    `observe_pair`. A simulated network also reports here what it tells the core besides data:
    ``rtt_measured``, ``connection_closed`` and ``connection_lost``.
    """

    def __init__(
        self, side: Side, clock: VirtualClock, entries: list[RecordEntry], serials: Iterator[int]
    ) -> None:
        self.side = side
        self.peer: RecordObserver = self
        """The observer of the other side."""
        self.on_frame: Callable[[FrameSent], None] | None = None
        self._clock = clock
        self._entries = entries
        self._serials = serials
        self._streams: dict[int, _Transfer] = {}
        self._datagrams: dict[bytes, deque[_Transfer]] = {}
        """Datagrams that have not arrived, by content: two are alike only if a core errs."""
        self._held: list[FrameSent] | None = []
        """Frames that arrived and on which the core may not act yet; None once it may."""

    # Observer

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        transfer = self._streams.get(stream)
        if transfer is None:
            transfer = self._streams[stream] = _Transfer(stream >> 2)
        self._decode(transfer, data, fin)
        if fin:
            self._entries.append(StreamEnded(self._clock.now, self.side, stream >> 2, None))

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        transfer = self.peer._streams[stream]
        transfer.arrived_bytes += len(data)
        self._arrive(transfer)
        if fin:
            del self.peer._streams[stream]

    def datagram_written(self, data: bytes) -> None:
        transfer = _Transfer(-1 - next(self._serials))
        self._datagrams.setdefault(data, deque()).append(transfer)
        self._decode(transfer, data, True)

    def datagram_read(self, data: bytes) -> None:
        transfer = self.peer._datagrams[data].popleft()
        transfer.arrived_bytes = len(data)
        self._arrive(transfer)

    def reset_written(self, stream: int, code: int) -> None:
        self._entries.append(StreamEnded(self._clock.now, self.side, stream >> 2, code))

    def reset_read(self, stream: int, code: int) -> None:
        del self.peer._streams[stream]
        if self._held is not None:
            # A core drops what it holds of a stream that is then reset.
            self._held = [sent for sent in self._held if sent.stream != stream >> 2]

    def channels_created(
        self,
        carrier: int,
        number: int,
        reliable: bool,
        channels: Sequence[int],
        modes: Sequence[str],
    ) -> None:
        """No-op: the `MessageSent` entry of the application names the channels."""

    def messages_taken(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        now = self._clock.now
        for item in batch:
            for message in item.messages() if isinstance(item, MessageRun) else (item,):
                self._entries.append(MessageTaken(now, self.side, channel, message))

    def messages_rescued(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """No-op: a simulated application takes everything itself."""

    def receiver_closed(self, channel: int) -> None:
        """No-op: the `CommandCalled` entry of the application records it."""

    def events_raised(self, events: Sequence[Event], ports: Mapping[int, PortCounters]) -> None:
        for event in events:
            self._entries.append(EventRaised(self._clock.now, self.side, event))

    # For the simulated network

    def release_held(self) -> None:
        """Count the held frames as arrived: from now on the core acts on what it gets."""
        held, self._held = self._held, None
        if held is not None:
            now = self._clock.now
            self._entries.extend(FrameArrived(now, self.side, sent) for sent in held)

    def polled(self, writes: tuple[tuple[int, int], ...]) -> None:
        """Record what the transport took."""
        self._entries.append(Polled(self._clock.now, self.side, writes))

    def rtt_measured(self, rtt: float) -> None:
        """Record that the core got the round-trip time."""
        self._entries.append(RttMeasured(self._clock.now, self.side, rtt))

    def connection_closed(self, code: int, reason: str) -> None:
        """Note that the core closed the connection."""
        self._entries.append(ConnectionClosed(self._clock.now, self.side, code, reason))

    def connection_lost(self, code: int, reason: str, by_peer: bool) -> None:
        """Record that the core got the end of the connection."""
        self._entries.append(ConnectionGone(self._clock.now, self.side, code, reason, by_peer))

    # Frames

    def _decode(self, transfer: _Transfer, data: bytes, fin: bool) -> None:
        parser = transfer.parser
        transfer.fed += len(data)
        try:
            parser.feed(data)
            while (frame := parser.next()) is not None:
                end = transfer.fed - parser.held
                if isinstance(frame, MessageRun):
                    self._note_run(transfer, frame)
                else:
                    if isinstance(frame, RouteTo):
                        transfer.channel = frame.channel
                    self._note(transfer, frame, end)
            if fin:
                parser.finish()
        except RemoteProtocolError as error:
            text = f"wrote unreadable bytes: {error}"
            self._entries.append(CoreFault(self._clock.now, self.side, text))

    def _note_run(self, transfer: _Transfer, run: MessageRun) -> None:
        # The parser may have read the head of a message behind the run.
        end = transfer.ends[-1]
        for message in run.messages():
            size = len(message.payload)
            end += len(message_head(message.number, size)) + size
            self._note(transfer, message, end)

    def _note(self, transfer: _Transfer, frame: Frame, end: int) -> None:
        sent = FrameSent(self._clock.now, self.side, transfer.number, transfer.channel, frame)
        transfer.frames.append(sent)
        transfer.ends.append(end)
        self._entries.append(sent)
        if self.on_frame is not None:
            self.on_frame(sent)

    def _arrive(self, transfer: _Transfer) -> None:
        frames = transfer.frames
        ends = transfer.ends
        while transfer.arrived < len(frames) and ends[transfer.arrived] <= transfer.arrived_bytes:
            sent = frames[transfer.arrived]
            transfer.arrived += 1
            if self._held is not None and sent.channel != NO_CHANNEL:
                self._held.append(sent)
                continue
            self._entries.append(FrameArrived(self._clock.now, self.side, sent))
            if self.side == Side.CLIENT and isinstance(sent.frame, ConnectionHeaders):
                self.release_held()


def observe_pair(
    clock: VirtualClock, entries: list[RecordEntry]
) -> tuple[RecordObserver, RecordObserver]:
    """Return the observers of the client and the server of one connection."""
    serials = count()
    client = RecordObserver(Side.CLIENT, clock, entries, serials)
    server = RecordObserver(Side.SERVER, clock, entries, serials)
    client.peer, server.peer = server, client
    return client, server
