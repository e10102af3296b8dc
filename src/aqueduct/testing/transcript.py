"""The transcript of a run: a line per entry of its record, and a hash to compare runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    Event,
    PeerHeaders,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.testing.record import (
    NO_CHANNEL,
    CommandCalled,
    ConnectionClosed,
    ConnectionGone,
    CoreFault,
    Entry,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageSent,
    MessageTaken,
    Record,
    RttMeasured,
    SendFailed,
    StreamEnded,
)
from aqueduct.wire.chanid import describe
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    Frame,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    frame_name,
)


def transcript(record: Record) -> Iterator[str]:
    """Return the lines of the transcript: time, side, what happened.

    ``>>`` marks what a side sent, ``<<`` what it received, ``!`` an event of the application; the
    other lines are actions of the application.
    """
    for entry in record.entries:
        yield f"{entry.time:11.6f} {entry.side.name.lower():6} {_format_entry(entry)}"


def transcript_hash(lines: Iterable[str]) -> str:
    """Return a short hash of a transcript: equal runs have equal hashes."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _format_entry(entry: Entry) -> str:
    if isinstance(entry, FrameSent):
        return f">> {_place(entry)} {_format_frame(entry)}"
    if isinstance(entry, FrameArrived):
        return f"<< {_place(entry.sent)} {_format_frame(entry.sent)}"
    if isinstance(entry, StreamEnded):
        end = "finished" if entry.reset is None else f"reset with code {entry.reset}"
        return f">> s{entry.stream} is {end}"
    if isinstance(entry, RttMeasured):
        return f"<< the round-trip time is {entry.rtt * 1000:.1f} ms"
    if isinstance(entry, EventRaised):
        return f"!  {_format_event(entry.event)}"
    if isinstance(entry, MessageSent):
        kind = "message" if entry.reliable else "datagram message"
        made = "".join(f" +{describe(each.channel)}" for each in entry.attached)
        headers = f", {len(entry.headers)} headers" if entry.headers else ""
        size = len(entry.payload)
        return (
            f"   sends {kind} {entry.number} on {describe(entry.channel)}: {size} B{headers}{made}"
        )
    if isinstance(entry, SendFailed):
        return f"   cannot send on {describe(entry.channel)}: {entry.error}"
    if isinstance(entry, MessageTaken):
        message = entry.message
        got = "".join(f" +{describe(each.channel)}" for each in message.attachments)
        size = len(message.payload)
        return f"   takes message {message.number} from {describe(entry.channel)}: {size} B{got}"
    if isinstance(entry, CommandCalled):
        where = "" if entry.channel == NO_CHANNEL else f" {describe(entry.channel)}"
        return f"   {entry.verb}{where} {entry.detail}".rstrip()
    if isinstance(entry, ConnectionClosed):
        return f">> closes the connection, code {entry.code} {entry.reason}"
    if isinstance(entry, ConnectionGone):
        return f"<< the connection is lost, code {entry.code} {entry.reason}"
    assert isinstance(entry, CoreFault)
    return f"✗  {entry.text}"


def _place(sent: FrameSent) -> str:
    place = f"d{-1 - sent.stream}" if sent.in_datagram else f"s{sent.stream}"
    return place if sent.channel == NO_CHANNEL else f"{place} {describe(sent.channel)}"


def _format_frame(sent: FrameSent) -> str:
    frame: Frame = sent.frame
    if isinstance(frame, MessageFrame):
        made = "".join(f" +{describe(each.channel)}" for each in frame.attachments)
        return f"MESSAGE {frame.number} ({frame.size} B){made}"
    if isinstance(frame, AckReliable):
        return f"ACK_RELIABLE {_format_ranges(frame.ranges)}"
    if isinstance(frame, AckNackUnreliable):
        marks = [
            f"{'nack' if position % 2 else 'ack'} {length}"
            for position, length in enumerate(frame.lengths)
            if length
        ]
        return f"ACK_NACK_UNRELIABLE {', '.join(marks)}"
    if isinstance(frame, Dequeued):
        return f"DEQUEUED {frame.num_bytes} B"
    if isinstance(frame, SentUnreliable):
        return f"SENT_UNRELIABLE {frame.count}"
    if isinstance(frame, FinishSender):
        return f"FINISH_SENDER after {frame.sent_reliable}"
    if isinstance(frame, ConnectionHeaders):
        return f"CONNECTION_HEADERS ({len(frame.headers)})"
    if isinstance(frame, RouteTo):
        return "ROUTE_TO"
    return frame_name(type(frame))


def _format_event(event: Event) -> str:
    if isinstance(event, Delivered | Undelivered):
        space = "" if event.reliable else "datagram "
        name = type(event).__name__.lower()
        return f"{space}{name} {_format_ranges(event.ranges)} on {describe(event.channel)}"
    if isinstance(event, SenderEnded | ReceiverEnded):
        half = "sender" if isinstance(event, SenderEnded) else "receiver"
        above = ", ".join(describe(each) for each in event.lineage)
        lineage = f" (under {above})" if above else ""
        return f"{half} of {describe(event.channel)} ended: {event.how.value}{lineage}"
    if isinstance(event, PeerHeaders):
        return f"peer's headers ({len(event.headers)})"
    if isinstance(event, ConnectionEnded):
        return f"connection ended, code {event.code} {event.reason}"
    return f"{type(event).__name__.lower()} {describe(event.channel)}"


def _format_ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(
        str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in ranges
    )
