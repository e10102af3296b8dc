"""One side of a connection: version, headers, routing of frames, and the commands.

Theory of operation. The transport hands in stream bytes, datagrams and the time; the application
gives commands. Both change the state of channels, which leaves two kinds of traces: actions for the
transport and events for the application, to be polled after every input. Nothing here waits, reads
a clock, or raises for what the peer did: a violation closes the connection with its code and a
reason that names the rule (AQ-CODE-3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from aqueduct.errors import ChannelClosed, CloseCode, LocalProtocolError, RemoteProtocolError
from aqueduct.protocol.actions import Action
from aqueduct.protocol.budget import Account, Budget, Share
from aqueduct.protocol.channels import Channels
from aqueduct.protocol.config import COST_OF_CHANNEL, COST_OF_STREAM, Config, Limits
from aqueduct.protocol.events import ConnectionEnded, Event, PeerHeaders
from aqueduct.protocol.greeting import split_limits, with_limits
from aqueduct.protocol.incoming import Incoming
from aqueduct.protocol.lineage import message_key
from aqueduct.protocol.link import Link
from aqueduct.protocol.outgoing import OutgoingStream
from aqueduct.protocol.receiver import Receiver
from aqueduct.protocol.sender import Mode, Sender
from aqueduct.wire.chanid import ENTRYPOINT, Side, creator_of, describe
from aqueduct.wire.frames import (
    PROTOCOL_VERSION,
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    Attachment,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    ForgetChannel,
    Frame,
    Message,
    MessageRun,
    RouteTo,
    SentUnreliable,
    Version,
)
from aqueduct.wire.primitives import Headers

__all__ = ["Attach", "Connection", "Give", "Mode", "Sent"]

_STREAM_OVERHEAD = 64
"""Bytes of a frame's head that a stream may hold besides what flow control counts."""

_GRAIN = 64 * 1024
"""Bytes by which the charge of the address may lag behind what the connection holds."""


class Give(Enum):
    """Which half of a new channel goes to the peer."""

    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True)
