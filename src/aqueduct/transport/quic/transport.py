"""One QUIC connection on the event loop: flushes once per turn and keeps one timer."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from aqueduct.errors import CloseCode
from aqueduct.observe.base import Observer
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.transport.address import Address
from aqueduct.transport.base import TransportOwner
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.tls import NO_APPLICATION_PROTOCOL

if TYPE_CHECKING:
    from aqueduct.transport.quic.endpoint import QuicEndpoint

TIMER_GRAIN = 0.001
"""Seconds to which event loops round their timers, up or down."""

_TLS_ALERTS = range(0x100, 0x200)
"""QUIC's error codes for TLS alerts (RFC 9001, 4.8)."""
_FOREIGN = frozenset({0x100 + 40, 0x100 + 70, NO_APPLICATION_PROTOCOL})
"""The alerts of a TLS server with which we have nothing in common: handshake_failure,
protocol_version and no_application_protocol."""


class QuicTransport:
    """A `Transport` over QUIC; many of them share the socket of a `QuicEndpoint`."""

    def __init__(self, endpoint: QuicEndpoint, bridge: Bridge, peer: Address) -> None:
        self.endpoint = endpoint
        self.bridge = bridge
        self.peer = peer
        self.core: ConnectionCore = bridge.core
        self.loop = endpoint.loop
        self.owner: TransportOwner | None = None
        self.ids: set[bytes] = set()
        """Connection ids whose packets are routed here."""
        self._flush_due = False
        self._is_pacing = False
        self._timer_expired = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self.packets_sent = self.bytes_sent = 0
        self.packets_received = self.bytes_received = 0
        """UDP packets and their payload, as the socket counts them."""

    @property
    def trace_id(self) -> bytes:
        """The connection id that the client chose and the server read from the first packet."""
        return self.bridge.quic.original_destination_connection_id

    @property
    def client_certificate(self) -> None:
        """None: qh3 cannot ask for it."""
        return None

    @property
    def is_established(self) -> bool:
        """Whether the TLS handshake is complete."""
        return self.bridge.connected

    @property
    def may_send_early(self) -> bool:
        """Whether there are keys for early data."""
        return self.bridge.quic.is_early

    @property
    def early_data_accepted(self) -> bool:
        """Whether the server accepted early data."""
        return self.bridge.quic.early_data_accepted

    @property
    def is_closed(self) -> bool:
        """Whether the close was sent, behind all data it waits for, or the connection is lost."""
        return self.bridge.is_closed()

    def attach(self, owner: TransportOwner) -> None:
        """Set the owner."""
        self.owner = owner
        self.bridge.before_end = owner.handle_ending

    def detach(self) -> None:
        """Drop the owner."""
        self.owner = None

    def observe(self, observer: Observer) -> None:
        """Report all bytes of streams and datagrams to an observer."""
        self.bridge.observer = observer

    def start(self) -> None:
        """Begin the handshake as a client."""
        self.bridge.quic.connect(self.peer, monotonic())
        self.schedule_flush()

    def now(self) -> float:
        """Return the monotonic time; some event loops keep only milliseconds."""
        return monotonic()

    def receive(self, data: bytes, segment: int, address: Address) -> None:
        """Handle packets of this connection."""
        now = monotonic()
        size = len(data)
        self.bytes_received += size
        self.packets_received += 1 if size <= segment else -(-size // segment)
        self.bridge.receive(data, segment, address, now)
        # Tasks that this wakes run before the flush, so that their answers share packets with acks.
        self.deliver_events()
        self.schedule_flush()

    def schedule_flush(self) -> int:
        """Deliver events, send packets and set the timer at the end of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self.endpoint.flushes_due += 1
            self.loop.call_soon(self._turn)
        return self.endpoint.flushes_due - 1

    def flush(self) -> None:
        """Send what the core and QUIC have to send now."""
        self.endpoint.send(self.bridge.flush(monotonic()))

    def is_drained(self) -> bool:
        """Return whether QUIC at the peer has acknowledged everything that the core has written."""
        return self.bridge.is_drained()

    def is_trust_failure(self, code: int) -> bool:
        """Return whether a close code is a TLS alert about anything but the protocol."""
        return code in _TLS_ALERTS and code not in _FOREIGN

    def is_foreign(self, code: int) -> bool:
        """Return whether a close code says that the server offers another protocol."""
        return code in _FOREIGN

    def deliver_events(self) -> None:
        """Pass the core's events on to the owner."""
        events = self.core.poll_events()
        if events and self.owner is not None:
            self.owner.handle_events(events)

    def abandon(self, reason: str) -> None:
        """End the core without notifying the peer."""
        self.bridge.ended = True
        self.core.handle_connection_lost(CloseCode.NO_ERROR, reason, False, self.now())

    def close(self) -> None:
        """Remove the connection from its endpoint and deliver the last events."""
        self.endpoint.forget(self)
        self.endpoint.handle_closed(self)

    def statistics(self) -> dict[str, float]:
        """Return counters of UDP and QUIC."""
        return {
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "packets_sent": self.packets_sent,
            "packets_received": self.packets_received,
            **self.bridge.statistics(),
        }

    def stop(self) -> None:
        """Cancel the timer and free the memory of QUIC; the connection has ended."""
        self.bridge.release()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._flush_due = False
        self.endpoint.flushes_due -= 1
        bridge = self.bridge
        now = monotonic()
        if self._timer_expired:
            self._timer_expired = False
            bridge.handle_timer(now)
        self.deliver_events()
        packets = bridge.flush(now)
        if packets:
            self.packets_sent += len(packets)
            for data, _ in packets:
                self.bytes_sent += len(data)
            self.endpoint.send(packets)
        if self.owner is not None:
            self.owner.handle_flushed(self.endpoint.flushes_due)
        if bridge.new_ids or bridge.retired_ids:
            self.endpoint.reroute(self)
        if bridge.ended:
            self.endpoint.forget(self)
            return
        if bridge.has_more:
            self.schedule_flush()
            return
        self._rearm(now)
        if bridge.paced_until and not self._is_pacing:
            self._is_pacing = True
            self._pace()

    def _pace(self) -> None:
        """Poll until QUIC's pacer allows more: timers of the loop are too coarse for its delays."""
        bridge = self.bridge
        now = monotonic()
        if now >= bridge.paced_until or bridge.paced_until - now > TIMER_GRAIN:
            self._is_pacing = False
            if bridge.paced_until and now >= bridge.paced_until and not bridge.ended:
                bridge.paced_until = 0.0
                bridge.request_poll()
                self.schedule_flush()
        else:
            self.loop.call_soon(self._pace)

    def _rearm(self, now: float) -> None:
        if self._timer_at <= now + TIMER_GRAIN:
            return  # the timer is about to expire anyway
        at = self.bridge.next_timer()
        if at is None or at == self._timer_at:
            return
        if self._timer is not None:
            if at > self._timer_at:
                return  # one early expiry is cheaper than a new timer for each turn
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(TIMER_GRAIN, at - now), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        if self._flush_due:
            self._timer_expired = True  # the flush that is due handles it
            return
        now = monotonic()
        due = self.bridge.next_timer()
        if due is None or due > now:
            self._rearm(now)  # the timer was postponed
            return
        self.bridge.handle_timer(now)
        self._flush_due = True
        self.endpoint.flushes_due += 1
        self._turn()
