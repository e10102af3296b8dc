"""A simulated peer that knows only the reference draft, and nothing of this specification.

It shares the encoding of frames with the product, but none of the protocol. Where the draft leaves
a choice, it makes the one that is hardest for us:

- It states no limits, ignores ours, and never sends DEQUEUED.
- It remembers ended channels of ours for one second. A frame that comes later revives the channel
  as a ghost, which lives until FORGET_CHANNEL comes.
- It answers a ROUTE_TO for an ended channel of its own with FORGET_CHANNEL at once, every time.
- It ends its half as soon as FORGET_CHANNEL comes.
- It never announces the datagrams of a sender that it cancelled.
- It answers a ROUTE_TO in a stream of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from aqueduct.errors import ChannelClosed, CloseCode, ReceiverClosed
from aqueduct.protocol.actions import (
    CloseConnection,
    ResetStream,
    SendDatagram,
)
from aqueduct.protocol.connection import Attach, Mode, SentMessage
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    End,
    PeerHeaders,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.testing.draft_halves import (
    NEVER,
    DraftHalf,
    DraftIncoming,
    DraftReceiver,
    DraftSender,
)
from aqueduct.testing.draft_output import RESET_CODE, DraftOutput
from aqueduct.wire.chanid import (
    ENTRYPOINT,
    Side,
    creator_of,
    is_oneshot,
    sender_of,
)
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    Attachment,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    FinishSender,
    ForgetChannel,
    Frame,
    MessageFrame,
    MessageRun,
    RouteTo,
    SentUnreliable,
    Version,
)
from aqueduct.wire.primitives import HeaderPairs

SHORTLY = 0.005
"""Seconds of delay, where the draft says "shortly after"."""
RECEIPT_DEADLINE = 1.0
MEMORY = 1.0
"""How long an ended channel of the peer's creation is remembered."""


