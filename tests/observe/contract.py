"""The contract of `Observer`, for callers and implementations.

A caller is a connection. Attach a `CallLog` to both of its sides and pass them to `assert_order`:
it checks the five rules in the docstring of `Observer`.

An implementation observes a scripted connection of the simulator, beside a `CallLog`. It must
report the same facts as the log, in the same order. Wrap it as a `Candidate` and pass it to
`assert_observes_everything`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from aqueduct.errors import CloseCode
from aqueduct.observe.base import Observer, PortCounters
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    Event,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.testing.pair import Pair
from aqueduct.testing.record import Record
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    ConnectionHeaders,
    Frame,
    MessageFrame,
    MessageRun,
    RouteTo,
    Version,
    frame_name,
)
from aqueduct.wire.sequence import ParserLimits, SequenceParser

Call = tuple[Any, ...]
"""The name of a method, and its arguments."""
Fact = tuple[Any, ...]
"""A kind of fact, and its details."""

KINDS = frozenset(
    {
        "frame_sent",
        "frame_received",
        "stream_finished",
        "stream_finish_received",
        "stream_reset",
        "stream_reset_received",
        "channel_created",
        "channel_ended",
        "message_taken",
        "message_delivered",
        "message_undelivered",
        "connection_ended",
    }
)

_OF_CONNECTION = (Version, AckVersion, ConnectionHeaders)
_NO_LIMITS = ParserLimits(max_message=2**62, max_headers=2**62, max_attachments=2**62)


class CallLog:
    """An observer that keeps all calls, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        self.calls.append(("stream_written", stream, data, fin))

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        self.calls.append(("stream_read", stream, data, fin))

    def datagram_written(self, data: bytes) -> None:
        self.calls.append(("datagram_written", data))

    def datagram_read(self, data: bytes) -> None:
        self.calls.append(("datagram_read", data))

    def reset_written(self, stream: int, code: int) -> None:
        self.calls.append(("reset_written", stream, code))

    def reset_read(self, stream: int, code: int) -> None:
        self.calls.append(("reset_read", stream, code))

    def channels_created(
        self,
        carrier: int,
        number: int,
        reliable: bool,
        channels: Sequence[int],
        modes: Sequence[str],
    ) -> None:
        assert len(channels) == len(modes)
        self.calls.append(("channels_created", carrier, number, reliable, tuple(channels)))

    def messages_taken(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        self.calls.append(("messages_taken", channel, list(batch)))

    def messages_rescued(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        self.calls.append(("messages_rescued", channel, list(batch)))

    def receiver_closed(self, channel: int) -> None:
        self.calls.append(("receiver_closed", channel))

    def events_raised(self, events: Sequence[Event], ports: Mapping[int, PortCounters]) -> None:
        self.calls.extend(("event_raised", event) for event in events)


# -- facts ----------------------------------------------------------------------------------------


class _Decoder:
    """Finds the frames in what a side wrote or read."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[SequenceParser, list[int]]] = {}

    def feed(self, stream: int | None, data: bytes) -> Iterator[tuple[int | None, Frame]]:
        """Yield each complete frame, with its channel if it has one."""
        parser, route = SequenceParser(_NO_LIMITS), list[int]()
        if stream is not None:
            parser, route = self._streams.setdefault(stream, (parser, route))
        parser.feed(data)
        while (found := parser.next()) is not None:
            if isinstance(found, RouteTo):
                route[:] = [found.channel]
            frames = list[Frame](found.messages() if isinstance(found, MessageRun) else (found,))
            for frame in frames:
                yield (None if isinstance(frame, _OF_CONNECTION) else route[0]), frame


def frame_fact(kind: str, stream: int | None, channel: int | None, frame: Frame) -> Fact:
    """Return the fact that a frame passed; a frame of the connection has no channel."""
    number = frame.number if isinstance(frame, MessageFrame) else None
    channel = None if isinstance(frame, _OF_CONNECTION) else channel
    return kind, stream, channel, frame_name(type(frame)), number


def taken_facts(channel: int, batch: Sequence[MessageFrame | MessageRun]) -> Iterator[Fact]:
    """Yield the facts that messages were taken, and the channels in them created."""
    for item in batch:
        for message in item.messages() if isinstance(item, MessageRun) else (item,):
            for attachment in message.attachments:
                yield "channel_created", attachment.channel, channel, message.number
            yield "message_taken", channel, message.number


def event_facts(event: Event) -> Iterator[Fact]:
    """Yield the facts in an event that an observer must keep."""
    if isinstance(event, Delivered | Undelivered):
        kind = "message_delivered" if isinstance(event, Delivered) else "message_undelivered"
        for start, stop in event.ranges:
            yield from ((kind, event.channel, event.reliable, at) for at in range(start, stop))
    elif isinstance(event, SenderEnded | ReceiverEnded):
        yield "channel_ended", event.channel, event.how.value
    elif isinstance(event, ConnectionEnded):
        yield "connection_ended", event.code, event.by_peer


def facts_of(calls: Sequence[Call]) -> Iterator[Fact]:
    """Yield the facts that an observer of these calls can know."""
    written, read = _Decoder(), _Decoder()
    for name, *arguments in calls:
        if name in ("stream_written", "stream_read"):
            stream, data, fin = arguments
            sent = name == "stream_written"
            for channel, frame in (written if sent else read).feed(stream, data):
                yield frame_fact("frame_sent" if sent else "frame_received", stream, channel, frame)
            if fin:
                yield "stream_finished" if sent else "stream_finish_received", stream
        elif name in ("datagram_written", "datagram_read"):
            sent = name == "datagram_written"
            for channel, frame in _Decoder().feed(None, arguments[0]):
                yield frame_fact("frame_sent" if sent else "frame_received", None, channel, frame)
        elif name in ("reset_written", "reset_read"):
            kind = "stream_reset" if name == "reset_written" else "stream_reset_received"
            yield kind, *arguments
        elif name == "channels_created":
            carrier, number, _, channels = arguments
            for made in channels:
                yield "channel_created", made, carrier, number
        elif name == "messages_taken":
            yield from taken_facts(*arguments)
        elif name == "receiver_closed":
            yield "channel_ended", arguments[0], "closed"
        elif name == "event_raised":
            yield from event_facts(arguments[0])


# -- callers --------------------------------------------------------------------------------------


def assert_order(client: CallLog, server: CallLog) -> None:
    """Check that a connection called the observers of its sides as `Observer` documents."""
    for log, peer in ((client, server), (server, client)):
        _assert_streams_are_whole(log.calls, peer.calls)
        _assert_creations_come_first(log.calls)
        _assert_taken_after_read(log.calls)
        _assert_events_have_causes(log.calls)
        _assert_the_end_is_last(log.calls)


def _assert_streams_are_whole(calls: Sequence[Call], peer: Sequence[Call]) -> None:
    """Rule 1: in order, without gaps, nothing after the end; what is read was written."""
    written = _contents(calls, "stream_written", "reset_written")
    read = _contents(peer, "stream_read", "reset_read")
    assert read.keys() <= written.keys()
    for stream, data in read.items():
        assert written[stream].startswith(data)
    sent = [call[1] for call in calls if call[0] == "datagram_written"]
    for call in peer:
        if call[0] == "datagram_read":
            sent.remove(call[1])


def _contents(calls: Sequence[Call], piece: str, reset: str) -> dict[int, bytes]:
    contents: dict[int, bytes] = {}
    ended: set[int] = set()
    for name, *arguments in calls:
        if name == piece:
            stream, data, fin = arguments
            assert stream not in ended
            contents[stream] = contents.get(stream, b"") + data
            if fin:
                ended.add(stream)
        elif name == reset:
            ended.add(arguments[0])
    return contents


def _frames(calls: Sequence[Call], stream: str, datagram: str) -> Iterator[tuple[int, int, Frame]]:
    """Yield each frame of a channel: when it was complete, its channel, and the frame."""
    decoder = _Decoder()
    for at, (name, *arguments) in enumerate(calls):
        found: Iterator[tuple[int | None, Frame]] = iter(())
        if name == stream:
            found = decoder.feed(arguments[0], arguments[1])
        elif name == datagram:
            found = _Decoder().feed(None, arguments[0])
        for channel, frame in found:
            if channel is not None:
                yield at, channel, frame


def _assert_creations_come_first(calls: Sequence[Call]) -> None:
    """Rule 2."""
    created: set[int] = {ENTRYPOINT}
    when = dict[int, list[Frame]]()
    for at, _, frame in _frames(calls, "stream_written", "datagram_written"):
        when.setdefault(at, []).append(frame)
    for at, (name, *arguments) in enumerate(calls):
        if name == "channels_created":
            assert not created & set(arguments[3])
            created.update(arguments[3])
        for frame in when.get(at, ()):
            if isinstance(frame, MessageFrame):
                assert {each.channel for each in frame.attachments} <= created


def _assert_taken_after_read(calls: Sequence[Call]) -> None:
    """Rule 3."""
    arrived = list(_frames(calls, "stream_read", "datagram_read"))
    for at, (name, *arguments) in enumerate(calls):
        if name == "messages_taken":
            numbers = {fact[2] for fact in taken_facts(*arguments) if fact[0] == "message_taken"}
            there = {
                frame.number
                for when, channel, frame in arrived
                if when < at and channel == arguments[0] and isinstance(frame, MessageFrame)
            }
            assert numbers <= there


def _assert_events_have_causes(calls: Sequence[Call]) -> None:
    """Rule 4."""
    acked = [
        (when, channel)
        for when, channel, frame in _frames(calls, "stream_read", "datagram_read")
        if isinstance(frame, AckReliable | AckNackUnreliable)
    ]
    ended: set[int] = set()
    for at, (name, *arguments) in enumerate(calls):
        if name != "event_raised":
            continue
        event = arguments[0]
        channel = getattr(event, "channel", None)
        assert channel not in ended
        if isinstance(event, Delivered):
            assert any(when < at and channel == where for when, where in acked)
        if isinstance(event, SenderEnded | ReceiverEnded):
            ended.add(event.channel)


def _assert_the_end_is_last(calls: Sequence[Call]) -> None:
    """Rule 5."""
    ends = [
        at
        for at, (name, *arguments) in enumerate(calls)
        if name == "event_raised" and isinstance(arguments[0], ConnectionEnded)
    ]
    assert len(ends) == 1
    late = {call[0] for call in calls[ends[0] + 1 :]}
    assert not late & {"event_raised", "channels_created", "messages_rescued"}


# -- implementations ------------------------------------------------------------------------------


class Candidate(Protocol):
    """An implementation of `Observer` at both sides of a connection."""

    kinds: frozenset[str]
    """The kinds of facts that it keeps."""

    def observers(self) -> tuple[Sequence[Observer], Sequence[Observer]]:
        """Return the observers to attach to the client and to the server."""

    def facts(self, side: Side, record: Record) -> list[Fact]:
        """Return the facts of a side; ``record`` is that of the simulator."""


def assert_observes_everything(candidate: Candidate) -> None:
    """Run the script, and check that an implementation has the same facts as a log."""
    logs = CallLog(), CallLog()
    attached = candidate.observers()
    pair = play((logs[0], *attached[0]), (logs[1], *attached[1]))
    assert_order(*logs)
    known = {fact[0] for log in logs for fact in facts_of(log.calls)}
    assert known == KINDS, "the script does not show everything"
    for side in Side:
        expected = [fact for fact in facts_of(logs[side].calls) if fact[0] in candidate.kinds]
        assert candidate.facts(side, pair.record) == expected


def play(client: Sequence[Observer], server: Sequence[Observer]) -> Pair:
    """Run the script: every kind of frame, both number spaces, and every end of a channel."""
    pair = Pair(observers=(client, server))
    pair.run(0.1)
    pair.client.send(ENTRYPOINT, b"zero")
    pair.client.send(ENTRYPOINT, b"one")
    ordered, datagrams, closed, answers = pair.client.send_message(
        ENTRYPOINT,
        b"two",
        headers=((b"name", b"value"),),
        attach=[
            Attach(Give.RECEIVER),
            Attach(Give.RECEIVER, mode=Mode.UNRELIABLE),
            Attach(Give.RECEIVER),
            Attach(Give.SENDER),
        ],
    ).channels
    for channel in (ordered, datagrams, closed):
        pair.client.send(channel, b"first")
    pair.run(0.1)
    for channel in (ENTRYPOINT, ordered, datagrams):
        assert pair.server.take(channel)
    pair.server.send(answers, b"answer")
    pair.server.finish(answers)
    pair.run(0.1)
    # The second message of ``closed`` is in flight when its receiver is closed.
    pair.client.send(closed, b"second")
    pair.server.close(closed)
    pair.client.cancel(ordered)
    pair.client.finish(datagrams)
    assert pair.client.take(answers)
    pair.run(1.0)
    pair.server.take(datagrams)
    pair.run(0.1)
    pair.client.close_connection(CloseCode.NO_ERROR, "done")
    pair.run(0.1)
    assert pair.violations() == []
    return pair
