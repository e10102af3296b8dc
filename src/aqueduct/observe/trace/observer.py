"""The observer that turns what one connection does into the rows of a trace.

Payloads and the values of headers are never recorded.
"""

from __future__ import annotations

import json
import re
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aqueduct.errors import RemoteProtocolError
from aqueduct.observe.base import ObservedConnection, PortCounters
from aqueduct.observe.trace.batch import ConnectionKey, frame_code, signed
from aqueduct.observe.trace.kinds import FIN, FRAME_CODES, FRAME_SHIFT, NULL, Kind, space
from aqueduct.observe.trace.scan import PlainMessages, RichMessage, ScannedFrame, Scanner
from aqueduct.observe.trace.writer import Trace
from aqueduct.protocol.config import INITIAL_LIMITS
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    End,
    Event,
    PeerHeaders,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.protocol.greeting import split_limits
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    Frame,
    MessageFrame,
    MessageRun,
    SentUnreliable,
)
from aqueduct.wire.ranges import RangeSet

MAX_NAMES = 32
"""Header names recorded per frame."""
MAX_NAME = 64
"""Characters recorded per header name."""
MAX_HELD = 16 * 1024 * 1024
"""Bytes of incomplete frames held over all streams; a stream beyond that is not followed."""
MAX_FOLLOWED = 1 << 17
"""Receivers whose arrivals are remembered until the application takes them."""
MAX_ARRIVALS = 1 << 14
"""Runs of arrivals remembered per receiver."""

_RULE = re.compile(r"AQ-[A-Z]+-[0-9]+")
_FATES = {End.LOST: Kind.MESSAGE_LOST, End.CONNECTION: Kind.MESSAGE_OPEN}
_SENT = [frame_code(Kind.FRAME_SENT, MessageFrame, reliable) for reliable in (False, True)]
_RECEIVED = [frame_code(Kind.FRAME_RECEIVED, MessageFrame, reliable) for reliable in (False, True)]


NumberRange = tuple[bool, int, int]
"""The number space (whether reliable), the first number, and the number after the last."""


class Sending:
    """A sender: by number space, the next number to send and the numbers whose fate is known."""

    __slots__ = ("fated", "next", "unreliable")

    def __init__(self) -> None:
        self.next = [0, 0]
        self.fated = [RangeSet(), RangeSet()]
        self.unreliable = False


class Receiving:
    """A receiver: what arrived and has not been taken, in order of arrival."""

    __slots__ = ("arrived",)

    def __init__(self) -> None:
        self.arrived: deque[list[int]] = deque()

    def arrive(self, reliable: bool, first: int, count: int) -> None:
        """Add messages that arrived; the core may still ignore them."""
        arrived = self.arrived
        if arrived:
            last = arrived[-1]
            if last[0] == reliable and last[2] == first:
                last[2] = first + count
                return
            if len(arrived) >= MAX_ARRIVALS:
                arrived.popleft()
        arrived.append([reliable, first, first + count])

    def take(self, first: int, count: int) -> list[NumberRange]:
        """Remove messages that were taken, and return them with their number spaces.

        Messages are taken in the order of arrival; arrivals that were skipped were ignored.
        """
        taken: list[NumberRange] = []
        arrived = self.arrived
        stop = first + count
        while first < stop and arrived:
            last = arrived[0]
            if not last[1] <= first < last[2]:
                arrived.popleft()
                continue
            until = min(stop, last[2])
            taken.append((bool(last[0]), first, until))
            first = last[1] = until
            if last[1] == last[2]:
                arrived.popleft()
        if first < stop:
            taken.append((True, first, stop))
        return taken


