"""One connection between its transport and its ports.

The driver hands the core's events to the ports of channels, and opens ports for the halves that
arrive in messages. `aqueduct.runtime.closing` closes the connection, and `aqueduct.api.Connection`
is the facade that users hold.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from aqueduct.codec import ChannelHalf, CodecClass
from aqueduct.codec.registry import codec_of_peer
from aqueduct.errors import (
    AqueductError,
    CloseCode,
    ConnectionLost,
    EncodeError,
    ForkedConnectionError,
    LocalProtocolError,
    WouldBlock,
)
from aqueduct.observe.base import ObservedConnection, Observer, ObserverFactory
from aqueduct.observe.fanout import observe
from aqueduct.protocol.connection import Attach, ConnectionCore, SentMessage
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
from aqueduct.protocol.modes import Mode, hinted_mode
from aqueduct.runtime.ports import FORKED_REASON, HALF_TWICE, Unclaimed
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.runtime.turns import TURN_BYTES, SenderQueue, bytes_for
from aqueduct.runtime.unrolled import Unrolled
from aqueduct.runtime.waiters import OTHER_LOOP, Waiters, is_foreign
from aqueduct.transport.base import Transport
from aqueduct.wire.chanid import ENTRYPOINT, sender_of
from aqueduct.wire.frames import Attachment, MessageFrame
from aqueduct.wire.primitives import HeaderPairs

Port = NetworkSendPort | NetworkReceivePort


class MovableHalf(Protocol):
    """A half of a channel that a message can carry."""

    _origin: Any

    def _prepare_to_move(self) -> Attach:
        """Return what to attach to the message; raise if the half cannot be sent."""

    def _move(self, driver: ConnectionDriver, channel: int) -> None:
        """Become a channel of the connection that carries the message."""


_LOSSES = (CloseCode.IDLE, CloseCode.TRANSPORT)
"""Close codes of connections that were lost and not closed by choice."""

MakeHandle = Callable[[Port, HeaderPairs], ChannelHalf]
"""Makes the handle of a port, with the headers of its channel."""
MakeError = Callable[[int, str, Transport], AqueductError]
"""Makes the error for a connection that ended with a code and a reason before it was ready."""


class ConnectionDriver:
    """Runs one connection: owns its transport, and holds the state that its ports share."""

    def __init__(
        self,
        transport: Transport,
        kind: Any,
        make_handle: MakeHandle,
        make_error: MakeError,
        observers: Sequence[ObserverFactory] = (),
        codec: CodecClass | None = None,
    ) -> None:
        """``kind`` and ``codec`` are those of the messages on the entrypoint."""
        self.transport = transport
        self.loop = transport.loop
        self._make_handle = make_handle
        self._make_error = make_error
        self.core: ConnectionCore = transport.core
        self.time = transport.now()
        self.turn_due = False
        self.unflushed = 0
        """Bytes queued in this turn, plus the part of the turn left to other connections."""
        self.part_end = TURN_BYTES
        """The value of `unflushed` at which the running sender yields."""
        self._senders = SenderQueue()
        self.ports: dict[int, Port] = {}
        self._unclaimed: dict[int, Port] = {}
        """Ports of halves that were taken from the core and not yet decoded."""
        self.ended: ConnectionEnded | None = None
        self.is_forked = False
        self.peer_headers: HeaderPairs | None = None
        self.observer: Observer | None = None
        """The observers of this connection, if any."""
        self.when_closed: Callable[[], Awaitable[None]] | None = None
        """Called once, when the connection has been closed."""
        self.present: Callable[[ChannelHalf, type[ChannelHalf] | None], ChannelHalf] = as_it_is
        """Makes the application's handle of a half: the half itself, or its blocking twin."""
        self._ready = self.loop.create_future()
        self.over = self.loop.create_future()
        """Done when the connection has ended."""
        self._changed = Waiters()
        """Tasks that wait for the connection to change."""
        self._unready = Waiters()
        """Tasks that wait for the headers; woken within the turn, so that a server's answer leaves
        with it."""
        self._failure: AqueductError | None = None
        """Why the connection never became ready."""
        self.failure_was_raised = False
        self.was_closed_here = False
        self._adopted = Unrolled(NetworkSendPort.pump)
        self._abandoned: Unrolled[Port] = Unrolled(abandon_port)
        self.rescued_bytes = 0
        """Bytes that the application had not received when the connection ended."""
        if observers:
            self._attach(observers)
        transport.attach(self)
        port = self.open_port(ENTRYPOINT, kind, codec)
        self.entry_port: Port | None = port
        self.entrypoint: ChannelHalf | None = make_handle(port, ())
        live_drivers.add(self)

    def _attach(self, factories: Sequence[ObserverFactory]) -> None:
        transport = self.transport
        side = self.core.side.name.lower()
        observed = ObservedConnection(transport.trace_id.hex(), side, transport.peer)
        self.observer = observe(observed, factories)
        if self.observer is not None:
            transport.observe(self.observer)

    # -- the start --------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether both sides have each other's headers."""
        return self._ready.done() and self._ready.exception() is None

    async def wait_ready(self) -> None:
        """Wait until both sides have each other's headers; raise what `connect` would."""
        self.check_loop()
        while not self._ready.done():
            await self._unready.wait()
        try:
            self._ready.result()
        except AqueductError:
            self.failure_was_raised = True
            raise

    async def wait_established(self) -> None:
        """Wait until the transport's handshake is complete, or the connection has failed."""
        while not self.transport.is_established and not self._ready.done():
            await self._changed.wait()

    def fail_after(self, seconds: float, error: AqueductError) -> None:
        """Fail with this error if the connection is not ready after ``seconds``."""
        timer = self.loop.call_later(seconds, self.handle_failure, error)
        self._ready.add_done_callback(lambda _: timer.cancel())

    def handle_failure(self, error: AqueductError) -> None:
        """Fail a connection that is not ready: its channels and `wait_ready` raise this error."""
        if not self._ready.done():
            self._fail(error)
            self.transport.abandon(str(error))
            self.transport.close()

    def discard(self, error: AqueductError) -> None:
        """Break the reference cycles of a connection that failed with this error."""
        self.transport.detach()
        self.entrypoint = self.entry_port = None
        error.__traceback__ = None

    def _fail(self, error: AqueductError) -> None:
        self._failure = error
        self._ready.set_exception(error)
        self._ready.exception()  # asyncio would log an error that no task retrieves
        self._unready.wake_all()
        self._changed.wake_all()

    def accept(self, headers: HeaderPairs) -> None:
        """Accept a client with the server's headers."""
        self.core.accept(headers, self.transport.now())
        self.transport.schedule_flush()

    def refuse(self, code: CloseCode, reason: str) -> None:
        """Refuse a client."""
        self.core.refuse(code, reason, self.transport.now())
        self.transport.schedule_flush()

    def close_soon(self, code: CloseCode, reason: str) -> None:
        """Close the connection without waiting for the peer."""
        self.core.close_connection(code, reason, self.transport.now())
        self.transport.schedule_flush()

    # -- turns ------------------------------------------------------------------------------------

    def check_loop(self) -> None:
        """Raise if this is not called on the event loop of the connection."""
        if is_foreign(self.loop) and not self.is_forked:
            raise LocalProtocolError(f"this connection belongs to {OTHER_LOOP}")

    def touch(self) -> None:
        """Schedule a flush at the end of this turn of the event loop. Call it before the change.

        Checks the loop once per turn, so that the hot path does not pay for it with each message.
        """
        if not self.turn_due and not self.is_forked:
            self.check_loop()
            self.turn_due = True
            busy = self.transport.schedule_flush()
            # Otherwise a task that sends on many connections fills a whole turn on each of them.
            if busy and self.unflushed < (taken := TURN_BYTES - bytes_for(busy)):
                self.unflushed = taken

    async def wait_turn(self) -> None:
        """Wait to send until the senders before this one had their part of a turn."""
        if self.ended is None and not self.is_forked:
            self.touch()
            part = await self._senders.wait()
            self.part_end = self.unflushed + part

    def handle_flushed(self, busy: int) -> None:
        """Handle the end of a flush; ``busy`` other connections wait for theirs."""
        self.turn_due = False
        left = bytes_for(busy)
        self.unflushed = TURN_BYTES - left
        self.part_end = TURN_BYTES
        if self._senders:
            self._senders.start_turn(left)
            if self._senders:
                self.touch()
        self.time = self.transport.now()
        if self._changed:
            self._changed.wake_all()

    # -- sending ----------------------------------------------------------------------------------

    def send(
        self, channel: int, payload: bytes, headers: HeaderPairs, halves: list[ChannelHalf]
    ) -> SentMessage:
        """Send a message and the halves in it."""
        if not halves:
            return self.core.send_message(channel, payload, self.time, headers=headers)
        moving = cast("list[MovableHalf]", halves)
        attach = [half._prepare_to_move() for half in moving]
        if len({half._origin for half in moving}) < len(moving):
            raise EncodeError(HALF_TWICE)
        sent = self.core.send_message(channel, payload, self.time, headers=headers, attach=attach)
        if self.observer is not None:
            modes = [one.mode.value for one in attach]
            self.observer.channels_created(
                channel, sent.number, sent.reliable, sent.channels, modes
            )
        for half, made in zip(moving, sent.channels, strict=True):
            half._move(self, made)
        return sent

    def pump(self, port: NetworkSendPort) -> None:
        """Send what was queued while a channel was local.

        Such a message may carry the half of another channel with queued messages.
        """
        self._adopted.add(port)

    def limit_error(self, error: AqueductError) -> AqueductError:
        """Return the error for a message over the limits: `WouldBlock` until they are known."""
        if self.peer_headers is not None:
            return error
        return WouldBlock("AQ-EARLY-4: the message has to wait for the server's limits")

    # -- receiving --------------------------------------------------------------------------------

    def open_ports(self, message: MessageFrame) -> None:
        """Open ports for the halves in a message that was taken, before their first event."""
        for attachment in message.attachments:
            channel = attachment.channel
            mode = hinted_mode(attachment.headers)
            self._unclaimed[channel] = self.open_port(channel, bytes, mode=mode)

    def open_port(
        self,
        channel: int,
        kind: Any,
        codec: CodecClass | None = None,
        mode: Mode = Mode.ORDERED,
    ) -> Port:
        """Open a port for a half that this side holds."""
        port: Port
        if sender_of(channel) == self.core.side:
            port = NetworkSendPort(self, channel, kind, codec, mode)
        else:
            port = NetworkReceivePort(self, channel, kind, codec)
        self.ports[channel] = port
        return port

    def set_entrypoint_type(self, kind: Any, codec: CodecClass | None) -> None:
        """Set the codec that the client chose, before the application receives messages."""
        port = self.ports.get(ENTRYPOINT)
        if port is not None:
            port.set_type(kind, codec)

    def forget_port(self, port: Port) -> None:
        """Remove a port that gets no more events."""
        self.ports.pop(port.channel, None)

    def claim(
        self, attachment: Attachment, half: type[ChannelHalf] | None, kind: Any
    ) -> ChannelHalf:
        """Return the handle for a half in a message.

        Raises `ValueError` if the half is of the other direction, or was claimed (AQ-TYPE-3).
        """
        port = self._unclaimed.get(attachment.channel)
        if port is None:
            raise ValueError("one attachment cannot be two channels")
        if half is not None and half._sends is not isinstance(port, NetworkSendPort):
            raise ValueError(f"the attachment is no {half.__name__}, but the other half")
        del self._unclaimed[attachment.channel]
        port.set_type(kind, codec_of_peer(attachment.headers))
        handle = self._make_handle(port, attachment.headers)
        try:
            return self.present(handle, half)
        except ValueError:
            port.abandon()
            raise

    def attached(self, message: MessageFrame) -> Unclaimed:
        """Return the halves of a message that is not decoded."""
        return Unclaimed(self, message)

    def abandon(self, message: MessageFrame) -> None:
        """End the halves in a message that were not claimed (AQ-CLOSE-4).

        A receiver that ends abandons the messages it holds in turn.
        """
        for attachment in message.attachments:
            port = self._unclaimed.pop(attachment.channel, None)
            if port is not None:
                self._abandoned.add(port)

    def give_up(self, channel: int) -> None:
        """End a half whose message could not be decoded."""
        port = self.ports.get(channel)
        if port is not None:
            port.abandon()

    def handle_ending(self) -> None:
        """Keep what has arrived for the application, before the core ends."""
        self.rescued_bytes = self.core.held_bytes
        waiting: list[Port] = list(self.ports.values())
        for port in waiting:
            if isinstance(port, NetworkReceivePort):
                waiting.extend(port.rescue())

    # -- events -----------------------------------------------------------------------------------

    def handle_events(self, events: list[Event]) -> None:
        """Handle events of the core."""
        self.time = self.transport.now()
        if self.observer is not None:
            self.observer.events_raised(events, self.ports)
        for event in events:
            if isinstance(event, PeerHeaders):
                self.peer_headers = event.headers
                self._handle_headers()
            elif isinstance(event, ConnectionEnded):
                self.ended = event
                self._handle_end(event)
            else:
                self._handle(event)

    def _handle_headers(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
            self._unready.wake_all()
        for port in list(self.ports.values()):
            if isinstance(port, NetworkSendPort):
                port.pump()  # AQ-EARLY-4: what waited for the server's limits

    def _handle_end(self, event: ConnectionEnded) -> None:
        if not self._ready.done():
            self._fail(self._make_error(event.code, event.reason, self.transport))
        if not self.over.done():
            self.over.set_result(None)
        self._changed.wake_all()
        self._senders.end()
        live_drivers.discard(self)

    def lost(self, channel: int | None = None) -> AqueductError:
        """Return the error for the use of a channel after the end: why the connection ended."""
        failure = self._failure
        if failure is not None and not self.was_closed_here and not self.is_forked:
            self.failure_was_raised = True
            return copy.copy(failure)
        ended = self.ended
        if self.is_forked:
            return ForkedConnectionError(FORKED_REASON, channel=channel)
        if ended is None:
            return ConnectionLost("the connection ended", channel=channel)
        closer = "the peer" if ended.by_peer else "this side"
        reason = f": {ended.reason}" if ended.reason else ""
        sentence = f"{closer} closed the connection with code {ended.code:#x}{reason}"
        if not ended.by_peer and ended.code in _LOSSES:
            sentence = f"the connection was lost{reason}"
        return ConnectionLost(
            sentence,
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

    # -- the end ----------------------------------------------------------------------------------

    async def wait_change(self) -> None:
        """Wait until the end of a flush, or of the connection."""
        await self._changed.wait()

    @property
    def has_told_end(self) -> bool:
        """Whether the application was told how the entrypoint, a receiver, has ended."""
        port = self.entry_port
        return isinstance(port, NetworkReceivePort) and port.has_told_end

    def statistics(self) -> dict[str, float]:
        """Return counters of the transport and of the core."""
        return {
            **self.transport.statistics(),
            "channels": self.core.channel_count,
            "held_bytes": self.core.held_bytes,
        }

    def check_process(self) -> None:
        """Raise `ForkedConnectionError` in a child process; otherwise call `check_loop`."""
        if self.is_forked:
            raise self.lost()
        self.check_loop()

    def handle_fork(self) -> None:
        """Fail all use in a child process, instead of waiting there for the parent's packets."""
        self.is_forked = True
        for port in self.ports.values():
            port.fork()


live_drivers: weakref.WeakSet[ConnectionDriver] = weakref.WeakSet()
"""The connections of this process that have not ended."""


def _after_fork() -> None:
    for driver in list(live_drivers):
        driver.handle_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def abandon_port(port: Port) -> None:
    """End an unclaimed half."""
    port.abandon()


def as_it_is(half: ChannelHalf, wanted: type[ChannelHalf] | None) -> ChannelHalf:
    """Return the half itself, for asynchronous code."""
    if wanted is not None and wanted is not type(half):
        raise ValueError(
            f"{wanted.__module__}.{wanted.__name__} is for threads; "
            f"asynchronous code declares aqueduct.{type(half).__name__}"
        )
    return half