class Attach:
    """A new channel to be sent in a message; ``mode`` is for the sender, if we keep it."""

    give: Give
    oneshot: bool = False
    headers: Headers = ()
    mode: Mode = Mode.ORDERED


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent, and the ids of the channels made for its attachments."""

    number: int
    reliable: bool
    channels: tuple[int, ...]


class Connection:
    """The core. See the module's docstring, and `poll_actions` and `poll_events` for what to do."""

    def __init__(
        self,
        side: Side,
        config: Config | None = None,
        *,
        headers: Headers = (),
        early: Budget | None = None,
        account: Account | None = None,
    ) -> None:
        self.side = side
        self.config = config or Config()
        self._link = Link(side, self.config)
        self._channels = Channels(self._link)
        self._streams: dict[int, Incoming] = {}
        self._early: dict[Incoming, None] = {}
        self._held = 0
        self._early_shares = [Share(early)] if early is not None else []
        if account is not None:
            self._early_shares.append(Share(account.early))
        self._address_share = Share(account.accepted) if account is not None else None
        self._charged = 0
        self._version_seen = False
        self._peer_headers: Headers | None = None
        self._ready = False
        self._ended = False
        self._now = 0.0
        """When something last came in."""
        self._greeting: OutgoingStream | None = None
        self._parser_limits = self._link.parser_limits
        if side == Side.CLIENT:
            # AQ-CONN-1: the first stream, before anything else.
            greeting = self._link.out.open_greeting(ack_version=False)
            self._send_headers(greeting, headers)
        elif headers:
            raise LocalProtocolError("a server gives its headers to accept()")

    # -- inputs ----------------------------------------------------------------------------------

    def handle_stream_data(self, stream: int, data: bytes, fin: bool, now: float) -> None:
        """Bytes of an incoming unidirectional stream, in order; ``fin`` with the last."""
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
                    self._count_early_stream()
                incoming = self._streams[stream] = Incoming(stream, self._parser_limits)
            incoming.fin = fin
            incoming.feed(data)
            self._read(incoming, now)
            if fin and incoming.early is None:
                self._drop_stream(incoming, now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def handle_stream_reset(self, stream: int, code: int, now: float) -> None:
        """The peer reset a stream: what of it was not whole is ignored (AQ-STREAM-7)."""
        incoming = self._streams.get(stream)
        if self._ended or incoming is None:
            return
        try:
            self._drop_stream(incoming, now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def handle_bidirectional_stream(self, now: float) -> None:
        """The peer opened a bidirectional stream, which nobody needs (AQ-STREAM-6)."""
        if not self._ended:
            self._fail(RemoteProtocolError("AQ-STREAM-6", "a bidirectional stream was opened"), now)

    def handle_datagram(self, data: bytes, now: float) -> None:
        """One unreliable datagram."""
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
        """Time has passed; call at ``next_timer`` or later."""
        if self._ended:
            return
        self._now = now
        try:
            for sleeper in self._link.timers.due(now):
                sleeper.handle_timer(now)
                if isinstance(sleeper, Sender | Receiver):
                    self._channels.update(sleeper, now)
        except RemoteProtocolError as error:
            self._fail(error, now)

    def handle_rtt(self, rtt: float) -> None:
        """The transport's smoothed round-trip time, in seconds."""
        self._link.rtt = rtt

    def handle_excess(self, rule: str, reason: str, now: float) -> None:
        """Close the connection with LIMIT_EXCEEDED: the peer makes the transport hold too much."""
        if not self._ended:
            self._fail(RemoteProtocolError(rule, reason, CloseCode.LIMIT_EXCEEDED), now)

    def handle_connection_lost(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        """The QUIC connection is over."""
        if not self._ended:
            self._end(code, reason, by_peer, now)
            self._link.out.clear()

    # -- commands --------------------------------------------------------------------------------

    def accept(self, headers: Headers, now: float) -> None:
        """A server's yes, after `PeerHeaders`: its own headers go out and the channels open."""
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
        """A server's no: REFUSED or UNAUTHENTICATED (AQ-CONN-5)."""
        if code not in (CloseCode.REFUSED, CloseCode.UNAUTHENTICATED):
            raise LocalProtocolError("refuse with REFUSED or UNAUTHENTICATED")
        if self.side == Side.CLIENT or self._ready:
            raise LocalProtocolError("only a server refuses, before it accepts")
        self.close_connection(code, reason, now)

    def send(self, channel: int, payload: bytes, now: float) -> int:
        """Send a message that is nothing but a payload; returns its number."""
        half = self._channels.halves.get(channel)
        if type(half) is not Sender or type(payload) is not bytes:
            return self._sender(channel).send(as_bytes(payload), now)
        return half.send(payload, now)

    def plain_sender(self, channel: int) -> Callable[[bytes, float], int]:
        """`send` for one channel, for whoever would otherwise look it up for each message."""
        half = self._channels.halves.get(channel)
        # It may have ended before the message that carried it was taken.
        return half.send if isinstance(half, Sender) else partial(self.send, channel)

    def mode_of(self, channel: int) -> Mode:
        """Return how a sender sends; ORDERED for one that is gone."""
        half = self._channels.halves.get(channel)
        return half.mode if isinstance(half, Sender) else Mode.ORDERED

    def send_message(
        self,
        channel: int,
        payload: bytes,
        now: float,
        *,
        headers: Headers = (),
        attach: Sequence[Attach] = (),
    ) -> Sent:
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
                one.headers,
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
        return Sent(number, reliable, tuple(a.channel for a in attachments))

    def set_mode(self, channel: int, mode: Mode) -> None:
        """Choose how a sender sends, before its first message (AQ-SEND-3)."""
        half = self._sender(channel)
        if half.next_reliable or half.outbox is not None:
            raise LocalProtocolError(f"messages were sent on {describe(channel)} already")
        half.mode = mode

    def finish(self, channel: int, now: float) -> None:
        """Say that nothing more comes on a channel."""
        half = self._channels.halves.get(channel)
        if isinstance(half, Sender):
            half.finish(now)

    def cancel(self, channel: int, now: float) -> None:
        """Give a channel up: what has not arrived need not."""
        half = self._channels.halves.get(channel)
        if isinstance(half, Sender):
            half.cancel(now)

    def give_up(self, channel: int) -> bool:
        """Nobody waits for room on a channel any more; returns whether that makes a difference."""
        half = self._channels.halves.get(channel)
        return isinstance(half, Sender) and half.give_up()

    def close(self, channel: int, now: float) -> None:
        """Stop receiving on a channel: what is queued is dropped."""
        half = self._channels.halves.get(channel)
        if isinstance(half, Receiver):
            self._channels.abandon(half.close(), now)
            self._channels.update(half, now)

    def take(self, channel: int, limit: int, now: float) -> list[Message | MessageRun]:
        """Up to ``limit`` messages that arrived; the halves in them are the caller's now."""
        half = self._channels.halves.get(channel)
        if not isinstance(half, Receiver):
            return []
        batch = half.take(limit, now)
        for taken in batch:
            if type(taken) is Message and taken.attachments:
                self._channels.claim(taken, now)
        if self._link.unreported * 4 >= self.config.limits.connection_window:
            self._report_all()
        self._channels.update(half, now)
        return batch

    def credit(self, channel: int) -> int:
        """How many bytes could be sent on a channel right now."""
        return self._sender(channel).room()

    def close_connection(self, code: CloseCode, reason: str, now: float) -> None:
        """Close the connection behind what waits to leave."""
        if not self._ended:
            self._end(code, reason, False, now)
            self._link.out.close(code, reason, at_once=False)

    # -- outputs ---------------------------------------------------------------------------------

    def poll_actions(self) -> list[Action]:
        """What the transport has to do now, in order."""
        if self._link.overdue:
            self._ack_overdue()
        return self._link.out.poll()

    def poll_events(self) -> list[Event]:
        """What the application has to know, in order."""
        if self._link.turns.sizes:
            self._admit()
        if self._address_share is not None:
            self._charge(self._address_share)
        events, self._link.events = self._link.events, []
        return events

    def next_timer(self) -> float | None:
        """When `handle_timer` is to be called, if nothing else comes before."""
        return None if self._ended else self._link.timers.next()

    @property
    def has_ended(self) -> bool:
        """Whether the connection is over, or about to be closed."""
        return self._ended

    @property
    def is_ready(self) -> bool:
        """Whether the headers were exchanged, and a server has accepted."""
        return self._ready

    @property
    def channel_count(self) -> int:
        """How many halves have any state here."""
        return len(self._channels.halves)

    @property
    def held_bytes(self) -> int:
        """Bytes the peer made this side hold: queues, finished queues and half-read frames."""
        return self._link.receive_window.outstanding + self._link.drained_later + self._held

    @property
    def dropped(self) -> int:
        """Unreliable messages that were dropped before they left, for lack of credit."""
        return self._link.dropped

    def leftovers(self) -> list[str]:
        """What is still held, in words; empty when everything has ended."""
        left = [
            f"{describe(half.channel)}: {type(half).__name__.lower()} {half.state.value}"
            for half in self._channels.halves.values()
        ]
        link = self._link
        left += [
            f"{describe(half.channel)}: {half.node.size()} carriers of unknown fate"
            for half in self._channels.halves.values()
            if half.node is not None and half.node.size()
        ]
        left += [f"incoming stream {number}" for number in self._streams]
        left += [f"blocked sender {describe(channel)}" for channel in link.turns.sizes]
        outstanding = link.send_window.outstanding - link.written_off.total
        if outstanding:
            left.append(f"{outstanding} bytes outstanding")
        if self.held_bytes:
            left.append(f"{self.held_bytes} bytes held")
        return left + self._channels.leftovers() + self._strays()

    def _strays(self) -> list[str]:
        """Describe state that is kept for channels that are no longer in the table."""
        link = self._link
        halves = self._channels.halves
        sleepers = [s for s in link.timers.sleepers() if isinstance(s, Sender | Receiver)]
        kept: dict[str, list[int]] = {
            "unsent acks": list(link.overdue),
            "unsent credit": list(link.reporters),
            "a timer": [half.channel for half in sleepers if halves.get(half.channel) is not half],
        }
        left = [
            f"{what} of {describe(channel)}, which ended"
            for what, channels in kept.items()
            for channel in channels
            if what == "a timer" or channel not in halves
        ]
        receivers = [half for half in halves.values() if isinstance(half, Receiver)]
        window = link.send_window
        reserved = link.written_off.reserved + sum(
            window.spare(0, half.outstanding)
            for half in halves.values()
            if isinstance(half, Sender)
        )
        if window.reserved != reserved:
            left.append(f"a count of {window.reserved} bytes in reserves of senders")
        if link.receive_window.reserved != sum(half.reserved for half in receivers):
            left.append(f"a count of {link.receive_window.reserved} bytes in reserves")
        if link.unreported != sum(half.unreported for half in receivers):
            left.append(f"{link.unreported} bytes of credit that no channel reports")
        if link.waiting != sum(half.queued_objects for half in receivers):
            left.append(f"a count of {link.waiting} messages in queues")
        return left

    def _ack_overdue(self) -> None:
        """One ack for all that was read since the last poll, however many packets it came in."""
        overdue, self._link.overdue = self._link.overdue, {}
        for channel, now in overdue.items():
            half = self._channels.halves.get(channel)
            if isinstance(half, Receiver):
                half.flush(now)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, incoming: Incoming, now: float) -> None:
        """Process what can be processed of a stream or datagram."""
        parser = incoming.parser
        if parser is not None and incoming.is_reading():
            while (frame := parser.next()) is not None:
                self._process(incoming, frame, now)
                if not incoming.is_reading():
                    break
            else:
                if incoming.fin:
                    parser.finish()
        self._count_held(incoming)

    def _process(self, incoming: Incoming, frame: Frame | MessageRun, now: float) -> None:
        half = incoming.half
        if half is None:
            self._process_prelude(incoming, frame, now)
            return
        if isinstance(frame, MessageRun):
            if type(half) is not Receiver:
                raise wrong_side("AQ-FRAME-18", "MESSAGE", half.channel)
            if half.is_over():
                incoming.ignore()
                return
            half.handle_run(frame, incoming.number >= 0, now)
            self._channels.update(half, now)
            return
        self._process_channel_frame(incoming, half, frame, now)

    def _process_prelude(self, incoming: Incoming, frame: Frame | MessageRun, now: float) -> None:
        """Frames before, and with, ROUTE_TO."""
        if not self._version_seen and not isinstance(frame, Version):
            raise RemoteProtocolError("AQ-VERSION-3", "the first frame is not VERSION")
        if isinstance(frame, RouteTo):
            if self._ready:
                self._route(incoming, frame.channel, now)
            else:
                incoming.wait(frame.channel)
                if incoming.is_datagram and self._held > self.config.max_early_bytes // 2:
                    incoming.ignore()  # AQ-CONN-3: a datagram may always be treated as lost
                else:
                    self._early[incoming] = None
        elif isinstance(frame, Version):
            self._handle_version(frame)
        elif incoming.is_datagram:
            raise RemoteProtocolError("AQ-UNREL-7", f"{type(frame).__name__} in a datagram")
        elif isinstance(frame, AckVersion):
            self._link.out.version_acked = True  # AQ-VERSION-1
        elif isinstance(frame, ConnectionHeaders):
            self._handle_headers(frame.headers, now)
        else:
            raise AssertionError(f"the parser let {frame!r} pass before ROUTE_TO")

    def _route(self, incoming: Incoming, channel: int, now: float) -> None:
        incoming.half = self._channels.route(channel, now)
        if incoming.half is None:
            incoming.ignore()

    def _process_channel_frame(
        self, incoming: Incoming, half: Sender | Receiver, frame: Frame, now: float
    ) -> None:
        channels = self._channels
        if incoming.is_datagram and not isinstance(frame, Message):
            raise RemoteProtocolError("AQ-UNREL-7", f"{type(frame).__name__} in a datagram")
        if isinstance(frame, ForgetChannel):
            if creator_of(half.channel) == self.side or half.channel == ENTRYPOINT:
                raise wrong_side("AQ-FRAME-20", "FORGET_CHANNEL", half.channel)
            if half.channel in channels.halves:
                channels.handle_forget(half, now)
            incoming.ignore()
            return
        if half.is_over():
            incoming.ignore()  # AQ-ROUTE-4
            return
        if isinstance(half, Receiver):
            self._process_for_receiver(incoming, half, frame, now)
        else:
            self._process_for_sender(incoming, half, frame, now)
        channels.update(half, now)

    def _process_for_receiver(
        self, incoming: Incoming, half: Receiver, frame: Frame, now: float
    ) -> None:
        if isinstance(frame, Message):
            if half.handle_message(frame, not incoming.is_datagram, now):
                self._channels.attach(frame, now)
        elif isinstance(frame, SentUnreliable):
            half.handle_announcement(frame.count, incoming.number, now)
        elif isinstance(frame, FinishSender):
            half.handle_finish(frame.sent_reliable, incoming.number, now)
        elif isinstance(frame, CancelSender):
            self._channels.abandon(half.handle_cancel(), now)
        else:
            raise wrong_side("AQ-FRAME-19", type(frame).__name__, half.channel)

    def _process_for_sender(
        self, incoming: Incoming, half: Sender, frame: Frame, now: float
    ) -> None:
        channels = self._channels
        if not isinstance(frame, AckReliable | AckNackUnreliable | Dequeued | CloseReceiver):
            raise wrong_side("AQ-FRAME-18", type(frame).__name__, half.channel)
        half.check_control(incoming.number)
        if isinstance(frame, AckReliable):
            channels.settle_lineage(half.handle_acks(frame.ranges), now)
        elif isinstance(frame, AckNackUnreliable):
            accessible, lost = half.handle_decisions(frame.lengths)
            channels.settle_lineage(accessible, now)
            channels.lose(lost, half.channel, now)
        elif isinstance(frame, Dequeued):
            half.handle_dequeued(frame.num_bytes)
        else:
            channels.lose(half.handle_close(now), half.channel, now)

    def _drop_stream(self, incoming: Incoming, now: float) -> None:
        """A stream is over, by its end or by a reset."""
        del self._streams[incoming.number]
        self._early.pop(incoming, None)
        self._held -= incoming.held
        if self._early_shares:
            self._hold_early()
        half = incoming.half
        if isinstance(half, Receiver) and half.sender_control == incoming.number:
            half.handle_sender_control_over()
            self._channels.update(half, now)

    def _count_held(self, incoming: Incoming) -> None:
        """AQ-LIMIT-3: what is read in part is bounded over all streams."""
        holds = incoming.holds()
        if holds == incoming.held:
            return
        self._held += holds - incoming.held
        incoming.held = holds
        if not self._ready:
            early = self.config.max_early_bytes
            if self.side == Side.CLIENT:
                early += self._link.receive_window.most()  # the server knows our limits already
            if self._held > early:
                raise RemoteProtocolError(
                    "AQ-CONN-3", "too much before the headers", CloseCode.LIMIT_EXCEEDED
                )
            self._hold_early()
        elif self._held > self._max_held():
            raise RemoteProtocolError(
                "AQ-LIMIT-3", "too much in unfinished frames", CloseCode.LIMIT_EXCEEDED
            )

    def _count_early_stream(self) -> None:
        """Count a stream before acceptance, and close a client with too many (AQ-COST-1)."""
        if self.side == Side.SERVER and len(self._streams) >= self.config.max_early_streams:
            raise RemoteProtocolError(
                "AQ-COST-1", "too many streams before the headers", CloseCode.LIMIT_EXCEEDED
            )
        self._hold_early()

    def _hold_early(self) -> None:
        held = self._held + COST_OF_STREAM * len(self._streams)
        for share in self._early_shares:
            if not share.hold(held):
                raise RemoteProtocolError(
                    "AQ-CONN-3", "too much of all clients at once", CloseCode.LIMIT_EXCEEDED
                )

    def _charge(self, share: Share) -> None:
        """Charge the address for what this connection holds (AQ-COST-4)."""
        held = COST_OF_STREAM * len(self._streams) + COST_OF_CHANNEL * len(self._channels.halves)
        if -_GRAIN < held - self._charged < _GRAIN:
            return
        if not share.hold(held):
            now = self._now
            self.handle_excess("AQ-COST-4", "too many streams and channels from one address", now)
            return
        self._charged = held

    def _max_held(self) -> int:
        limits = self._parser_limits
        largest = max(self._link.receive_window.most(), limits.max_message)
        return largest + limits.max_headers + _STREAM_OVERHEAD * len(self._streams)

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
        self._greeting = self._link.out.open_greeting(ack_version=True)
        if self.side == Side.CLIENT:
            self._link.out.finish(self._greeting)

    def _handle_headers(self, headers: Headers, now: float) -> None:
        if self._peer_headers is not None:
            raise RemoteProtocolError("AQ-CONN-4", "CONNECTION_HEADERS came twice")
        self._peer_headers, limits = split_limits(headers, self.config.initial_limits)
        self._open_send_window(limits)
        self._link.events.append(PeerHeaders(self._peer_headers))
        if self.side == Side.CLIENT:
            self._become_ready(now)

    def _open_send_window(self, limits: Limits) -> None:
        """Apply the peer's limits, also to the bytes that are already outstanding."""
        self._link.peer_limits = limits
        window = self._link.send_window
        before = window.reserve
        window.open(limits.connection_window, limits.channel_reserve, limits.reserve_window)
        for half in self._channels.halves.values():
            if isinstance(half, Sender):
                used = half.outstanding
                window.add(0, min(used, window.reserve) - min(used, before))

    def _send_headers(self, stream: OutgoingStream, headers: Headers) -> None:
        # Our limits have to fit in them, and AQ-LIMIT-2 has the peer take so much.
        max_headers = max(
            self._link.peer_limits.max_headers, self.config.initial_limits.max_headers
        )
        frame = ConnectionHeaders(with_limits(headers, self.config.limits, max_headers))
        self._link.out.write(stream, frame.encode())
        self._link.out.finish(stream)

    def _become_ready(self, now: float) -> None:
        """Both sides know each other: read what came too early."""
        self._ready = True
        self._release_early()
        for half in list(self._channels.halves.values()):
            if isinstance(half, Sender):
                half.allow()
        early, self._early = self._early, {}
        for incoming in early:
            self._held -= incoming.held
            incoming.held = 0
        for incoming in early:
            incoming.go_on()
            self._route(incoming, incoming.route, now)
            self._read(incoming, now)
            if incoming.is_datagram:
                self._held -= incoming.held
            elif incoming.fin:
                self._drop_stream(incoming, now)

    # -- the end ---------------------------------------------------------------------------------

    def _fail(self, error: RemoteProtocolError, now: float) -> None:
        self._end(error.code, str(error), False, now)
        self._link.out.close(error.code, str(error), at_once=True)  # AQ-CODE-3

    def _end(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        self._ended = True
        self._streams.clear()
        self._early.clear()
        self._held = 0
        self._release_early()
        if self._address_share is not None:
            self._address_share.hold(0)
            self._address_share = None
        self._channels.end_all(now)
        self._link.end()
        self._link.events.append(ConnectionEnded(code, reason, by_peer))

    def _release_early(self) -> None:
        """What is held from here on is bounded by the limits of this connection alone."""
        for share in self._early_shares:
            share.hold(0)
        self._early_shares = []

    # -- small things ----------------------------------------------------------------------------

    def _sender(self, channel: int) -> Sender:
        half = self._channels.halves.get(channel)
        if isinstance(half, Sender):
            return half
        raise ChannelClosed(f"there is no open sender for {describe(channel)}", channel=channel)

    def _admit(self) -> None:
        """Tell the senders that wait for the connection window and have room in it now."""
        for channel in self._link.turns.next(self._now):
            half = self._channels.halves.get(channel)
            assert isinstance(half, Sender)
            half.admit()

    def _report_all(self) -> None:
        """AQ-FLOW-4: a quarter of the connection window was taken, spread over many channels."""
        for channel in list(self._link.reporters):
            half = self._channels.halves.get(channel)
            assert isinstance(half, Receiver)
            half.report()


def as_bytes(payload: object) -> bytes:
    """A payload that nobody can change after it was sent."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise LocalProtocolError(f"a payload is bytes, not {type(payload).__name__}")


def wrong_side(rule: str, frame: str, channel: int) -> RemoteProtocolError:
    """The error for a frame that the other side of the channel would have to send."""
    return RemoteProtocolError(rule, f"{frame} from the wrong side of {describe(channel)}")