class TraceObserver:
    """Records one side of one connection in a `Trace`; implements `Observer`."""

    def __init__(
        self,
        trace: Trace,
        connection: ObservedConnection,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._writer = trace._writer
        self._clock = clock
        self._connection: ConnectionKey = (connection.id, connection.side)
        self._written: dict[int, Scanner] = {}
        self._read: dict[int, Scanner] = {}
        self._held = 0
        self._sending: dict[int, Sending] = {}
        self._receiving: dict[int, Receiving] = {}
        self._closed: set[int] = set()
        self._rescued: dict[int, deque[list[NumberRange]]] = {}
        """By channel, what a port took when the connection ended and the application may still
        receive."""
        self._ended = False
        with self._writer.lock:
            now = self._clock()
            self._add(now, Kind.CONNECTION_OPENED)
            self._add(now, Kind.CHANNEL_CREATED, ENTRYPOINT)

    # -- the bytes --------------------------------------------------------------------------------

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        """Record the frames in what the core wrote to a stream."""
        self._pass(self._written, Kind.FRAME_SENT, stream, data, fin)

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        """Record the frames in what arrived on a stream."""
        self._pass(self._read, Kind.FRAME_RECEIVED, stream, data, fin)

    def datagram_written(self, data: bytes) -> None:
        """Record the frames in a datagram that the core sent."""
        self._pass({}, Kind.FRAME_SENT, NULL, data, False)

    def datagram_read(self, data: bytes) -> None:
        """Record the frames in a datagram that arrived."""
        self._pass({}, Kind.FRAME_RECEIVED, NULL, data, False)

    def reset_written(self, stream: int, code: int) -> None:
        """Record that the core reset a stream."""
        self._reset(self._written, Kind.STREAM_RESET, stream, code)

    def reset_read(self, stream: int, code: int) -> None:
        """Record that the peer reset a stream."""
        self._reset(self._read, Kind.STREAM_RESET_RECEIVED, stream, code)

    # -- the application --------------------------------------------------------------------------

    def channels_created(
        self,
        carrier: int,
        number: int,
        reliable: bool,
        channels: Sequence[int],
        modes: Sequence[str],
    ) -> None:
        """Record the channels that this side made for a message; the mode of those it sends on."""
        with self._writer.lock:
            now = self._clock()
            for channel, mode in zip(channels, modes, strict=True):
                rare = _carried(carrier, number, reliable)
                if channel >> 1 & 1 == (self._connection[1] == "server"):
                    rare["mode"] = mode
                    sending = self._sending[channel] = Sending()
                    sending.unreliable = mode == "unreliable"
                self._add(now, Kind.CHANNEL_CREATED, channel, rare=rare)
            self._writer.check()

    def messages_taken(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """Record that the application took messages, and the channels in them."""
        with self._writer.lock:
            now = self._clock()
            rescued = self._rescued.get(channel)
            for entry in batch:
                ranges = rescued.popleft() if rescued else self._take(now, channel, entry)
                for reliable, first, stop in ranges:
                    self._add(
                        now, Kind.MESSAGE_TAKEN | space(reliable), channel, first, stop - first
                    )
            self._writer.check()

    def messages_rescued(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """Record the channels in messages that a port keeps beyond the end of the connection."""
        with self._writer.lock:
            now = self._clock()
            kept = self._rescued.setdefault(channel, deque())
            kept.extend(self._take(now, channel, entry) for entry in batch)
            self._writer.check()

    def receiver_closed(self, channel: int) -> None:
        """Record that the application closed a receiver."""
        if channel in self._closed or self._ended:
            return
        with self._writer.lock:
            self._closed.add(channel)
            self._receiving.pop(channel, None)
            self._add(self._clock(), Kind.CHANNEL_ENDED, channel, rare={"how": "closed"})
            self._writer.check()

    def events_raised(self, events: Sequence[Event], ports: Mapping[int, PortCounters]) -> None:
        """Record the fates of messages and the ends of channels and of the connection."""
        with self._writer.lock:
            now = self._clock()
            for event in events:
                if isinstance(event, Delivered):
                    self._settle(now, Kind.MESSAGE_DELIVERED, event)
                elif isinstance(event, Undelivered):
                    self._settle(now, Kind.MESSAGE_UNDELIVERED, event)
                elif isinstance(event, SenderEnded):
                    self._end_sender(now, event, ports)
                elif isinstance(event, ReceiverEnded):
                    self._end_receiver(now, event)
                elif isinstance(event, ConnectionEnded):
                    self._end(now, event)
                elif isinstance(event, PeerHeaders):
                    continue  # the frame that brought them was recorded
            self._writer.check()

    # -- private; the caller holds the lock ------------------------------------------------------

    def _add(
        self,
        now: int,
        code: int,
        channel: int = NULL,
        message: int = NULL,
        count: int = 1,
        stream: int = NULL,
        value: int = NULL,
        rare: Mapping[str, Any] | None = None,
    ) -> None:
        self._writer.batch.add(
            now, self._connection, code, channel, message, count, stream, value, rare
        )

    def _take(self, now: int, channel: int, entry: MessageFrame | MessageRun) -> list[NumberRange]:
        """Record the channels that a queue entry carries, and return the numbers it holds."""
        receiving = self._receiving.get(channel) or Receiving()
        if isinstance(entry, MessageRun):
            return receiving.take(entry.first, len(entry.payloads))
        ranges = receiving.take(entry.number, 1)
        rare = _carried(channel, entry.number, ranges[0][0])
        for attachment in entry.attachments:
            self._add(now, Kind.CHANNEL_CREATED, attachment.channel, rare=rare)
        return ranges

    def _pass(
        self, streams: dict[int, Scanner], kind: Kind, stream: int, data: bytes, fin: bool
    ) -> None:
        scanner = streams.get(stream)
        if scanner is None:
            if self._ended and kind is Kind.FRAME_RECEIVED:
                return  # the core ignores what arrives after the end; its writes still leave
            scanner = Scanner()
        held = scanner.held
        problem: RemoteProtocolError | None = None
        try:
            found = scanner.feed(data)
        except RemoteProtocolError as error:
            found, problem = [], error
        self._held += scanner.held - held
        with self._writer.lock:
            now = self._clock()
            last = len(found) - 1
            for at, one in enumerate(found):
                self._note(now, kind, stream, scanner.channel, one, fin and at == last)
            if problem is not None:
                self._add(now, Kind.UNREADABLE, stream=stream, rare={"rule": problem.rule})
            elif fin and not found:
                ending = (
                    Kind.STREAM_FINISHED if kind is Kind.FRAME_SENT else Kind.STREAM_FINISH_RECEIVED
                )
                self._add(now, ending, _or_null(scanner.channel), stream=stream)
            self._writer.check()
        if fin or problem is not None or self._held > MAX_HELD:
            self._held -= scanner.held
            streams.pop(stream, None)
        elif stream != NULL:
            streams[stream] = scanner

    def _note(
        self, now: int, kind: Kind, stream: int, channel: int, found: ScannedFrame, fin: bool
    ) -> None:
        """Add the row of one frame, or the rows of a run of messages."""
        end = FIN if fin else 0
        sent = kind is Kind.FRAME_SENT
        if isinstance(found, PlainMessages | RichMessage):
            reliable = stream != NULL
            code = _SENT[reliable] if sent else _RECEIVED[reliable]
            if isinstance(found, PlainMessages):
                first, count = found.first, len(found.sizes)
                self._note_run(now, code, end, channel, found, stream)
            else:
                first, count = found.number, 1
                self._writer.batch.add_sizes(array("q", (found.size,)))
                self._add(now, code | end, channel, first, 1, stream, rare=_describe_rich(found))
            self._follow(sent, channel, reliable, first, count)
        else:
            code = kind | FRAME_CODES[type(found)] << FRAME_SHIFT | end
            value, rare = _describe_frame(found)
            self._add(now, code, _or_null(channel), stream=stream, value=value, rare=rare)

    def _note_run(
        self, now: int, code: int, end: int, channel: int, found: PlainMessages, stream: int
    ) -> None:
        batch = self._writer.batch
        count = len(found.sizes)
        batch.add_sizes(found.sizes)
        if end and count > 1:
            # Only the row of the last message says that the stream ended.
            batch.add(now, self._connection, code, channel, found.first, count - 1, stream)
            batch.add(
                now, self._connection, code | end, channel, found.first + count - 1, 1, stream
            )
        else:
            batch.add(now, self._connection, code | end, channel, found.first, count, stream)

    def _follow(self, sent: bool, channel: int, reliable: bool, first: int, count: int) -> None:
        if sent:
            sending = self._sending.get(channel)
            if sending is None:
                sending = self._sending[channel] = Sending()
            sending.next[reliable] = max(sending.next[reliable], first + count)
            return
        if channel in self._closed:
            return
        receiving = self._receiving.get(channel)
        if receiving is None:
            if len(self._receiving) >= MAX_FOLLOWED:
                del self._receiving[next(iter(self._receiving))]
            receiving = self._receiving[channel] = Receiving()
        receiving.arrive(reliable, first, count)

    def _reset(self, streams: dict[int, Scanner], kind: Kind, stream: int, code: int) -> None:
        scanner = streams.pop(stream, None)
        if scanner is not None:
            self._held -= scanner.held
        with self._writer.lock:
            channel = _or_null(scanner.channel) if scanner is not None else NULL
            self._add(self._clock(), kind, channel, stream=stream, rare={"code": code})
            self._writer.check()

    def _settle(self, now: int, kind: Kind, event: Delivered | Undelivered) -> None:
        sending = self._sending.get(event.channel)
        if sending is None:
            sending = self._sending[event.channel] = Sending()
        fated = sending.fated[event.reliable]
        for start, stop in event.ranges:
            fated.add(start, stop)
            self._add(now, kind | space(event.reliable), event.channel, start, stop - start)

    def _end_sender(self, now: int, event: SenderEnded, ports: Mapping[int, PortCounters]) -> None:
        channel = event.channel
        sending = self._sending.pop(channel, None) or Sending()
        port = ports.get(channel)
        given = port.statistics().get("sent", 0) if port is not None else 0
        rare: dict[str, Any] = {"how": event.how.value}
        if event.lineage:
            rare["lineage"] = [signed(above) for above in event.lineage]
        self._add_open_fates(now, event, sending, given, rare)
        self._add(now, Kind.CHANNEL_ENDED, channel, value=given, rare=rare)

    def _add_open_fates(
        self, now: int, event: SenderEnded, sending: Sending, given: int, rare: dict[str, Any]
    ) -> None:
        """Record the fate of the channel for its messages without one, sent or not."""
        known = [max(sending.next[each], sending.fated[each].max) for each in (False, True)]
        unseen = given - sum(known)
        if unseen > 0:
            known[not (sending.unreliable or sending.next[False])] += unseen
        kind = _FATES.get(event.how, Kind.MESSAGE_UNDELIVERED)
        for reliable in (True, False):
            for start, stop in sending.fated[reliable].missing(0, known[reliable]):
                code = kind | space(reliable)
                self._add(now, code, event.channel, start, stop - start, rare=rare)

    def _end_receiver(self, now: int, event: ReceiverEnded) -> None:
        self._receiving.pop(event.channel, None)
        if event.channel in self._closed:
            return
        rare: dict[str, Any] = {"how": event.how.value}
        if event.lineage:
            rare["lineage"] = [signed(above) for above in event.lineage]
        self._add(now, Kind.CHANNEL_ENDED, event.channel, rare=rare)

    def _end(self, now: int, event: ConnectionEnded) -> None:
        # The reason is the application's text and may contain anything, so only the rule is kept.
        rule = _RULE.match(event.reason)
        rare: dict[str, Any] = {"code": event.code, "by_peer": event.by_peer}
        if rule is not None:
            rare["rule"] = rule[0]
        self._add(now, Kind.CONNECTION_ENDED, rare=rare)
        self._ended = True
        self._sending.clear()
        self._receiving.clear()
        self._closed.clear()
        self._read.clear()


def _or_null(channel: int) -> int:
    return channel if channel >= 0 else NULL


def _carried(carrier: int, number: int, reliable: bool) -> dict[str, Any]:
    return {
        "carrier": signed(carrier),
        "carrier_message": signed(number),
        "carrier_reliable": reliable,
    }


def _names(names: Sequence[bytes]) -> list[str]:
    return [name.decode(errors="backslashreplace")[:MAX_NAME] for name in names[:MAX_NAMES]]


def _describe_rich(message: RichMessage) -> dict[str, Any]:
    rare: dict[str, Any] = {"payload_size": message.payload_size}
    if message.header_names:
        rare["header_names"] = _names(message.header_names)
    if message.attachments:
        rare["attachments"] = [signed(channel) for channel in message.attachments]
    return rare


def _describe_frame(frame: Frame) -> tuple[int, dict[str, Any] | None]:
    """Return the value of a frame, and its rare columns."""
    if isinstance(frame, AckReliable):
        return NULL, {"ranges": [signed(edge) for pair in frame.ranges for edge in pair]}
    if isinstance(frame, AckNackUnreliable):
        return NULL, {"ranges": [signed(length) for length in frame.lengths]}
    if isinstance(frame, Dequeued):
        return frame.num_bytes, None
    if isinstance(frame, SentUnreliable):
        return frame.count, None
    if isinstance(frame, FinishSender):
        return frame.sent_reliable, None
    if isinstance(frame, ConnectionHeaders):
        rare: dict[str, Any] = {"header_names": _names([name for name, _ in frame.headers])}
        try:
            limits = split_limits(frame.headers, INITIAL_LIMITS)[1]
        except RemoteProtocolError as error:
            rare["rule"] = error.rule
        else:
            rare["limits"] = json.dumps(asdict(limits))
        return NULL, rare
    return NULL, None
