"""Outgoing streams and datagrams: the order in which they leave, in few writes per poll.

What a transport has no room for stays here, where more urgent things can still overtake it. In
each poll resets leave first, then frames that carry no message, then datagrams and messages as the
`Scheduler` says (AQ-PRIO-2).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import cast

from aqueduct.protocol.actions import (
    Action,
    CloseConnection,
    ResetStream,
    Room,
    SendDatagram,
    WriteStream,
)
from aqueduct.protocol.outgoing_stream import OutgoingDatagram, OutgoingStream, SenderFlow
from aqueduct.protocol.priorities import Scheduler
from aqueduct.wire.frames import AckVersion, RouteTo, Version
from aqueduct.wire.primitives import varint_size

_VERSION = Version().encode()
_ACK_VERSION = AckVersion().encode()


class Outgoing:
    """All streams and datagrams of one side that have something to send."""

    __slots__ = (
        "_by_channel",
        "_control",
        "_datagrams",
        "_dead",
        "_last_channel",
        "_last_route",
        "_next_stream",
        "_quantum",
        "_resets",
        "_scheduler",
        "_unopened",
        "_unopened_flows",
        "closing",
        "holds_datagrams",
        "max_datagram",
        "unacked",
        "version_acked",
    )

    def __init__(self, max_datagram: int, quantum: int = 16_384) -> None:
        self.version_acked = False
        self.holds_datagrams = False
        """Whether datagrams wait for the handshake (AQ-EARLY-3)."""
        self.max_datagram = max_datagram
        """Bytes of the largest datagram."""
        self._next_stream = 0
        self._last_channel = -1
        self._last_route = b""
        self._control: deque[OutgoingStream] = deque()
        """Streams with frames that carry no message."""
        self._unopened: OrderedDict[OutgoingStream, None] = OrderedDict()
        """Those that wait for stream credit (AQ-STREAM-9)."""
        self._quantum = quantum
        self._scheduler = Scheduler(quantum)
        self._unopened_flows: OrderedDict[SenderFlow, None] = OrderedDict()
        """Flows whose next stream waits for stream credit."""
        self._datagrams: deque[OutgoingDatagram] = deque()
        self._dead = 0
        """How many of them were dropped."""
        self._by_channel: dict[int, deque[OutgoingDatagram]] = {}
        self._resets: list[ResetStream] = []
        self.unacked: set[int] = set()
        """Streams of one message each that the peer has not acked: a cancel resets them, although
        they are finished (AQ-CANCEL-1)."""
        self.closing: CloseConnection | None = None
        """The close, which follows what waits."""

    def prelude(self, channel: int) -> bytes:
        """Return the first frames of a sequence (AQ-STREAM-1), VERSION included (AQ-VERSION-1)."""
        if channel != self._last_channel:
            self._last_channel = channel
            self._last_route = RouteTo(channel).encode()
        route = self._last_route
        return route if self.version_acked else _VERSION + route

    def open(self, channel: int, flow: SenderFlow | None = None) -> OutgoingStream:
        """Open a stream that is routed to a channel; one of messages belongs to a flow."""
        stream = OutgoingStream(self._next_stream, flow)
        self._next_stream += 1
        self.write(stream, self.prelude(channel))
        return stream

    def open_greeting(self, *, ack_version: bool) -> OutgoingStream:
        """Open a stream for frames of the connection: VERSION while not acked, and ACK_VERSION."""
        stream = OutgoingStream(self._next_stream)
        self._next_stream += 1
        start = b"" if self.version_acked else _VERSION
        self.write(stream, start + _ACK_VERSION if ack_version else start)
        return stream

    def write(self, stream: OutgoingStream, data: bytes) -> None:
        """Append to a stream, unless it was reset."""
        if stream.was_reset:
            return
        stream.end_run()
        if stream.chunks is None:
            stream.chunks = []
        stream.chunks.append(data)
        self.touch(stream)

    def begin_run(self, stream: OutgoingStream, number: int) -> list[bytes]:
        """Start a run at a message number; return the list to which payloads are appended."""
        stream.run_first = number
        stream.run = []
        self.touch(stream)
        return stream.run

    def finish(self, stream: OutgoingStream) -> None:
        """Finish a stream after what was written."""
        stream.fin = True
        self.touch(stream)

    def write_alone(self, stream: OutgoingStream, data: bytes) -> None:
        """Write the only message of a stream, and finish it."""
        self.unacked.add(stream.number)
        self.write(stream, data)
        stream.fin = True

    def finish_behind(
        self,
        stream: OutgoingStream,
        flow: SenderFlow,
        channel: int,
        frame: bytes,
        announcement: bytes = b"",
    ) -> None:
        """Finish a stream with FINISH_SENDER, behind the messages of its channel (AQ-PRIO-5).

        The announcement of datagrams that have not left waits for these only.
        """
        datagrams = self._by_channel.get(channel)
        if stream.flow is None and datagrams:
            datagrams[-1].last = (stream, flow, announcement, frame)
        elif stream.flow is None and flow.streams and flow not in self._unopened_flows:
            stream.finish_frame = frame
            flow.append(stream)
        else:
            self.write(stream, frame)
            self.finish(stream)

    def touch(self, stream: OutgoingStream) -> None:
        """Queue the stream for the next poll."""
        if not stream.queued:
            stream.queued = True
            flow = stream.flow
            if flow is None:
                self._control.append(stream)
            else:
                flow.append(stream)
                if not flow.is_waiting and flow not in self._unopened_flows:
                    self._scheduler.add(flow)

    def set_priority(self, flow: SenderFlow, priority: int) -> None:
        """Change the class of what waits, and of what follows (AQ-PRIO-1)."""
        self._scheduler.move(flow, priority)

    def reset(self, stream: OutgoingStream, code: int) -> None:
        """Reset a stream, even a finished one; drop one that the transport has not seen."""
        if stream.was_reset:
            return
        stream.was_reset = True
        stream.clear()
        self.unacked.discard(stream.number)
        if stream.opened:
            self._resets.append(ResetStream(stream.number, code))
        flow = stream.flow
        if flow is None:
            self._unopened.pop(stream, None)
        elif flow in self._unopened_flows:  # what is behind the stream may not need credit
            del self._unopened_flows[flow]
            self._scheduler.add(flow)

    def add_to_datagram(self, channel: int, number: int, frame: bytes) -> None:
        """Add a message to the last datagram if it fits, else to a new one (AQ-SEND-4)."""
        if self._datagrams:
            last = self._datagrams[-1]
            if (
                last.channel == channel
                and not last.dead
                and last.length + len(frame) <= self.max_datagram
            ):
                last.chunks.append(frame)
                last.length += len(frame)
                last.stop = number + 1
                return
        datagram = OutgoingDatagram(channel, number, self.prelude(channel))
        datagram.chunks.append(frame)
        datagram.length += len(frame)
        datagram.stop = number + 1
        self._datagrams.append(datagram)
        self._by_channel.setdefault(channel, deque()).append(datagram)

    def fits_datagram(self, channel: int, length: int) -> bool:
        """Return whether a frame of this length fits a datagram."""
        version = 0 if self.version_acked else len(_VERSION)
        return version + 1 + varint_size(channel) + length <= self.max_datagram

    def first_unsent(self, channel: int) -> int:
        """Return the number of the first message in a datagram that has not left, or -1."""
        mine = self._by_channel.get(channel)
        return mine[0].first if mine else -1

    def drop_oldest_datagram(self, channel: int) -> tuple[int, int] | None:
        """Drop the channel's oldest unsent datagram; return the range of its numbers."""
        datagrams = self._by_channel.get(channel)
        if not datagrams:
            return None
        datagram = datagrams.popleft()
        if not datagrams:
            del self._by_channel[channel]
        self._drop(datagram)
        return datagram.first, datagram.stop

    def drop_datagrams(self, channel: int) -> None:
        """Drop all unsent datagrams of a channel."""
        for datagram in self._by_channel.pop(channel, ()):
            self._drop(datagram)

    def _drop(self, datagram: OutgoingDatagram) -> None:
        datagram.dead = True
        datagram.chunks.clear()
        self._dead += 1
        if 2 * self._dead > len(self._datagrams):
            self._datagrams = deque([each for each in self._datagrams if not each.dead])
            self._dead = 0

    def close(self, code: int, reason: str, *, at_once: bool) -> None:
        """Close the connection, at once or after the output that has not left."""
        if at_once:
            self.clear()
        self.closing = CloseConnection(code, reason)

    def clear(self) -> None:
        """Drop all output."""
        self._scheduler.clear()
        self._unopened_flows.clear()
        self._control.clear()
        self._unopened.clear()
        self._resets.clear()
        self._datagrams.clear()
        self._dead = 0
        self._by_channel.clear()
        self.unacked.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits for the transport to have room."""
        return bool(
            self._scheduler.waiting
            or self._control
            or self._datagrams
            or self._resets
            or self._unopened
            or self._unopened_flows
        )

    @property
    def size(self) -> int:
        """The bytes that wait. This takes linear time."""
        streams = [*self._control, *self._unopened]
        for flow in (*self._scheduler.flows(), *self._unopened_flows):
            assert isinstance(flow, SenderFlow)
            streams += flow.streams or ()
        datagrams = sum(each.length for each in self._datagrams if not each.dead)
        return datagrams + sum(stream.size for stream in streams)

    def poll(self, room: Room | None = None) -> list[Action]:
        """Return the actions that there is room for, in order; the close when nothing waits."""
        if room is None:
            room = Room()
        actions: list[Action] = [*self._resets]
        self._resets.clear()
        if self._control or self._unopened:
            self._poll_control(room, cast("list[Action | OutgoingStream]", actions))
        if not self._control:
            if self._unopened_flows and room.message_streams > 0:
                self._retry_unopened(room.message_streams)
            if self._scheduler.waiting or self._datagrams:
                self._poll_scheduled(room, actions)
        if self.closing is not None and not self.is_waiting:
            actions.append(self.closing)
            self.closing = None
        return actions

    # -- inside ----------------------------------------------------------------------------------

    def _poll_control(self, room: Room, actions: list[Action | OutgoingStream]) -> None:
        """Add what carries no message; it may use the room for urgent things, too."""
        control, unopened = self._control, self._unopened
        if unopened and room.streams > 0:
            count = min(len(unopened), room.streams)
            first = [unopened.popitem(last=False)[0] for _ in range(count)]
            control.extendleft(reversed(first))
        while control and room.writes > 0 and room.bytes + room.urgent > 0:
            stream = control.popleft()
            if stream.was_reset:
                stream.queued = False
            elif not stream.opened and room.streams <= 0:
                unopened[stream] = None
            else:
                stream.queued = False
                if not stream.opened:
                    self._open(stream, room)
                data = stream.take(1 << 62)
                room.bytes -= len(data)
                room.writes -= 1
                actions.append(WriteStream(stream.number, data, stream.fin))

    def _retry_unopened(self, streams: int) -> None:
        """Let flows that waited for stream credit wait for their turn again."""
        for _ in range(min(len(self._unopened_flows), streams)):
            flow, _nothing = self._unopened_flows.popitem(last=False)
            self._scheduler.add(flow)

    def _poll_scheduled(self, room: Room, actions: list[Action]) -> None:
        """Add datagrams and messages by turns.

        What several turns add to a stream is one write: writes cost more than bytes.
        """
        scheduler, datagrams = self._scheduler, self._datagrams
        scheduler.quantum = max(self._quantum, room.quantum)
        batch: list[Action | OutgoingStream] = []
        pieces: dict[int, list[bytes]] = {}
        while room.writes > 0:
            while datagrams and datagrams[0].dead:
                datagrams.popleft()
                self._dead -= 1
            with_datagrams = bool(datagrams) and not self.holds_datagrams
            flow = scheduler.next(with_datagrams=with_datagrams) if room.bytes > 0 else None
            if flow is None:
                if not with_datagrams or room.bytes + room.urgent <= 0:
                    break
                scheduler.spend_datagram(self._send_datagram(room, batch))
                continue
            assert isinstance(flow, SenderFlow)
            most = scheduler.grant(flow, with_datagrams=with_datagrams)
            most = min(most, room.bytes)
            size = self._send_from(flow, most, room, batch, pieces)
            if size < 0:
                scheduler.remove(flow)
                self._unopened_flows[flow] = None
                self._finish_before(flow, room, batch)
            elif flow.streams:
                scheduler.charge(flow, size)
            else:
                scheduler.spend(size)
                scheduler.remove(flow)
        for entry in batch:
            if isinstance(entry, OutgoingStream):
                parts = pieces[entry.number]
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                is_last = entry.fin and entry.is_empty
                actions.append(WriteStream(entry.number, data, is_last, True))
            else:
                actions.append(entry)

    def _send_datagram(self, room: Room, batch: list[Action | OutgoingStream]) -> int:
        datagram = self._datagrams.popleft()
        mine = self._by_channel[datagram.channel]
        mine.popleft()
        if not mine:
            del self._by_channel[datagram.channel]
        batch.append(SendDatagram(b"".join(datagram.chunks)))
        room.bytes -= datagram.length
        room.writes -= 1
        if datagram.last is not None:
            stream, flow, announcement, frame = datagram.last
            if announcement:
                self.write(stream, announcement)
            if not stream.was_reset:
                self.finish_behind(stream, flow, datagram.channel, frame)
            self._poll_control(room, batch)
        return datagram.length

    def _send_from(
        self,
        flow: SenderFlow,
        most: int,
        room: Room,
        batch: list[Action | OutgoingStream],
        pieces: dict[int, list[bytes]],
    ) -> int:
        """Take the next data of a flow; return its size, or -1 if it needs stream credit."""
        stream = flow.first()
        if stream.was_reset:
            stream.queued = False
            flow.drop_first()
            return 0
        if stream.finish_frame is not None:
            flow.drop_first()
            self._finish_now(stream, room, batch)
            return 0
        parts = pieces.get(stream.number)
        if parts is None:
            if not stream.opened:
                if room.message_streams <= 0:
                    return -1
                self._open(stream, room)
            parts = pieces[stream.number] = []
            batch.append(stream)
            room.writes -= 1
        data = stream.take(most)
        parts.append(data)
        room.bytes -= len(data)
        if stream.is_empty:
            stream.queued = False
            flow.drop_first()
        return len(data)

    def _finish_before(
        self, flow: SenderFlow, room: Room, batch: list[Action | OutgoingStream]
    ) -> None:
        """Send the FINISH_SENDER of a flow without stream credit: it ends a stream (AQ-PRIO-5)."""
        assert flow.streams is not None
        stream = flow.streams[-1]
        if stream.finish_frame is not None:
            flow.streams.pop()
            self._finish_now(stream, room, batch)

    def _finish_now(
        self, stream: OutgoingStream, room: Room, batch: list[Action | OutgoingStream]
    ) -> None:
        if stream.finish_frame is not None:
            self.write(stream, stream.finish_frame)  # behind announcements that wait as well
            stream.finish_frame = None
            self.finish(stream)
            self._poll_control(room, batch)

    def _open(self, stream: OutgoingStream, room: Room) -> None:
        stream.opened = True
        room.streams -= 1
        room.message_streams -= 1
