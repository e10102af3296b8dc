"""Listens on the fake network and writes down each frame: once when sent, once when it arrived."""

from __future__ import annotations

from collections.abc import Callable

from aqueduct.errors import RemoteProtocolError
from aqueduct.testing.clock import Clock
from aqueduct.testing.record import (
    NO_CHANNEL,
    Broke,
    ConnectionClosed,
    ConnectionLost,
    Entry,
    FrameArrived,
    FrameSent,
    RttTold,
    StreamEnded,
)
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import ConnectionHeaders, Frame, MessageRun, RouteTo, message_head
from aqueduct.wire.sequence import ParserLimits, SequenceParser

_NO_LIMITS = ParserLimits(max_message=2**62, max_headers=2**62, max_attachments=2**62)


class _Conversation:
    """The frames of one stream or datagram, each with the position of its end."""

    __slots__ = ("arrived", "arrived_bytes", "channel", "ends", "fed", "frames", "parser")

    def __init__(self) -> None:
        self.parser = SequenceParser(_NO_LIMITS)
        self.channel = NO_CHANNEL
        self.fed = 0
        self.frames: list[FrameSent] = []
        self.ends: list[int] = []
        self.arrived = 0
        self.arrived_bytes = 0


class Tap:
    """Decodes what passes between two cores into a list of entries.

    The network calls it as its ``Watcher``. Bytes are decoded as they are sent; what arrives is
    known from the positions of the frames in their stream.
    """

    def __init__(self, clock: Clock, entries: list[Entry]) -> None:
        self._clock = clock
        self._entries = entries
        self._streams: tuple[dict[int, _Conversation], dict[int, _Conversation]] = ({}, {})
        self._datagrams: dict[int, _Conversation] = {}
        # Arrivals at a side that may not act on them yet; None once it may.
        self._held: list[list[FrameSent] | None] = [[], []]
        self.on_frame: Callable[[FrameSent], None] | None = None

    def open(self, side: Side) -> None:
        """From now on ``side`` acts on what it gets; what it kept until now counts as arrived."""
        held = self._held[side]
        if held is None:
            return
        self._held[side] = None
        now = self._clock.now
        self._entries.extend(FrameArrived(now, side, sent) for sent in held)

    def stream_written(self, side: Side, stream: int, data: bytes, fin: bool) -> None:
        conversation = self._streams[side].get(stream)
        if conversation is None:
            conversation = self._streams[side][stream] = _Conversation()
        self._decode(conversation, side, stream, data, fin)
        if fin:
            self._entries.append(StreamEnded(self._clock.now, side, stream, None))

    def datagram_sent(self, side: Side, serial: int, data: bytes) -> None:
        conversation = self._datagrams[serial] = _Conversation()
        self._decode(conversation, side, -1 - serial, data, True)

    def stream_arrived(self, side: Side, stream: int, data: bytes, fin: bool) -> None:
        conversation = self._streams[side.other][stream]
        conversation.arrived_bytes += len(data)
        self._arrive(conversation, side)
        if fin:
            del self._streams[side.other][stream]

    def datagram_arrived(self, side: Side, serial: int, data: bytes) -> None:
        conversation = self._datagrams.pop(serial)
        conversation.arrived_bytes = len(data)
        self._arrive(conversation, side)

    def reset_sent(self, side: Side, stream: int, code: int) -> None:
        self._entries.append(StreamEnded(self._clock.now, side, stream, code))

    def reset_arrived(self, side: Side, stream: int, code: int) -> None:
        del self._streams[side.other][stream]
        held = self._held[side]
        if held is not None:
            # What is kept of a stream that is then reset is ignored.
            self._held[side] = [sent for sent in held if sent.stream != stream]

    def rtt_told(self, side: Side, rtt: float) -> None:
        self._entries.append(RttTold(self._clock.now, side, rtt))

    def connection_closed(self, side: Side, code: int, reason: str) -> None:
        self._entries.append(ConnectionClosed(self._clock.now, side, code, reason))

    def connection_lost(self, side: Side, code: int, reason: str, by_peer: bool) -> None:
        self._entries.append(ConnectionLost(self._clock.now, side, code, reason, by_peer))

    def _decode(
        self, conversation: _Conversation, side: Side, stream: int, data: bytes, fin: bool
    ) -> None:
        parser = conversation.parser
        conversation.fed += len(data)
        try:
            parser.feed(data)
            while (frame := parser.next()) is not None:
                end = conversation.fed - parser.held
                if isinstance(frame, MessageRun):
                    self._note_run(conversation, side, stream, frame, end)
                else:
                    if isinstance(frame, RouteTo):
                        conversation.channel = frame.channel
                    self._note(conversation, side, stream, frame, end)
            if fin:
                parser.finish()
        except RemoteProtocolError as error:
            self._entries.append(Broke(self._clock.now, side, f"wrote unreadable bytes: {error}"))

    def _note_run(
        self, conversation: _Conversation, side: Side, stream: int, run: MessageRun, end: int
    ) -> None:
        messages = list(run.messages())
        sizes = [
            len(message_head(message.number, len(message.payload))) + len(message.payload)
            for message in messages
        ]
        end -= sum(sizes)
        for message, size in zip(messages, sizes, strict=True):
            end += size
            self._note(conversation, side, stream, message, end)

    def _note(
        self, conversation: _Conversation, side: Side, stream: int, frame: Frame, end: int
    ) -> None:
        sent = FrameSent(self._clock.now, side, stream, conversation.channel, frame)
        conversation.frames.append(sent)
        conversation.ends.append(end)
        self._entries.append(sent)
        if self.on_frame is not None:
            self.on_frame(sent)

    def _arrive(self, conversation: _Conversation, side: Side) -> None:
        frames = conversation.frames
        ends = conversation.ends
        while (
            conversation.arrived < len(frames)
            and ends[conversation.arrived] <= conversation.arrived_bytes
        ):
            sent = frames[conversation.arrived]
            conversation.arrived += 1
            held = self._held[side]
            if held is not None and sent.channel != NO_CHANNEL:
                held.append(sent)
                continue
            self._entries.append(FrameArrived(self._clock.now, side, sent))
            if side == Side.CLIENT and isinstance(sent.frame, ConnectionHeaders):
                self.open(side)
