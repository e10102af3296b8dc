"""One side of a connection: version, headers, routing of frames, and the commands.

Theory of operation. The transport hands in stream bytes, datagrams and the time; the application
gives commands. Both change the state of channels and produce two outputs, to be polled after every
input: actions for the transport and events for the application. The core never waits, reads a clock
or raises for what the peer did: a violation closes the connection with its code and a reason that
names the rule (AQ-CODE-3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from aqueduct.errors import ChannelClosed, CloseCode, LocalProtocolError, RemoteProtocolError
from aqueduct.protocol.actions import Action, Room
from aqueduct.protocol.audit import leftovers
from aqueduct.protocol.budget import AddressAccount, Budget, HeldMemory
from aqueduct.protocol.channels import Channels
from aqueduct.protocol.config import Config
from aqueduct.protocol.events import ConnectionEnded, Event, PeerHeaders
from aqueduct.protocol.greeting import split_limits, with_limits
from aqueduct.protocol.half import Context, as_bytes
from aqueduct.protocol.incoming import Incoming, dispatch, wrong_side
from aqueduct.protocol.lineage import message_key
from aqueduct.protocol.modes import Mode, check_mode, with_hint
from aqueduct.protocol.outgoing_stream import OutgoingStream
from aqueduct.protocol.priorities import DEFAULT_PRIORITY, check_priority
from aqueduct.protocol.receiver import ReceivingHalf
from aqueduct.protocol.sender import SendingHalf
from aqueduct.wire.chanid import ENTRYPOINT, Side, describe
from aqueduct.wire.frames import (
    PROTOCOL_VERSION,
    AckVersion,
    Attachment,
    ConnectionHeaders,
    Frame,
    MessageFrame,
    MessageRun,
    RouteTo,
    Version,
    frame_name,
)
from aqueduct.wire.primitives import HeaderPairs

__all__ = ["Attach", "ConnectionCore", "Give", "Mode", "SentMessage"]


class Give(Enum):
    """Which half of a new channel goes to the peer."""

    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True)
class Attach:
    """A new channel to be sent in a message; the priority applies if we keep the sender.

    ``mode`` is that of our sender, or if the sender is sent away, the hint that goes with it.
    """

    give: Give
    oneshot: bool = False
    headers: HeaderPairs = ()
    mode: Mode = Mode.ORDERED
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that was sent, and the ids of the channels made for its attachments."""

    number: int
    reliable: bool
    channels: tuple[int, ...]


