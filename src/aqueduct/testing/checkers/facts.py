"""What is known of a run from outside the cores, per channel and per message.

The facts are computed from a record alone: from what the applications did and saw and from the
frames on the wire. All checkers share them. They are also the oracle for which channels
were lost.
"""

from __future__ import annotations

from bisect import bisect_left

from aqueduct.protocol.events import (
    Delivered,
    Event,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
    Writable,
)
from aqueduct.testing.checkers.rules import EPSILON, NEVER
from aqueduct.testing.checkers.subjects import (
    ChannelEntry,
    ChannelFacts,
    MessageFacts,
    StreamFacts,
    same_content,
)
from aqueduct.testing.record import (
    NO_CHANNEL,
    CommandCalled,
    ConnectionClosed,
    ConnectionGone,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageReceived,
    MessageSent,
    MessageTaken,
    Record,
    RttMeasured,
    SendFailed,
    StreamEnded,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    FinishSender,
    ForgetChannel,
    MessageFrame,
)


class RunFacts:
    """The facts that all checkers share, computed in one pass over the record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.channels: dict[int, ChannelFacts] = {ENTRYPOINT: ChannelFacts(ENTRYPOINT, None)}
        self.gone = [NEVER, NEVER]
        """When the connection ended, by side."""
        self.left = NEVER
        """When the client began to leave in good order."""
        self.closed = [NEVER, NEVER]
        """When each side closed the connection itself."""
        self.listening = [NEVER, NEVER]
        """When each side starts to act on frames of channels, and knows the peer's limits."""
        self.streams: dict[tuple[Side, int], StreamFacts] = {}
        self.rtts: tuple[list[tuple[float, float]], ...] = ([(0.0, 0.0)], [(0.0, 0.0)])
        """The round-trip times of each side, with the time of each measurement."""
        self.strange: list[tuple[ChannelEntry, str]] = []
        """Frames and events that name channels or messages that do not exist."""
        self.end = record.entries[-1].time if record.entries else 0.0
        entrypoint = self.channels[ENTRYPOINT]
        entrypoint.sender_held = 0.0
        entrypoint.receiver_held = 0.0
        entrypoint.accessible_known = 0.0
        entrypoint.closes_early = record.draft == entrypoint.receiver
        for entry in record.entries:
            kind = type(entry)
            if kind is FrameSent:
                self._frame_sent(entry)  # type: ignore[arg-type]
            elif kind is FrameArrived:
                self._frame_arrived(entry)  # type: ignore[arg-type]
            elif kind is EventRaised:
                self._saw(entry)  # type: ignore[arg-type]
            elif kind is MessageSent:
                self._sent(entry)  # type: ignore[arg-type]
            elif kind is MessageTaken:
                self._took(entry)  # type: ignore[arg-type]
            elif kind is MessageReceived:
                self._received(entry)  # type: ignore[arg-type]
            elif isinstance(entry, CommandCalled):
                self._called(entry)
            elif isinstance(entry, ConnectionClosed | ConnectionGone):
                self.gone[entry.side] = min(self.gone[entry.side], entry.time)
                if isinstance(entry, ConnectionClosed):
                    self.closed[entry.side] = min(self.closed[entry.side], entry.time)
            elif isinstance(entry, SendFailed):
                self._of(entry.channel, entry)
            elif isinstance(entry, RttMeasured):
                self.rtts[entry.side].append((entry.time, entry.rtt))
            elif isinstance(entry, StreamEnded):
                stream = self._stream(entry.side, entry.stream)
                stream.ended = min(stream.ended, entry.time)
                stream.reset = entry.reset if stream.reset is None else stream.reset
        self._find_fates()

    @property
    def over(self) -> float:
        """When the connection ended for the side that learned it first."""
        return min(self.gone)

    @property
    def slack(self) -> float:
        """Seconds after which a frame that is due at once must have left."""
        return EPSILON + self.record.backlog

    def alive(self, side: Side, time: float) -> bool:
        """Return whether the side had a connection, and the run continued, at that time."""
        return time < self.gone[side] and time <= self.end

    def rtt(self, side: Side, time: float) -> tuple[float, float]:
        """Return the minimum and maximum round-trip time that the side may have used at a time."""
        rtts = self.rtts[side]
        at = bisect_left(rtts, (time, 0.0))
        possible = [rtts[max(at - 1, 0)][1], *(rtt for when, rtt in rtts[at:] if when <= time)]
        return min(possible), max(possible)

    # One entry

    def _of(self, channel: int, entry: ChannelEntry) -> ChannelFacts | None:
        facts = self.channels.get(channel)
        if facts is None:
            self.strange.append((entry, "about an unknown channel"))
        else:
            facts.entries.append(entry)
        return facts

    def _sent(self, sent: MessageSent) -> None:
        facts = self._of(sent.channel, sent)
        if facts is None:
            return
        message = MessageFacts(facts, sent)
        space = facts.space(sent.reliable)
        if sent.number != len(space):
            self.strange.append((sent, f"numbered {sent.number} instead of {len(space)}"))
        space[sent.number] = message
        for attached in sent.attached:
            if attached.channel in self.channels:
                self.strange.append((sent, "attaches an existing channel"))
                continue
            made = ChannelFacts(attached.channel, message, mode=attached.mode)
            made.closes_early = self.record.draft == made.receiver
            self.channels[attached.channel] = made
            if made.sender == sent.side:
                made.sender_held = sent.time
            else:
                made.receiver_held = sent.time

    def _took(self, took: MessageTaken) -> None:
        facts = self._of(took.channel, took)
        if facts is None:
            return
        message = self._match(facts, took.message)
        facts.takes.append((took, message))
        if message is not None:
            message.taken = min(message.taken, took.time)
            message.takes += 1
        for attachment in took.message.attachments:
            made = self.channels.get(attachment.channel)
            if made is None:
                self.strange.append((took, "carries an unknown channel"))
            elif made.sender == took.side:
                made.sender_held = min(made.sender_held, took.time)
            else:
                made.receiver_held = min(made.receiver_held, took.time)

    def _received(self, received: MessageReceived) -> None:
        facts = self._of(received.channel, received)
        if facts is None:
            return
        at = facts.receives
        facts.receives += 1
        if at >= len(facts.takes) or facts.takes[at][0].message.number != received.number:
            self.strange.append((received, f"of message {received.number} out of turn"))
            return
        message = facts.takes[at][1]
        if message is not None:
            message.received = received.time

    @staticmethod
    def _match(facts: ChannelFacts, taken: MessageFrame) -> MessageFacts | None:
        """Return the message that was taken; its number does not determine the number space."""
        candidates = [facts.reliable.get(taken.number), facts.unreliable.get(taken.number)]
        for message in candidates:
            if message is not None and same_content(message, taken):
                return message
        return None

    def _called(self, called: CommandCalled) -> None:
        if called.channel == NO_CHANNEL:
            if called.verb == "accept":
                self.listening[called.side] = called.time
            return
        facts = self._of(called.channel, called)
        if facts is None:
            return
        if called.verb == "set mode":
            facts.mode = called.detail
        elif called.verb == "leave":
            self.left = called.time
            facts.finish_called = min(facts.finish_called, called.time)
        elif called.verb == "prefetch":
            facts.prefetched = True
        elif called.verb == "finish":
            facts.finish_called = min(facts.finish_called, called.time)
        elif called.verb == "cancel":
            facts.cancel_called = min(facts.cancel_called, called.time)
        elif called.verb == "stop":
            facts.stop_called = min(facts.stop_called, called.time)
        elif called.verb == "close":
            facts.close_called = min(facts.close_called, called.time)

    def _saw(self, saw: EventRaised) -> None:
        event: Event = saw.event
        if not isinstance(
            event, Delivered | Undelivered | SenderEnded | ReceiverEnded | Readable | Writable
        ):
            return
        facts = self._of(event.channel, saw)
        if facts is None:
            return
        if isinstance(event, SenderEnded):
            facts.sender_ends.append((saw.time, event))
        elif isinstance(event, ReceiverEnded):
            facts.receiver_ends.append((saw.time, event))
        elif isinstance(event, Delivered | Undelivered):
            space = facts.space(event.reliable)
            for start, stop in event.ranges:
                for number in range(start, stop):
                    message = space.get(number)
                    if message is None:
                        self.strange.append((saw, f"about message {number}, which was not sent"))
                        continue
                    message.reports += 1
                    if isinstance(event, Delivered):
                        message.delivered = min(message.delivered, saw.time)
                    else:
                        message.undelivered = min(message.undelivered, saw.time)

    def _stream(self, side: Side, number: int) -> StreamFacts:
        stream = self.streams.get((side, number))
        if stream is None:
            stream = self.streams[side, number] = StreamFacts(side, number)
        return stream

    def _frame_sent(self, sent: FrameSent) -> None:
        self._stream(sent.side, sent.stream).frames.append(sent)
        if sent.channel == NO_CHANNEL:
            return
        facts = self._of(sent.channel, sent)
        if facts is None:
            return
        frame = sent.frame
        time = sent.time
        if isinstance(frame, MessageFrame):
            message = facts.space(not sent.in_datagram).get(frame.number)
            if message is None or not same_content(message, frame):
                self.strange.append((sent, f"message {frame.number} differs from the one sent"))
            else:
                message.written = min(message.written, time)
        elif isinstance(frame, AckReliable | AckNackUnreliable) and facts.close_written < NEVER:
            pass  # a ghost of the receiver, to which nothing was sent
        elif isinstance(frame, AckReliable):
            for message in self._acked(facts, sent, frame):
                message.acked = min(message.acked, time)
        elif isinstance(frame, AckNackUnreliable):
            facts.decided = self._decide(facts, frame, facts.decided, time, known=False)
        elif isinstance(frame, FinishSender):
            facts.finish_written = min(facts.finish_written, time)
        elif isinstance(frame, CancelSender):
            facts.cancel_written = min(facts.cancel_written, time)
        elif isinstance(frame, CloseReceiver):
            facts.revived = facts.close_written < NEVER
            facts.close_written = min(facts.close_written, time)
        elif isinstance(frame, ForgetChannel):
            facts.forget_written = min(facts.forget_written, time)

    def _frame_arrived(self, arrived: FrameArrived) -> None:
        sent = arrived.sent
        frame = sent.frame
        time = arrived.time
        if sent.channel == NO_CHANNEL:
            if isinstance(frame, ConnectionHeaders) and arrived.side == Side.CLIENT:
                self.listening[Side.CLIENT] = time
            return
        facts = self.channels.get(sent.channel)
        if facts is None:
            return
        facts.entries.append(arrived)
        if isinstance(frame, MessageFrame):
            message = facts.space(not sent.in_datagram).get(frame.number)
            if message is not None:
                message.arrived = min(message.arrived, time)
        elif isinstance(frame, AckReliable | AckNackUnreliable) and facts.close_arrived < NEVER:
            pass
        elif isinstance(frame, AckReliable):
            for message in self._acked(facts, None, frame):
                message.ack_known = min(message.ack_known, time)
        elif isinstance(frame, AckNackUnreliable):
            facts.decided_known = self._decide(facts, frame, facts.decided_known, time, known=True)
        elif isinstance(frame, FinishSender):
            facts.finish_arrived = min(facts.finish_arrived, time)
        elif isinstance(frame, CancelSender):
            facts.cancel_arrived = min(facts.cancel_arrived, time)
        elif isinstance(frame, CloseReceiver):
            facts.close_arrived = min(facts.close_arrived, time)
        elif isinstance(frame, ForgetChannel):
            facts.forget_arrived = min(facts.forget_arrived, time)

    def _acked(
        self, facts: ChannelFacts, sent: FrameSent | None, frame: AckReliable
    ) -> list[MessageFacts]:
        found = []
        for start, stop in frame.ranges:
            for number in range(start, stop):
                message = facts.reliable.get(number)
                if message is not None:
                    found.append(message)
                elif sent is not None:
                    self.strange.append((sent, f"acks message {number}, which was not sent"))
        return found

    @staticmethod
    def _decide(
        facts: ChannelFacts, frame: AckNackUnreliable, start: int, time: float, *, known: bool
    ) -> int:
        acked = True
        for length in frame.lengths:
            for number in range(start, start + length):
                message = facts.unreliable.get(number)
                if message is None:
                    continue
                if acked and known:
                    message.ack_known = time
                elif acked:
                    message.acked = time
                elif known:
                    message.nack_known = time
                else:
                    message.nacked = time
            start += length
            acked = not acked
        return start

    # The whole run

    def _find_fates(self) -> None:
        # Channels are in the order of creation, so the channel of a carrier comes first.
        for facts in self.channels.values():
            for message in facts.messages:
                if message.acked == NEVER and message.nacked == NEVER:
                    message.nacked = facts.close_written
                if message.ack_known == NEVER and message.nack_known == NEVER:
                    message.nack_known = facts.close_arrived
            carrier = facts.carrier
            if carrier is None:
                continue
            parent = carrier.channel
            # A sender that came from the peer is accessible: the application has its handle.
            pending = parent.creator == facts.creator
            facts.lost = carrier.nacked < NEVER or (pending and parent.lost)
            facts.lost_known = carrier.nack_known
            facts.accessible_known = carrier.ack_known
            if pending:
                facts.lost_known = min(facts.lost_known, parent.lost_known)
                facts.accessible_known = max(facts.accessible_known, parent.accessible_known)
            if facts.lost:
                facts.accessible_known = NEVER
