"""Connections within one process: no sockets, no encryption, one event loop.

For tests of programs that use Aqueduct, with the real event loop and the real protocol::

    async with aqueduct.serve("memory://orders", Order, tls=tls) as server:
        async with aqueduct.connect("memory://orders", Order, trust=trust) as connection:
            await connection.entrypoint.send(order)

A name is known within the process; ``memory://`` alone makes the server choose a free one. Both
sides must run on the same event loop. ``tls`` and ``trust`` are not used, and neither are
``options`` except ``handshake_timeout``, so that a program under test differs in nothing but the
address. Headers, limits, flow control and all errors of channels are those of the protocol.

Bytes arrive in the next turn of the event loop, in order; datagrams are not lost. Use
`aqueduct.testing` for networks that lose and delay packets in virtual time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import count
from time import monotonic

from aqueduct.errors import BindError, CloseCode, ConnectError, HostUnreachable
from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import Action, ResetStream, Room, SendDatagram, WriteStream
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.transport.address import Address, Route
from aqueduct.transport.base import (
    MakeCore,
    OnTransport,
    TransportOwner,
    shortened,
)
from aqueduct.wire.chanid import Side

SCHEME = "memory://"
ROUND_TRIP = 0.001
"""Seconds of a round trip, as the core and the statistics see it: a few turns of the event loop."""

LARGEST_DATAGRAM = 65_527
"""Bytes of a datagram: no path limits them, so as many as UDP carries."""
_TURN_BYTES = 256 * 1024
"""Bytes that one turn hands over; more urgent things can overtake the rest."""
_TIMER_GRAIN = 0.001
_NEVER = float("inf")
_VANISHED = "the peer ended without a close"

ActionBatch = Sequence[Action | None]
"""What one flush hands over, in order; None stands for an end without a close."""


class MemoryTransport:
    """A `Transport` that hands the actions of its core to the other end's transport."""

    def __init__(
        self, hub: MemoryListener, core: ConnectionCore, peer: Address, name: bytes
    ) -> None:
        self.core = core
        self.loop = hub.loop
        self.peer = peer
        self.trace_id = name
        self.is_established = False
        self.may_send_early = self.early_data_accepted = False
        self.client_certificate: bytes | None = None
        self._hub = hub
        self._owner: TransportOwner | None = None
        self._observer: Observer | None = None
        self._other_end: MemoryTransport | None = None
        self._received: list[ActionBatch] = []
        self._open_streams: set[int] = set()
        self._has_closed = False
        """Whether the close was handed to the other end."""
        self._has_ended = False
        """Whether the core was notified that the connection is lost."""
        self._is_released = False
        self._read_due = self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._batches_sent = self._bytes_sent = 0
        self._batches_received = self._bytes_received = 0

    @property
    def is_closed(self) -> bool:
        """Whether the close was handed over, or the connection is lost."""
        return self._has_closed or self._has_ended

    def attach(self, owner: TransportOwner) -> None:
        """Set the owner."""
        self._owner = owner

    def detach(self) -> None:
        """Drop the owner."""
        self._owner = None

    def observe(self, observer: Observer) -> None:
        """Report all bytes of streams and datagrams to an observer."""
        self._observer = observer

    def start(self) -> None:
        """Connect to the listener."""
        self._hub.accept(self)
        self.schedule_flush()

    def join(self, other_end: MemoryTransport) -> None:
        """Set the transport that gets what this one sends."""
        self._other_end = other_end
        self.is_established = True
        self.core.handle_rtt(ROUND_TRIP)
        self.core.handle_datagram_limit(LARGEST_DATAGRAM)

    def now(self) -> float:
        """Return the monotonic time."""
        return monotonic()

    def schedule_flush(self) -> int:
        """Deliver events and hand over actions at the end of this turn of the loop."""
        if not self._flush_due and not self._is_released:
            self._flush_due = True
            self._hub.flushes_due += 1
            self.loop.call_soon(self._turn)
        return self._hub.flushes_due - self._flush_due

    def flush(self) -> None:
        """Hand all actions of the core to the other end now."""
        self._hand_over(Room())

    def _hand_over(self, room: Room) -> None:
        """Hand over the actions that there is room for."""
        if self._other_end is None or self.is_closed:
            return
        sent = [action for action in self.core.poll_actions(room) if self._is_sendable(action)]
        if sent:
            self._batches_sent += 1
            self._other_end.receive(sent)

    def receive(self, actions: ActionBatch) -> None:
        """Read actions of the other end's core in the next turn of the loop."""
        if self._has_ended or self._is_released:
            return
        self._received.append(actions)
        if not self._read_due:
            self._read_due = True
            self.loop.call_soon(self._read)

    def is_drained(self) -> bool:
        """Return whether all was handed over: it is read, in order, before a close."""
        return self._other_end is not None and not self.core.output.is_waiting

    def is_trust_failure(self, code: int) -> bool:
        """Return False: there are no certificates."""
        return False

    def is_foreign(self, code: int) -> bool:
        """Return False: only Aqueduct listens here."""
        return False

    def abandon(self, reason: str) -> None:
        """End the core without notifying the peer."""
        self._has_ended = True
        self.core.handle_connection_lost(CloseCode.NO_ERROR, reason, False, monotonic())

    def close(self) -> None:
        """Free all resources and deliver the last events.

        A peer that got no close is notified here, because it has no idle timeout.
        """
        if self._is_released:
            return
        self._is_released = True
        other_end, self._other_end = self._other_end, None
        if other_end is not None and not self._has_closed:
            other_end.receive([None])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._received.clear()
        self._hub.forget(self)
        self._deliver_events()

    def statistics(self) -> dict[str, float]:
        """Return counters; what one turn hands over counts as a packet."""
        return {
            "rtt": ROUND_TRIP,
            "bytes_sent": self._bytes_sent,
            "bytes_received": self._bytes_received,
            "packets_sent": self._batches_sent,
            "packets_received": self._batches_received,
            "lost_packets": 0,
            "congestion_window": 0,
            "bytes_in_flight": 0,
            "streams": len(self._open_streams),
            "send_buffer": self.core.output.size,
        }

    def _is_sendable(self, action: Action) -> bool:
        """Count and report an action; return whether it means anything to the other end."""
        observer = self._observer
        if isinstance(action, WriteStream):
            self._bytes_sent += len(action.data)
            if action.fin:
                self._open_streams.discard(action.stream)
            else:
                self._open_streams.add(action.stream)
            if observer is not None:
                stream = _stream_id(action.stream, self.core.side)
                observer.stream_written(stream, action.data, action.fin)
        elif isinstance(action, SendDatagram):
            self._bytes_sent += len(action.data)
            if observer is not None:
                observer.datagram_written(action.data)
        elif isinstance(action, ResetStream):
            if action.stream not in self._open_streams:
                return False  # it was finished: everything has arrived
            self._open_streams.discard(action.stream)
            if observer is not None:
                observer.reset_written(_stream_id(action.stream, self.core.side), action.code)
        else:
            self._has_closed = True
        return True

    def _turn(self) -> None:
        self._flush_due = False
        self._hub.flushes_due -= 1
        if self._is_released:
            return
        self._deliver_events()
        room = Room()
        room.bytes, room.urgent = _TURN_BYTES, _TURN_BYTES
        self._hand_over(room)
        if self.core.output.is_waiting and not self.is_closed:
            self.schedule_flush()
        if self._owner is not None:
            self._owner.handle_flushed(self._hub.flushes_due)
        if self.is_closed:
            self.close()
        else:
            self._rearm()

    def _read(self) -> None:
        self._read_due = False
        received, self._received = self._received, []
        for actions in received:
            self._batches_received += 1
            for action in actions:
                if not self._has_ended:
                    self._handle(action, monotonic())
        # Tasks that this wakes run before the flush, so that their answers leave with it.
        self._deliver_events()
        self.schedule_flush()

    def _handle(self, action: Action | None, now: float) -> None:
        core, observer = self.core, self._observer
        if isinstance(action, WriteStream):
            self._bytes_received += len(action.data)
            stream = _stream_id(action.stream, core.side.other)
            if observer is not None:
                observer.stream_read(stream, action.data, action.fin)
            core.handle_stream_data(stream, action.data, action.fin, now)
        elif isinstance(action, SendDatagram):
            self._bytes_received += len(action.data)
            if observer is not None:
                observer.datagram_read(action.data)
            core.handle_datagram(action.data, now)
        elif isinstance(action, ResetStream):
            stream = _stream_id(action.stream, core.side.other)
            if observer is not None:
                observer.reset_read(stream, action.code)
            core.handle_stream_reset(stream, action.code, now)
        else:
            self._has_ended = True
            self._other_end = None
            if self._owner is not None:
                self._owner.handle_ending()
            if action is None:
                core.handle_connection_lost(CloseCode.IDLE, _VANISHED, False, now)
            else:
                core.handle_connection_lost(action.code, shortened(action.reason), True, now)

    def _deliver_events(self) -> None:
        events = self.core.poll_events()
        if events and self._owner is not None:
            self._owner.handle_events(events)

    def _rearm(self) -> None:
        at = self.core.next_timer()
        if at is None or at >= self._timer_at:
            return  # one early expiry is cheaper than a new timer for each turn
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(_TIMER_GRAIN, at - monotonic()), self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        now = monotonic()
        due = self.core.next_timer()
        if due is not None and due <= now:
            self.core.handle_timer(now)
        self.schedule_flush()