class ConnectionCore:
    """The protocol core of one side. After each call, poll `poll_actions` and `poll_events`."""

    def __init__(
        self,
        side: Side,
        config: Config | None = None,
        *,
        headers: HeaderPairs = (),
        early: Budget | None = None,
        account: AddressAccount | None = None,
    ) -> None:
        self.side = side
        self.config = config or Config()
        self._context = Context(side, self.config)
        self.output = self._context.out
        """What waits for the transport to have room."""
        self._channels = Channels(self._context)
        self._streams: dict[int, Incoming] = {}
        self._early: dict[Incoming, None] = {}
        self._parser_limits = self._context.parser_limits
        self._memory = HeldMemory(
            side,
            self.config,
            self._parser_limits,
            self._context.credit.receive_window,
            early,
            account,
        )
        self._version_seen = False
        self._version_acked = False
        self._peer_headers: HeaderPairs | None = None
        self._ready = False
        self._ended = False
        self._is_leaving = False
        """Whether to close when the entrypoint, which is finished, has ended."""
        self._now = 0.0
        """The time of the last input."""
        self._greeting: OutgoingStream | None = None
        if side == Side.CLIENT:
            # AQ-CONN-1: the first stream, before anything else.
            greeting = self._context.out.open_greeting(ack_version=False)
            self._send_headers(greeting, headers)
        elif headers:
            raise LocalProtocolError("a server gives its headers to accept()")

    # -- inputs ----------------------------------------------------------------------------------

    def handle_stream_data(self, stream: int, data: bytes, fin: bool, now: float) -> None:
        """Process bytes of an incoming unidirectional stream, in order; ``fin`` with the last."""
        if self._ended:
            return
        self._now = now
        incoming = self._streams.get(stream)
        try:
            if incoming is None:
                if len(self._streams) >= self.config.max_streams:
                    raise RemoteProtocolError(
                        "AQ-LIMIT-5", "too many streams at once", CloseCode.LIMIT_EXCEEDED
                    )
                if not self._ready:
                    self._memory.add_early_stream(len(self._streams))
                incoming = self._streams[stream] = Incoming(stream, self._parser_limits)
            incoming.fin = fin
            incoming.feed(data)
            self._read(incoming, now)
            if fin and incoming.early is None:
                self._drop_stream(incoming, now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def handle_stream_reset(self, stream: int, code: int, now: float) -> None:
        """Process the reset of a stream: ignore an incomplete frame (AQ-STREAM-7)."""
        incoming = self._streams.get(stream)
        if self._ended or incoming is None:
            return
        try:
            self._drop_stream(incoming, now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def handle_bidirectional_stream(self, now: float) -> None:
        """Close the connection: the peer opened a bidirectional stream (AQ-STREAM-6)."""
        if not self._ended:
            self._fail(RemoteProtocolError("AQ-STREAM-6", "a bidirectional stream was opened"), now)

    def handle_datagram(self, data: bytes, now: float) -> None:
        """Process one unreliable datagram."""
        if self._ended:
            return
        incoming = Incoming(-1, self._parser_limits)
        incoming.fin = True
        try:
            incoming.feed(data)
            self._read(incoming, now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def handle_timer(self, now: float) -> None:
        """Run the timers that are due; call it at ``next_timer`` or later."""
        if self._ended:
            return
        self._now = now
        try:
            for sleeper in self._context.timers.due(now):
                if isinstance(sleeper, SendingHalf | ReceivingHalf):
                    self._channels.handle_timer(sleeper, now)
                else:
                    sleeper.handle_timer(now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def handle_rtt(self, rtt: float, least: float | None = None) -> None:
        """Set the transport's smoothed round-trip time, and that of the path without queues."""
        self._context.set_rtt(rtt, rtt if least is None else least)

    def handle_datagram_limit(self, size: int) -> None:
        """Set how many bytes of a datagram the transport can carry now (AQ-SEND-8)."""
        self._context.out.max_datagram = min(size, self.config.max_datagram)

    def handle_excess(self, rule: str, reason: str, now: float) -> None:
        """Close the connection with LIMIT_EXCEEDED: the peer makes this side hold too much."""
        if not self._ended:
            self._fail(RemoteProtocolError(rule, reason, CloseCode.LIMIT_EXCEEDED), now)

    def handle_connection_lost(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        """End the connection, which the transport has lost."""
        if not self._ended:
            self._end(code, reason, by_peer, now)
            self._context.out.clear()

    # -- commands --------------------------------------------------------------------------------

    def accept(self, headers: HeaderPairs, now: float) -> None:
        """Accept a client after `PeerHeaders`: send the server's headers and open the channels."""
        if self.side == Side.CLIENT or self._peer_headers is None or self._ready:
            raise LocalProtocolError("only a server accepts, once, after the client's headers")
        if self._ended:
            return
        assert self._greeting is not None
        self._send_headers(self._greeting, headers)  # AQ-CONN-2
        try:
            self._become_ready(now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def refuse(self, code: CloseCode, reason: str, now: float) -> None:
        """Refuse a client with REFUSED or UNAUTHENTICATED (AQ-CONN-5)."""
        if code not in (CloseCode.REFUSED, CloseCode.UNAUTHENTICATED):
            raise LocalProtocolError("refuse with REFUSED or UNAUTHENTICATED")
        if self.side == Side.CLIENT or self._ready:
            raise LocalProtocolError("only a server refuses, before it accepts")
        self.close_connection(code, reason, now)

    def send(self, channel: int, payload: bytes, now: float) -> int:
        """Send a message without headers and channels; return its number."""
        half = self._channels.halves.get(channel)
        if type(half) is not SendingHalf or type(payload) is not bytes:
            return self._sender(channel).send(as_bytes(payload), now)
        return half.send(payload, now)

    def plain_sender(self, channel: int) -> Callable[[bytes, float], int]:
        """Return `send` for one channel, which saves the lookup for each message."""
        half = self._channels.halves.get(channel)
        # The half may have ended before its carrier was taken.
        return half.send if isinstance(half, SendingHalf) else partial(self.send, channel)

    def send_message(
        self,
        channel: int,
        payload: bytes,
        now: float,
        *,
        headers: HeaderPairs = (),
        attach: Sequence[Attach] = (),
    ) -> SentMessage:
        """Send a message with headers and new channels."""
        half = self._sender(channel)
        payload = as_bytes(payload)
        if attach:
            self._channels.check_room(len(attach))
        ahead: dict[int, int] = {}
        attachments = tuple(
            Attachment(
                self._channels.next_id(
                    self.side if one.give is Give.RECEIVER else self.side.other, one.oneshot, ahead
                ),
                with_hint(one.headers, one.mode) if one.give is Give.SENDER else one.headers,
            )
            for one in attach
        )
        number, reliable = half.send_message(payload, headers, attachments, now)
        if attachments:
            nodes = [
                self._channels.create(attachment.channel, one.mode)
                for attachment, one in zip(attachments, attach, strict=True)
            ]
            half.node.attach(message_key(reliable, number), nodes)
            for attachment, one in zip(attachments, attach, strict=True):
                self.set_priority(attachment.channel, one.priority)
        return SentMessage(number, reliable, tuple(a.channel for a in attachments))

    def set_mode(self, channel: int, mode: Mode) -> None:
        """Choose how a sender sends, before its first message (AQ-SEND-3)."""
        check_mode(mode)
        half = self._channels.halves.get(channel)
        if isinstance(half, SendingHalf):
            half.set_mode(mode)

    def check_room(self, channel: int, size: int) -> None:
        """Raise WouldBlock if an unreliable message would displace others (AQ-UNREL-6)."""
        half = self._channels.halves.get(channel)
        if isinstance(half, SendingHalf):
            half.check_room(size)

    def priority_of(self, channel: int) -> int:
        """Return the priority class of a sender; the default for one that has ended."""
        half = self._channels.halves.get(channel)
        return half.flow.priority if isinstance(half, SendingHalf) else DEFAULT_PRIORITY

    def set_priority(self, channel: int, priority: int) -> None:
        """Choose the priority class of a sender, at any time; a no-op for one that has ended."""
        half = self._channels.halves.get(channel)
        if isinstance(half, SendingHalf):
            self._context.out.set_priority(half.flow, check_priority(priority))

    def finish(self, channel: int, now: float) -> None:
        """Finish a channel: nothing more is sent on it."""
        half = self._channels.halves.get(channel)
        if isinstance(half, SendingHalf):
            half.finish(now)

    def cancel(self, channel: int, now: float) -> None:
        """Cancel a channel: discard what has not arrived."""
        half = self._channels.halves.get(channel)
        if isinstance(half, SendingHalf):
            half.cancel(now)

    def give_up(self, channel: int) -> bool:
        """Cancel the wait for room on a channel; return whether there was one."""
        half = self._channels.halves.get(channel)
        return isinstance(half, SendingHalf) and half.give_up()

    def close(self, channel: int, now: float, *, keep_queue: bool = False) -> None:
        """Stop receiving on a channel, and drop what is queued unless the application takes it."""
        half = self._channels.halves.get(channel)
        if isinstance(half, ReceivingHalf):
            self._channels.abandon(half.stop() if keep_queue else half.close(), now)
            self._channels.update(half, now)

    def take(self, channel: int, limit: int, now: float) -> list[MessageFrame | MessageRun]:
        """Take up to ``limit`` messages from the queue; the caller owns the halves in them."""
        half = self._channels.halves.get(channel)
        if not isinstance(half, ReceivingHalf):
            return []
        batch = half.take(limit, now)
        for taken in batch:
            if type(taken) is MessageFrame and taken.attachments:
                self._channels.claim(taken, now)
        credit = self._context.credit
        if credit.unreported >= credit.report_at:
            self._report_all()
        self._channels.update(half, now)
        return batch

    def close_connection(self, code: CloseCode, reason: str, now: float) -> None:
        """Close the connection after the output that has not left."""
        if not self._ended:
            self._end(code, reason, False, now)
            self._context.out.close(code, reason, at_once=False)

    def leave(self, now: float) -> None:
        """Finish a client's entrypoint, and close once the server has all of it (AQ-LEAVE-1)."""
        if self.side == Side.SERVER:
            raise LocalProtocolError("only a client leaves: a server does not send on entrypoints")
        if not self._ended:
            self._is_leaving = True
            self.finish(ENTRYPOINT, now)

    # -- outputs ---------------------------------------------------------------------------------

    def poll_actions(self, room: Room | None = None) -> list[Action]:
        """Return what the transport must do now, in order, as far as it has room."""
        if self._context.acks_due:
            self._send_due_acks()
        return self._context.out.poll(room)

    def poll_events(self) -> list[Event]:
        """Return the events for the application, in order."""
        context = self._context
        if context.blocked.sizes:
            self._wake_blocked()
        if self._is_leaving and ENTRYPOINT not in self._channels.halves:
            self.close_connection(CloseCode.NO_ERROR, "", self._now)
        share = self._memory.address_share
        if share is not None and not self._memory.charge(
            share, len(self._streams), len(self._channels.halves)
        ):
            self.handle_excess(
                "AQ-COST-4", "too many streams and channels from one address", self._now
            )
        events, context.events = context.events, []
        return events

    def next_timer(self) -> float | None:
        """Return when to call `handle_timer`, or None."""
        return None if self._ended else self._context.timers.next()

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended, or is about to be closed."""
        return self._ended

    @property
    def is_ready(self) -> bool:
        """Whether the headers were exchanged, and a server has accepted."""
        return self._ready

    @property
    def channel_count(self) -> int:
        """How many halves exist on this side."""
        return len(self._channels.halves)

    @property
    def held_bytes(self) -> int:
        """Bytes that the peer makes this side hold: queues, ended queues and incomplete frames."""
        credit = self._context.credit
        return credit.receive_window.outstanding + credit.draining + self._memory.unread

    def leftovers(self) -> list[str]:
        """Describe everything that is still held; return nothing once all has ended."""
        return leftovers(self._context, self._channels, list(self._streams), self.held_bytes)

    def _send_due_acks(self) -> None:
        """Send one ack per channel for all that was read since the last poll."""
        due, self._context.acks_due = self._context.acks_due, {}
        for channel, now in due.items():
            half = self._channels.halves.get(channel)
            if isinstance(half, ReceivingHalf):
                half.flush(now)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, incoming: Incoming, now: float) -> None:
        """Process the complete frames of a stream or datagram."""
        parser = incoming.parser
        if parser is not None and incoming.is_reading():
            while (frame := parser.next()) is not None:
                self._process(incoming, frame, now)
                if not incoming.is_reading():
                    break
            else:
                if incoming.fin:
                    parser.finish()
        # AQ-LIMIT-3: incomplete frames are bounded over all streams.
        holds = incoming.holds()
        if holds != incoming.held:
            more = holds - incoming.held
            incoming.held = holds
            self._memory.add(more, len(self._streams), self._ready)

    def _process(self, incoming: Incoming, frame: Frame | MessageRun, now: float) -> None:
        half = incoming.half
        if half is None:
            self._process_prelude(incoming, frame, now)
            return
        if isinstance(frame, MessageRun):
            if type(half) is not ReceivingHalf:
                raise wrong_side("AQ-FRAME-18", "MESSAGE", half.channel)
            if half.is_over():
                incoming.ignore()
                return
            half.handle_run(frame, incoming.number >= 0, now)
            self._channels.update(half, now)
            return
        dispatch(self._channels, incoming, half, frame, now)

    def _process_prelude(self, incoming: Incoming, frame: Frame | MessageRun, now: float) -> None:
        """Process a frame up to and including ROUTE_TO."""
        if not self._version_seen and not isinstance(frame, Version):
            raise RemoteProtocolError("AQ-VERSION-3", "the first frame is not VERSION")
        if isinstance(frame, RouteTo):
            if self._ready:
                self._route(incoming, frame.channel, now)
            else:
                incoming.wait(frame.channel)
                if incoming.is_datagram and self._memory.unread > self.config.max_early_bytes // 2:
                    incoming.ignore()  # AQ-CONN-3: a datagram may always be treated as lost
                else:
                    self._early[incoming] = None
        elif isinstance(frame, Version):
            self._handle_version(frame)
        elif incoming.is_datagram:
            raise RemoteProtocolError("AQ-UNREL-7", f"{frame_name(type(frame))} in a datagram")
        elif isinstance(frame, AckVersion):
            self._version_acked = True
            self._omit_version()
        elif isinstance(frame, ConnectionHeaders):
            self._handle_headers(frame.headers, now)
        else:
            raise AssertionError(f"the parser let {frame!r} pass before ROUTE_TO")

    def _route(self, incoming: Incoming, channel: int, now: float) -> None:
        incoming.half = self._channels.route(channel, now)
        if incoming.half is None:
            incoming.ignore()

    def _drop_stream(self, incoming: Incoming, now: float) -> None:
        """Remove a stream that ended or was reset."""
        del self._streams[incoming.number]
        self._early.pop(incoming, None)
        self._memory.unread -= incoming.held
        if not self._ready:
            self._memory.hold_early(len(self._streams))
        half = incoming.half
        if isinstance(half, ReceivingHalf) and half.sender_control == incoming.number:
            half.handle_sender_control_over()
            self._channels.update(half, now)

    # -- the start of the connection -------------------------------------------------------------

    def _handle_version(self, frame: Version) -> None:
        if frame.version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                "AQ-VERSION-4",
                f"the peer speaks {frame.version!r}, we speak {PROTOCOL_VERSION!r}",
                CloseCode.VERSION_MISMATCH,
            )
        if self._version_seen:
            return
        self._version_seen = True
        # AQ-VERSION-2: at once, in a stream.
        self._greeting = self._context.out.open_greeting(ack_version=True)
        if self.side == Side.CLIENT:
            self._context.out.finish(self._greeting)

    def _omit_version(self) -> None:
        """Begin sequences without VERSION, if that was acked (AQ-VERSION-1, AQ-VERSION-5)."""
        self._context.out.version_acked = self._version_acked and self._peer_headers is not None

    def _handle_headers(self, headers: HeaderPairs, now: float) -> None:
        if self._peer_headers is not None:
            raise RemoteProtocolError("AQ-CONN-4", "CONNECTION_HEADERS came twice")
        self._peer_headers, limits = split_limits(headers, self.config.initial_limits)
        self._omit_version()
        outstanding = [
            half.outstanding
            for half in self._channels.halves.values()
            if isinstance(half, SendingHalf)
        ]
        self._context.credit.open(limits, outstanding)
        self._context.events.append(PeerHeaders(self._peer_headers))
        if self.side == Side.CLIENT:
            self._become_ready(now)

    def _send_headers(self, stream: OutgoingStream, headers: HeaderPairs) -> None:
        # Our limits must fit too, and by AQ-LIMIT-2 the peer accepts its initial limit.
        max_headers = max(
            self._context.credit.peer_limits.max_headers, self.config.initial_limits.max_headers
        )
        frame = ConnectionHeaders(with_limits(headers, self.config.limits, max_headers))
        self._context.out.write(stream, frame.encode())
        self._context.out.finish(stream)

    def _become_ready(self, now: float) -> None:
        """Open the channels after both headers, and process what came too early."""
        self._ready = True
        self._memory.release_early()
        for half in list(self._channels.halves.values()):
            if isinstance(half, SendingHalf):
                half.allow()
        early, self._early = self._early, {}
        for incoming in early:
            self._memory.unread -= incoming.held
            incoming.held = 0
        for incoming in early:
            incoming.resume()
            self._route(incoming, incoming.route, now)
            self._read(incoming, now)
            if incoming.is_datagram:
                self._memory.unread -= incoming.held
            elif incoming.fin:
                self._drop_stream(incoming, now)

    # -- the end ---------------------------------------------------------------------------------

    def _fail(self, error: RemoteProtocolError, now: float) -> None:
        self._end(error.code, str(error), False, now)
        self._context.out.close(error.code, str(error), at_once=True)  # AQ-CODE-3

    def _end(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        self._ended = True
        self._streams.clear()
        self._early.clear()
        self._memory.clear()
        self._channels.end_all(now)
        self._context.end()
        self._context.events.append(ConnectionEnded(code, reason, by_peer))

    # -- inside ----------------------------------------------------------------------------------

    def _sender(self, channel: int) -> SendingHalf:
        half = self._channels.halves.get(channel)
        if isinstance(half, SendingHalf):
            return half
        raise ChannelClosed(f"there is no open sender for {describe(channel)}", channel=channel)

    def _wake_blocked(self) -> None:
        """Wake the senders that wait for the connection window and whose message fits now."""
        for channel in self._context.blocked.next(self._now):
            half = self._channels.halves.get(channel)
            assert isinstance(half, SendingHalf)
            half.admit()

    def _report_all(self) -> None:
        """Return the credit of all channels, which together is due (AQ-FLOW-4)."""
        for channel in list(self._context.credit.unreported_channels):
            half = self._channels.halves.get(channel)
            assert isinstance(half, ReceivingHalf)
            half.report()
