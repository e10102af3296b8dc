"""What the ports of one connection share: the core, its driver, and who owns which channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from aqueduct.codec import ChannelHalf
from aqueduct.errors import (
    AqueductError,
    ConnectionLost,
    EncodeError,
    ForkedConnectionError,
    WouldBlock,
)
from aqueduct.observe.base import Observer
from aqueduct.protocol.connection import Attach, Sent
from aqueduct.protocol.connection import Connection as Core
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    Event,
    PeerHeaders,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
    Writable,
)
from aqueduct.runtime.forked import FORKED_REASON
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.runtime.send_port import TURN_BYTES, NetworkSendPort
from aqueduct.transport.quic.endpoint import Driver
from aqueduct.wire.chanid import sender_of
from aqueduct.wire.frames import Attachment
from aqueduct.wire.frames import Message as WireMessage
from aqueduct.wire.primitives import Headers as Pairs

Port = NetworkSendPort | NetworkReceivePort


class MovableHalf(Protocol):
    """A half of a channel, as a message that carries it needs it."""

    _origin: Any

    def prepare_to_move(self) -> Attach:
        """Return what to attach to the message; raise if the half cannot be sent."""

    def move(self, line: Line, channel: int) -> None:
        """Continue as a channel of the connection: the message is on its way."""


_MOST_BUSY = 4
"""Busy connections among which a turn is divided at most: shorter turns cost throughput."""


class Line:
    """One connection as its ports see it."""

    def __init__(self, driver: Driver, make_handle: Callable[[Port, Pairs], ChannelHalf]) -> None:
        self.driver = driver
        self._make_handle = make_handle
        self.core: Core = driver.core
        self.time = driver.now()
        self.turn_due = False
        self.unflushed = 0
        self.ports: dict[int, Port] = {}
        self._unclaimed: dict[int, Port] = {}
        """Ports of halves that were taken from the core and not yet decoded."""
        self.ended: ConnectionEnded | None = None
        self.is_forked = False
        self.peer_headers: Pairs | None = None
        self.observer: Observer | None = None
        """Hears what happens on this connection, if it is observed."""
        self.present: Callable[[ChannelHalf, type[ChannelHalf] | None], ChannelHalf] = as_it_is
        """What the application gets to hold of a half: itself, or its blocking twin."""

    def touch(self) -> None:
        """Something is to be sent: at the end of this turn of the loop."""
        if not self.turn_due:
            self.turn_due = True
            self.driver.touch()

    def turned(self) -> None:
        """The loop's turn is over and everything was handed to QUIC."""
        self.turn_due = False
        # Connections with a turn due share the bytes of a turn, so that an iteration of the
        # event loop takes as long with several busy connections as with one.
        busy = min(self.driver.endpoint.turns_due, _MOST_BUSY - 1)
        self.unflushed = TURN_BYTES - TURN_BYTES // (1 + busy)
        self.time = self.driver.now()

    # -- sending ----------------------------------------------------------------------------------

    def send(self, channel: int, payload: bytes, headers: Pairs, halves: list[ChannelHalf]) -> Sent:
        """Send a message, and with it the halves in it."""
        if not halves:
            return self.core.send_message(channel, payload, self.time, headers=headers)
        moving = cast("list[MovableHalf]", halves)
        attach = [half.prepare_to_move() for half in moving]
        if len({half._origin for half in moving}) < len(moving):
            raise EncodeError("a message cannot hold a half twice, nor both halves of a channel")
        sent = self.core.send_message(channel, payload, self.time, headers=headers, attach=attach)
        if self.observer is not None:
            modes = [one.mode.value for one in attach]
            self.observer.channels_born(channel, sent.number, sent.reliable, sent.channels, modes)
        for half, made in zip(moving, sent.channels, strict=True):
            half.move(self, made)
        return sent

    def too_much(self, error: AqueductError) -> AqueductError:
        """What to say of a message over the peer's limits: if they are to come yet, wait."""
        if self.peer_headers is not None:
            return error
        return WouldBlock("AQ-EARLY-4: the message has to wait for the server's limits")

    # -- receiving --------------------------------------------------------------------------------

    def open_ports(self, message: WireMessage) -> None:
        """Ports for the halves in a message that was taken, before their first event."""
        for attachment in message.attachments:
            channel = attachment.channel
            self._unclaimed[channel] = self.open_port(channel, bytes)

    def open_port(self, channel: int, kind: Any) -> Port:
        """A port for a half that is ours now."""
        port: Port
        if sender_of(channel) == self.core.side:
            port = NetworkSendPort(self, channel, kind)
        else:
            port = NetworkReceivePort(self, channel, kind)
        self.ports[channel] = port
        return port

    def forget_port(self, port: Port) -> None:
        """Remove a port that gets no more events."""
        self.ports.pop(port.channel, None)

    def claim(
        self, attachment: Attachment, half: type[ChannelHalf] | None, kind: Any
    ) -> ChannelHalf:
        """The handle for a half that came in a message, as what its type says, if anything."""
        port = self._unclaimed.get(attachment.channel)
        if port is None:
            raise ValueError("one attachment cannot be two channels")
        if half is not None and half.sends is not isinstance(port, NetworkSendPort):
            raise ValueError(f"the attachment is no {half.__name__}, but the other half")
        del self._unclaimed[attachment.channel]
        port.set_type(kind)
        handle = self._make_handle(port, attachment.headers)
        try:
            return self.present(handle, half)
        except ValueError:
            port.abandon()
            raise

    def attached(self, message: WireMessage) -> Unclaimed:
        """The halves of a message that nobody decodes."""
        return Unclaimed(self, message)

    def abandon(self, message: WireMessage) -> None:
        """Nobody wants the halves in a message that were not claimed (AQ-CLOSE-4)."""
        for attachment in message.attachments:
            port = self._unclaimed.pop(attachment.channel, None)
            if port is not None:
                port.abandon()

    def give_up(self, channel: int) -> None:
        """A half whose message could not be decoded has no owner."""
        port = self.ports.get(channel)
        if port is not None:
            port.abandon()

    def rescue(self) -> None:
        """The peer is gone: what arrived before that is still for the application."""
        waiting: list[Port] = list(self.ports.values())
        for port in waiting:
            if isinstance(port, NetworkReceivePort):
                waiting.extend(port.rescue())

    # -- events -----------------------------------------------------------------------------------

    def handle_events(self, events: list[Event]) -> None:
        """What the core learned."""
        self.time = self.driver.now()
        if self.observer is not None:
            self.observer.events_raised(events, self.ports)
        for event in events:
            if isinstance(event, PeerHeaders):
                self.peer_headers = event.headers
                self.on_headers()
            elif isinstance(event, ConnectionEnded):
                self.ended = event
                self.on_end()
            else:
                self._handle(event)

    def on_headers(self) -> None:
        """The peer's headers came."""

    def on_end(self) -> None:
        """The connection is over."""

    def lost(self, channel: int | None = None) -> AqueductError:
        """The error for whoever uses a channel of an ended connection."""
        ended = self.ended
        if self.is_forked:
            return ForkedConnectionError(FORKED_REASON, channel=channel)
        if ended is None:
            return ConnectionLost("the connection ended", channel=channel)
        who = "the peer" if ended.by_peer else "this side"
        reason = f": {ended.reason}" if ended.reason else ""
        return ConnectionLost(
            f"{who} closed the connection with code {ended.code:#x}{reason}",
            channel=channel,
            code=ended.code,
            reason=ended.reason,
            by_peer=ended.by_peer,
        )

    def _handle(self, event: Event) -> None:
        port = self.ports.get(event.channel)  # type: ignore[union-attr]
        if port is None:
            return
        if isinstance(event, Readable):
            assert isinstance(port, NetworkReceivePort)
            port.handle_readable()
        elif isinstance(event, Writable):
            assert isinstance(port, NetworkSendPort)
            port.pump()
        elif isinstance(event, Delivered | Undelivered):
            assert isinstance(port, NetworkSendPort)
            port.handle_fate(event)
        elif isinstance(event, SenderEnded | ReceiverEnded):
            del self.ports[event.channel]
            port.handle_end(event)  # type: ignore[arg-type]


def as_it_is(half: ChannelHalf, wanted: type[ChannelHalf] | None) -> ChannelHalf:
    """What asynchronous code holds."""
    if wanted is not None and wanted is not type(half):
        raise ValueError(
            f"{wanted.__module__}.{wanted.__name__} is for threads; "
            f"asynchronous code declares aqueduct.{type(half).__name__}"
        )
    return half


class Unclaimed:
    """The halves of a message of `bytes`: claimed when asked for, closed when forgotten."""

    __slots__ = ("_halves", "_line", "_message")

    def __init__(self, line: Line, message: WireMessage) -> None:
        self._line = line
        self._message = message
        self._halves: tuple[ChannelHalf, ...] | None = None

    def halves(self) -> tuple[ChannelHalf, ...]:
        """Handles of them, the same ones each time."""
        if self._halves is None:
            attachments = self._message.attachments
            self._halves = tuple(self._line.claim(one, None, bytes) for one in attachments)
        return self._halves

    def __del__(self) -> None:
        loop = self._line.driver.loop
        if self._halves is None and not loop.is_closed():
            loop.call_soon_threadsafe(self._line.abandon, self._message)