class MemoryListener:
    """A `Listener` on a name."""

    def __init__(
        self, name: str, handshake_timeout: float, make_core: MakeCore, on_transport: OnTransport
    ) -> None:
        self.name = name
        self.handshake_timeout = handshake_timeout
        self.loop = asyncio.get_running_loop()
        self.unclaimed = 0
        self.flushes_due = 0
        """Connections of this listener, at either end, that wait for their flush."""
        self.is_accepting = True
        self._make_core = make_core
        self._on_transport = on_transport
        self._transports: dict[MemoryTransport, None] = {}

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return SCHEME + self.name

    def accept(self, client: MemoryTransport) -> None:
        """Make the server's end of a connection."""
        number = next(_numbers)
        transport = MemoryTransport(
            self, self._make_core(None), ("memory", number), client.trace_id
        )
        self._transports[transport] = None
        transport.join(client)
        client.join(transport)
        self._on_transport(transport)

    def forget(self, transport: MemoryTransport) -> None:
        """Remove a connection that has ended."""
        self._transports.pop(transport, None)

    def stop_accepting(self) -> None:
        """Reject new clients."""
        self.is_accepting = False

    def close(self) -> None:
        """Abandon all connections and free the name."""
        self.is_accepting = False
        if _listeners.get(self.name) is self:
            del _listeners[self.name]
        for transport in list(self._transports):
            transport.abandon("the listener was closed")
            transport.close()