class DraftCore(DraftOutput):
    """The side of a connection; it has the methods of `ConnectionCore` that a simulation calls."""

    def __init__(self, side: Side, *, headers: HeaderPairs = ()) -> None:
        super().__init__(side)
        self._streams: dict[int, DraftIncoming] = {}
        self._early: list[DraftIncoming] = []
        self._version_seen = self._has_headers = self._ready = self._ended = False
        self._senders: dict[int, DraftSender] = {}
        self._receivers: dict[int, DraftReceiver] = {}
        self._untaken: dict[int, DraftReceiver] = {}
        """Receivers that ended, until the application has their queue."""
        self._pending: dict[int, DraftSender] = {}
        """Senders that ended, until they are known to be accessible or lost."""
        self._destroyed: dict[int, float] = {}
        if side == Side.CLIENT:
            self._senders[ENTRYPOINT] = DraftSender(ENTRYPOINT, True)
            self._open(ConnectionHeaders(headers), fin=True)
        else:
            self._receivers[ENTRYPOINT] = DraftReceiver(ENTRYPOINT, True)

    # -- inputs ----------------------------------------------------------------------------------

    def handle_stream_data(self, stream: int, data: bytes, fin: bool, now: float) -> None:
        """Process bytes of an incoming stream."""
        if not self._ended:
            incoming = self._streams.setdefault(stream, DraftIncoming(False))
            self._feed(incoming, data, now)
            if fin:
                del self._streams[stream]

    def handle_stream_reset(self, stream: int, code: int, now: float) -> None:
        """Ignore what was not received completely."""
        incoming = self._streams.pop(stream, None)
        if incoming is not None and incoming in self._early:
            self._early.remove(incoming)

    def handle_datagram(self, data: bytes, now: float) -> None:
        """Process a datagram."""
        if not self._ended:
            self._feed(DraftIncoming(True), data, now)

    def handle_timer(self, now: float) -> None:
        """Send what is due."""
        for sender in list(self._senders.values()):
            if sender.announce_at <= now:
                self._announce(sender)
            self._answer_route(sender, now)
        for receiver in list(self._receivers.values()):
            self._answer_route(receiver, now)
            if receiver.ack_at <= now:
                self._ack(receiver)
            while receiver.deadlines and receiver.deadlines[0][0] <= now:
                self._decide(receiver, receiver.deadlines.pop(0)[1])
            self._close_if_complete(receiver, now)

    def handle_connection_lost(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        """End everything with the connection."""
        if not self._ended:
            self._end(code, reason, by_peer)
            self._actions.clear()

    # -- commands --------------------------------------------------------------------------------

    def accept(self, headers: HeaderPairs, now: float) -> None:
        """Accept the client."""
        if not self._ended:
            self._open(ConnectionHeaders(headers), fin=True)
            self._become_ready(now)

    def refuse(self, code: CloseCode, reason: str, now: float) -> None:
        """Refuse the client."""
        self.close_connection(code, reason, now)

    def close_connection(self, code: CloseCode, reason: str, now: float) -> None:
        """Close the connection."""
        if not self._ended:
            self._end(code, reason, False)
            self._actions.append(CloseConnection(code, reason))

    def set_mode(self, channel: int, mode: Mode) -> None:
        """Choose how to send."""
        if channel in self._senders:
            self._senders[channel].mode = mode

    def send(self, channel: int, payload: bytes, now: float) -> int:
        """Send a plain message; return its number."""
        return self.send_message(channel, payload, now).number

    def send_message(
        self,
        channel: int,
        payload: bytes,
        now: float,
        *,
        headers: HeaderPairs = (),
        attach: Sequence[Attach] = (),
    ) -> SentMessage:
        """Send a message."""
        sender = self._open_sender(channel)
        attachments = tuple(Attachment(self._new_id(one), one.headers) for one in attach)
        frame = MessageFrame(sender.unreliable, headers, attachments, payload)
        reliable = sender.mode is not Mode.UNRELIABLE or not self._fits(frame)
        if reliable:
            frame = MessageFrame(sender.reliable, headers, attachments, payload)
            sender.reliable += 1
            if sender.mode is not Mode.ORDERED:
                sender.messages.append(self._route(sender, frame, fin=True))
            elif sender.ordered is None:
                sender.ordered = self._route(sender, frame)
                sender.messages.append(sender.ordered)
            else:
                self._write(sender.ordered, frame)
        else:
            sender.unreliable += 1
            sender.named = True
            data = self._encode(RouteTo(channel), frame)
            self._actions.append(SendDatagram(data))
            sender.announce_at = min(sender.announce_at, now + SHORTLY)
        for one, attachment in zip(attach, attachments, strict=True):
            self._create(attachment.channel, one.mode)
        if attachments:
            made = [attachment.channel for attachment in attachments]
            sender.carried[reliable, frame.number] = made
        if is_oneshot(channel):
            self.finish(channel, now)
        return SentMessage(frame.number, reliable, tuple(each.channel for each in attachments))

    def finish(self, channel: int, now: float) -> None:
        """Finish a sender."""
        sender = self._senders.get(channel)
        if sender is None or not sender.open:
            return
        sender.open = False
        frame = FinishSender(sender.reliable)
        if sender.unreliable:
            self._announce(sender)
            assert sender.control is not None
            self._write(sender.control, frame, fin=True)
        elif sender.ordered is not None:
            self._write(sender.ordered, frame, fin=True)
        else:
            self._route(sender, frame, fin=True)

    def cancel(self, channel: int, now: float) -> None:
        """Cancel a sender, and announce nothing more."""
        sender = self._senders.get(channel)
        if sender is None or not sender.open:
            return
        sender.open, sender.cancelled = False, True
        sender.announce_at = NEVER
        for stream in sender.messages:
            self._actions.append(ResetStream(stream, RESET_CODE))
        sender.messages = []
        self._route(sender, CancelSender(), fin=True)

    def close(self, channel: int, now: float) -> None:
        """Close a receiver."""
        receiver = self._receivers.get(channel) or self._untaken.pop(channel, None)
        if receiver is not None:
            receiver.held = False
            self._close(receiver, None, now)

    def leave(self, now: float) -> None:
        """Finish the entrypoint; the draft knows no other way to leave."""
        self.finish(ENTRYPOINT, now)

    def take(self, channel: int, limit: int, now: float) -> list[MessageFrame]:
        """Take messages; the application gets the handles in them."""
        receiver = self._receivers.get(channel) or self._untaken.get(channel)
        if receiver is None:
            return []
        taken = receiver.queue[:limit]
        del receiver.queue[:limit]
        for message in taken:
            for attachment in message.attachments:
                self._claim(attachment.channel)
        self._settle(receiver)
        return taken

    def next_timer(self) -> float | None:
        """Return when to call `handle_timer`."""
        times = [min(sender.announce_at, sender.route_at) for sender in self._senders.values()]
        for receiver in self._receivers.values():
            times += [receiver.ack_at, receiver.route_at]
            times += [deadline for deadline, _ in receiver.deadlines[:1]]
        due = min(times, default=NEVER)
        return None if self._ended or due == NEVER else due

    def leftovers(self) -> list[str]:
        """Describe the halves that did not end, including ghosts that were never forgotten."""
        if self._ended:
            return []
        return [
            f"a {'ghost' if not half.held else 'half'} of channel {half.channel}"
            for half in (*self._senders.values(), *self._receivers.values())
        ]

    # -- reading ---------------------------------------------------------------------------------

    def _feed(self, incoming: DraftIncoming, data: bytes, now: float) -> None:
        parser = incoming.parser
        if parser is None:
            return
        parser.feed(data)
        while incoming.parser is not None and (frame := parser.next()) is not None:
            if isinstance(frame, Version | AckVersion | ConnectionHeaders):
                self._handle_prelude(frame, now)
            elif self._ready:
                self._process(incoming, frame, now)
            else:
                if not incoming.waiting:
                    self._early.append(incoming)
                incoming.waiting.append(frame)

    def _handle_prelude(self, frame: Frame, now: float) -> None:
        if isinstance(frame, AckVersion):
            self._version_acked = True
        elif isinstance(frame, Version):
            if not self._version_seen:
                self._version_seen = True
                self._open(AckVersion(), fin=True)
        elif isinstance(frame, ConnectionHeaders) and not self._has_headers:
            self._has_headers = True
            self._events.append(PeerHeaders(frame.headers))
            if self.side == Side.CLIENT:
                self._become_ready(now)

    def _become_ready(self, now: float) -> None:
        self._ready = True
        early, self._early = self._early, []
        for incoming in early:
            for frame in incoming.waiting:
                if incoming.parser is not None:
                    self._process(incoming, frame, now)

    def _process(self, incoming: DraftIncoming, frame: Frame | MessageRun, now: float) -> None:
        if isinstance(frame, RouteTo):
            incoming.half = self._half_of(frame.channel, now)
        half = incoming.half
        if half is None or not self._exists(half):
            incoming.parser = None  # ignored to its end
        elif isinstance(frame, ForgetChannel):
            self._destroy(half, now)
            self._untaken.pop(half.channel, None)
            self._lose(half, now)
        elif isinstance(half, DraftSender):
            self._handle_for_sender(half, frame, now)
        elif isinstance(half, DraftReceiver) and half.end is None:
            self._handle_for_receiver(half, frame, incoming.datagram, now)

    def _exists(self, half: DraftHalf) -> bool:
        channel = half.channel
        tables = (self._senders, self._receivers, self._untaken)
        return any(half is table.get(channel) for table in tables)

    def _half_of(self, channel: int, now: float) -> DraftHalf | None:
        """Return the half of a ROUTE_TO: an existing one, a new one, or none."""
        half: DraftHalf | None = self._senders.get(channel) or self._receivers.get(channel)
        untaken = self._untaken.get(channel)
        if half is None and untaken is not None and not untaken.held:
            half = untaken
        if half is not None:
            return half
        if creator_of(channel) == self.side or channel == ENTRYPOINT:
            if channel != ENTRYPOINT:
                self._forget(channel)
            return None
        if self._destroyed.get(channel, -NEVER) > now - MEMORY:
            return None
        made = self._create(channel, Mode.ORDERED)
        made.route_at = now + SHORTLY
        return made

    def _handle_for_sender(
        self, sender: DraftSender, frame: Frame | MessageRun, now: float
    ) -> None:
        if isinstance(frame, AckReliable):
            for start, stop in frame.ranges:
                fresh = tuple(sender.acked.missing(start, stop))
                sender.acked.add(start, stop)
                self._acked(sender, True, fresh)
        elif isinstance(frame, AckNackUnreliable):
            acked = True
            for length in frame.lengths:
                numbers = (sender.decided, sender.decided + length)
                sender.decided += length
                if length and acked:
                    sender.acked_datagrams.add(*numbers)
                    self._acked(sender, False, (numbers,))
                elif length:
                    self._nacked(sender, False, (numbers,), now)
                acked = not acked
        elif isinstance(frame, CloseReceiver):
            open_reliable = tuple(sender.acked.missing(0, sender.reliable))
            finished = not sender.open and not sender.cancelled and not open_reliable
            sender.end = End.RECEIVER_CLOSED
            if finished and sender.decided == sender.unreliable:
                sender.end = End.FINISHED
            elif sender.cancelled:
                sender.end = End.CANCELLED
            self._nacked(sender, True, open_reliable, now)
            self._nacked(sender, False, ((sender.decided, sender.unreliable),), now)
            self._destroy(sender, now)
            self._reset_streams(sender)
            self._report_end(sender)

    def _handle_for_receiver(
        self, receiver: DraftReceiver, frame: Frame | MessageRun, datagram: bool, now: float
    ) -> None:
        if isinstance(frame, MessageRun):
            for message in frame.messages():
                self._receive(receiver, message, datagram, now)
        elif isinstance(frame, MessageFrame):
            self._receive(receiver, frame, datagram, now)
        elif isinstance(frame, SentUnreliable):
            receiver.announced += frame.count
            receiver.deadlines.append((now + RECEIPT_DEADLINE, receiver.announced))
        elif isinstance(frame, FinishSender):
            receiver.total = frame.sent_reliable
        elif isinstance(frame, CancelSender):
            self._close(receiver, End.CANCELLED, now)
            return
        self._close_if_complete(receiver, now)

    def _receive(
        self, receiver: DraftReceiver, message: MessageFrame, datagram: bool, now: float
    ) -> None:
        number = message.number
        if datagram:
            if number < receiver.decided or number in receiver.datagrams:
                return
            receiver.datagrams.add(number, number + 1)
        else:
            receiver.received.add(number, number + 1)
            receiver.unacked.add(number, number + 1)
            receiver.ack_at = min(receiver.ack_at, now + SHORTLY)
        for attachment in message.attachments:
            channel = attachment.channel
            if channel not in self._senders and channel not in self._receivers:
                recent = self._destroyed.get(channel, -NEVER) > now - MEMORY
                if channel not in self._untaken and not recent:
                    self._create(channel, Mode.ORDERED)
        receiver.queue.append(message)
        if receiver.held and len(receiver.queue) == 1:
            self._events.append(Readable(receiver.channel))

    # -- the life of a half ----------------------------------------------------------------------

    def _create(self, channel: int, mode: Mode) -> DraftHalf:
        ours = creator_of(channel) == self.side
        if sender_of(channel) == self.side:
            sender = DraftSender(channel, ours, accessible=not ours, mode=mode)
            self._senders[channel] = sender
            return sender
        receiver = self._receivers[channel] = DraftReceiver(channel, ours)
        return receiver

    def _open_sender(self, channel: int) -> DraftSender:
        sender = self._senders.get(channel)
        if sender is not None and sender.open:
            return sender
        if sender is None:
            raise ReceiverClosed("the receiver has ended", channel=channel)
        raise ChannelClosed("the sender was finished or cancelled", channel=channel)

    def _claim(self, channel: int) -> None:
        sender = self._senders.get(channel)
        receiver = self._receivers.get(channel) or self._untaken.get(channel)
        if sender is not None:
            sender.held = True
        elif receiver is not None:
            receiver.held = True
            if receiver.queue:
                self._events.append(Readable(channel))
            self._settle(receiver)
        elif sender_of(channel) == self.side:
            self._events.append(SenderEnded(channel, End.RECEIVER_CLOSED))
        else:
            self._events.append(ReceiverEnded(channel, End.LOST))

    def _acked(
        self, sender: DraftSender, reliable: bool, ranges: tuple[tuple[int, int], ...]
    ) -> None:
        for start, stop in ranges:
            for number in range(start, stop):
                sender.kept += sender.carried.pop((reliable, number), [])
        if sender.accessible:
            if ranges:
                self._events.append(Delivered(sender.channel, reliable, ranges))
            self._spread(sender)

    def _spread(self, root: DraftSender) -> None:
        """Make the channels in acked messages accessible, and those below them."""
        waiting = [root]
        while waiting:
            sender = waiting.pop()
            kept, sender.kept = sender.kept, []
            for channel in kept:
                child = self._senders.get(channel) or self._pending.pop(channel, None)
                if child is None or child.accessible:
                    continue
                child.accessible = True
                for reliable, acked in ((True, child.acked), (False, child.acked_datagrams)):
                    if acked:
                        ranges = tuple(acked.ranges())
                        self._events.append(Delivered(channel, reliable, ranges))
                if child.end is not None:
                    self._report_end(child)
                waiting.append(child)

    def _nacked(
        self,
        sender: DraftSender,
        reliable: bool,
        ranges: tuple[tuple[int, int], ...],
        now: float,
    ) -> None:
        ranges = tuple(each for each in ranges if each[0] < each[1])
        if ranges and sender.held:
            self._events.append(Undelivered(sender.channel, reliable, ranges))
        lost: list[int] = []
        for start, stop in ranges:
            for number in range(start, stop):
                lost += sender.carried.pop((reliable, number), [])
        self._lose_all(lost, now)

    def _lose(self, half: DraftHalf, now: float) -> None:
        """End a half that was forgotten or lost, and lose the channels below it."""
        if isinstance(half, DraftSender):
            if half.held and half.end is None:
                self._events.append(SenderEnded(half.channel, End.LOST))
            self._reset_streams(half)
            below = [channel for made in half.carried.values() for channel in made]
            below += half.kept
            half.carried, half.kept = {}, []
            self._lose_all(below, now)
        elif isinstance(half, DraftReceiver):
            if half.control is not None:
                self._actions.append(ResetStream(half.control, RESET_CODE))
            if half.held:
                self._events.append(ReceiverEnded(half.channel, End.LOST))
            self._drop_queue(half, now)

    def _lose_all(self, channels: list[int], now: float) -> None:
        waiting = channels
        while waiting:
            channel = waiting.pop()
            half: DraftHalf | None = self._senders.pop(channel, None) or self._receivers.pop(
                channel, None
            )
            ended = self._pending.pop(channel, None)
            self._forget(channel)
            if ended is not None:
                self._events.append(SenderEnded(channel, End.LOST))
                waiting += [each for made in ended.carried.values() for each in made] + ended.kept
            elif half is not None:
                self._lose(half, now)

    def _destroy(self, half: DraftHalf, now: float) -> None:
        """Remove the state machine, and remember it for a second if the peer created it."""
        channel = half.channel
        self._senders.pop(channel, None)
        self._receivers.pop(channel, None)
        if creator_of(channel) != self.side:
            self._destroyed[channel] = now

    def _report_end(self, sender: DraftSender) -> None:
        """Tell the application how its sender ended, once it is known to be accessible."""
        assert sender.end is not None
        if not sender.accessible:
            self._pending[sender.channel] = sender
        elif sender.held:
            self._events.append(SenderEnded(sender.channel, sender.end))

    def _close_if_complete(self, receiver: DraftReceiver, now: float) -> None:
        if receiver.total is None or receiver.channel not in self._receivers:
            return
        if receiver.received.count >= receiver.total and receiver.decided >= receiver.announced:
            self._close(receiver, End.FINISHED, now)

    def _close(self, receiver: DraftReceiver, end: End | None, now: float) -> None:
        """Send CLOSE_RECEIVER, and drop the queue unless the sender was finished."""
        if receiver.channel in self._receivers:
            self._ack(receiver)
            self._decide(receiver, receiver.announced)
            self._report(receiver, CloseReceiver(), fin=True)
            self._destroy(receiver, now)
        receiver.end = end
        if end is not End.FINISHED:
            self._drop_queue(receiver, now)
        if end is not None:
            self._untaken[receiver.channel] = receiver
            self._settle(receiver)

    def _drop_queue(self, receiver: DraftReceiver, now: float) -> None:
        """Drop the queue, and end the halves in its messages."""
        dropped, receiver.queue = receiver.queue, []
        for message in dropped:
            for attachment in message.attachments:
                self.cancel(attachment.channel, now)
                self.close(attachment.channel, now)

    def _settle(self, receiver: DraftReceiver) -> None:
        """Tell the application that a receiver has ended, once it has taken everything."""
        if receiver.end is not None and receiver.held and not receiver.queue:
            self._untaken.pop(receiver.channel, None)
            self._events.append(ReceiverEnded(receiver.channel, receiver.end))
            receiver.held = False

    def _end(self, code: int, reason: str, by_peer: bool) -> None:
        self._ended = True
        for sender in [*self._senders.values(), *self._pending.values()]:
            if sender.held:
                self._events.append(SenderEnded(sender.channel, End.CONNECTION))
        for receiver in [*self._receivers.values(), *self._untaken.values()]:
            if receiver.held:
                self._events.append(ReceiverEnded(receiver.channel, End.CONNECTION))
        self._events.append(ConnectionEnded(code, reason, by_peer))