class MemoryConnector:
    """A `Connector` for a name."""

    protocol = ""

    def __init__(self, address: str) -> None:
        self.host = address.removeprefix(SCHEME)

    async def resolve(self) -> list[Route]:
        """Return the only route."""
        return [(0, (SCHEME + self.host, 0))]

    def open(self, route: Route, core: ConnectionCore) -> MemoryTransport:
        """Return the client's end of a connection to the listener."""
        listener = _listeners.get(self.host)
        if listener is None or not listener.is_accepting:
            raise HostUnreachable(
                f"nothing listens at {SCHEME}{self.host}", hint="start the server first"
            )
        if listener.loop is not asyncio.get_running_loop():
            raise ConnectError(
                f"{SCHEME}{self.host} listens on another event loop; "
                "connect and serve on the same one"
            )
        return MemoryTransport(listener, core, route[1], os.urandom(8))


def listen(
    address: str, handshake_timeout: float, make_core: MakeCore, on_transport: OnTransport
) -> MemoryListener:
    """Listen on ``memory://name``; raise `BindError` if the name is in use."""
    name = address.removeprefix(SCHEME) or f"server-{next(_numbers)}"
    other = _listeners.get(name)
    if other is not None and not other.loop.is_closed():
        raise BindError(
            f"cannot listen on {address}: the name is in use",
            address=address,
            hint="choose another name",
        )
    listener = MemoryListener(name, handshake_timeout, make_core, on_transport)
    _listeners[name] = listener
    return listener


def _stream_id(number: int, side: Side) -> int:
    """Return the id of a stream that a side has opened, numbered as QUIC numbers them."""
    return number * 4 + 2 + side


_listeners: dict[str, MemoryListener] = {}
"""The listeners of this process by name."""
_numbers = count(1)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_listeners.clear)
