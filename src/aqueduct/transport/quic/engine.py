"""qh3's QUIC connection with higher limits, and with workarounds for faults of qh3.

docs/quic.md lists what qh3 does and what this module does about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from secrets import randbelow
from typing import Any

from qh3._hazmat import QuicConnectionCore
from qh3.quic.connection import QuicConnectionError
from qh3.quic.events import ConnectionTerminated
from qh3.quic.packet import QuicErrorCode
from qh3.tls import Epoch, SessionTicket

from aqueduct.transport.address import Address
from aqueduct.transport.quic.black_hole import BlackHole
from aqueduct.transport.quic.native import NativeConnection
from aqueduct.transport.quic.peer_address import (
    CHOICE,
    PING_SIZE,
    AddressValidation,
    PeerAddresses,
)
from aqueduct.transport.quic.tickets import ServerTickets
from aqueduct.transport.quic.tls import EngineConfiguration, TlsBridge

# qh3 logs what its peers do wrong, which is raised or counted here: show that only to programs that
# set the level of its logger.
if logging.getLogger("quic").level == logging.NOTSET:
    logging.getLogger("quic").setLevel(logging.CRITICAL)

ALPN = "aqueduct"
PACING_GRAIN = 0.001
"""Seconds between two polls for the pacer."""
SMALL_WINDOW = 8
"""Packets in a congestion window too small to keep one free."""
MAX_PACKETS = 65_536
"""Packets QUIC may want to send at one instant, which is far more than a congestion window."""

_NEW_PACKETS = 2
"""Index in qh3's report of the number of packets that were authentic and new."""
_NEVER = float("inf")
_NO_ROOM = "capacity exhausted"
"""The error of qh3 when the amplification limit of an unvalidated address is reached."""
_SENDING = ("first_flight", "connected")
"""States of the native connection in which it builds packets from reserved frames."""

MAX_WITHHELD = 16 * 1024 * 1024
MAX_EARLY_WITHHELD = 64 * 1024
"""Bytes received while no event is taken and the peer acknowledges nothing, after and before
acceptance. Before acceptance no honest client fills the congestion window, and five bytes can make
QUIC hold a kilobyte. After it, an honest peer may send a whole window meanwhile, and the number of
streams bounds what QUIC holds."""

PROBE_AFTER = 0.1
"""Seconds between the first two probes of a client that waits for the handshake, doubled with each
probe. Each probe of qh3 retransmits all unacknowledged frames, including those of the previous
probe, so that the amount doubles; and initially it probes every few milliseconds."""

LATEST_ACK = 0.025
"""Seconds for which an ack waits behind reserved frames before the engine makes qh3 probe."""

RETRANSMIT_HELLO_AFTER = 0.3
"""Seconds of silence after which a client retransmits its ClientHello, doubled with each time."""


class Engine(NativeConnection):
    """A QUIC connection that allows as many streams as its settings say.

    A server with ``tickets`` accepts early data of clients with a ticket. A client hands each
    ticket it gets to ``on_ticket``, and uses the one in its settings.
    """

    def __init__(
        self,
        *,
        configuration: EngineConfiguration,
        original_destination_connection_id: bytes | None = None,
        retry_source_connection_id: bytes | None = None,
        tickets: ServerTickets | None = None,
        on_ticket: Callable[[SessionTicket], None] | None = None,
    ) -> None:
        self._tickets = tickets
        self._issued: list[SessionTicket] = []
        self.heard_at = 0.0
        """When the last authenticated packet came, from the end of the handshake on."""
        self.black_hole = BlackHole()
        self.has_lost = False
        """Whether packets were lost, or seemed to be, on this connection."""
        self._was_early = False
        """Whether the server took early data, once TLS was released."""
        self._probes = 0
        self._probe_at = 0.0
        self._probe_pause = PROBE_AFTER
        self._hellos = 0
        self._hello_at = 0.0
        self._polled_at = 0.0
        self._now = 0.0
        self._may_reserve = False
        """Whether frames may be reserved for a packet that has yet to be made."""
        self._withholds_events = False
        """Whether events wait for that."""
        self.withheld = 0
        """Bytes received since events were taken or the peer acknowledged something, if events wait
        (`_drain_core`)."""
        self._withheld_at = 0
        """Bytes that were in flight then."""
        self.max_withheld = MAX_EARLY_WITHHELD
        self._ready_packets: list[tuple[bytes, Any]] = []
        self._ack_due_since = _NEVER
        """Arrival time of a packet whose ack may wait behind reserved frames."""
        self._addresses: PeerAddresses | None = None
        """The peer's addresses, once the handshake is done."""
        self._validation: AddressValidation | None = None
        self._pings = 0
        self._ready_pings: list[tuple[bytes, Any]] = []
        """Packets for the address that is being validated."""
        self.idle_timeout = configuration.idle_timeout
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
            session_ticket_fetcher=tickets.take if tickets is not None else None,
            session_ticket_handler=self._issued.append if tickets is not None else on_ticket,
        )

    @property
    def peer_address(self) -> Address:
        """The address that packets go to."""
        if self._addresses is not None:
            return self._addresses.at
        core = self._require_core()
        host, port = core.active_path[2][:2]
        return host, port

    def release(self) -> None:
        """Free the native connection and TLS after the end; the application may keep this object.

        TLS refers to itself, so that only the garbage collector would free it: a tenth of a
        millisecond each, and all clients wait while it frees a thousand at once.
        """
        context = self.tls
        if context is not None:
            self._was_early = context.early_data_accepted
            context.alpn_cb = context.get_session_ticket_cb = context.new_session_ticket_cb = None
            context.update_traffic_key_cb = None  # type: ignore[assignment]
        self._core = self._tls = None
        self._events.clear()
        self._ready_packets.clear()
        self._ready_pings.clear()

    def is_window_full(self) -> bool:
        """Return whether the congestion window has no room for a packet of the path's size."""
        core = self._core
        if core is None:
            return False
        path = core.active_path
        return core.congestion_window - core.bytes_in_flight < path[5]

    def paced_until(self, now: float, is_many: bool) -> float:
        """Return when QUIC's pacer allows the data that it holds back; 0 if it holds back nothing.

        ``is_many`` tells whether QUIC may have more than fits a packet.
        """
        core = self._require_core()
        timer = core.get_timer()
        if timer is not None and timer[1] > now:
            if timer[0] == "pacing":
                return timer[1]
            # QUIC reports one timer only: that of an ack may hide the pacer's.
            if is_many and timer[0] == "ack_application" and core.get_send_buffer_size():
                return now + PACING_GRAIN
        return 0.0

    def spare_room(self) -> int:
        """Return the bytes of the congestion window to keep free: one packet, after a loss.

        With room for a packet QUIC shows that nothing is reserved (`_drain_core`). A minimal window
        cannot spare a packet; there events wait for the next ack instead.
        """
        core = self._core
        if core is None or not self.has_lost:
            return 0
        size: int = core.active_path[5]
        return size if core.congestion_window > SMALL_WINDOW * size else 0

    def unacknowledged(self) -> int:
        """Return how many packets, and frames in them, QUIC keeps until they are acknowledged.

        That includes ack-only packets and answers to PATH_CHALLENGE, which ignore the congestion
        window. Counting takes linear time.
        """
        core = self._core
        if core is None:
            return 0
        return sum(1 + frames for _, _, frames in core.outstanding_application_packets)

    @property
    def has_news(self) -> bool:
        """Whether the native connection has pending events."""
        return self._core is not None and self._core.has_events

    @property
    def bytes_in_flight(self) -> int:
        """Bytes in flight that count against the congestion window."""
        return 0 if self._core is None else self._core.bytes_in_flight

    @property
    def closed_with(self) -> ConnectionTerminated | None:
        """Why the connection ended, from the moment it did."""
        return self._close_event

    @property
    def peer_takes_datagrams(self) -> bool:
        """Whether the peer offers RFC 9221 datagrams, which we require."""
        return bool(self._remote_max_datagram_frame_size)

    @property
    def is_early(self) -> bool:
        """Whether there are keys for early data: the client's to send it, the server's to read."""
        return self._early_data_attempted

    @property
    def early_data_accepted(self) -> bool:
        """Whether the server accepted early data; a client learns it with the handshake."""
        return self._was_early if self.tls is None else self.tls.early_data_accepted

    def keep_tickets(self) -> None:
        """Store the tickets of a client that has completed the handshake."""
        if self._tickets is not None:
            for ticket in self._issued:
                self._tickets.add(ticket)
            self._issued.clear()

    def connect(self, addr: Any, now: float) -> None:
        """Begin the handshake."""
        self._hello_at = now + RETRANSMIT_HELLO_AFTER
        super().connect(addr, now)

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        """Handle one packet."""
        if not self._handshake_complete:
            self._hello_at = now + RETRANSMIT_HELLO_AFTER * 2**self._hellos
        super().receive_datagram(data, addr, now)

    def get_timer(self) -> float | None:
        """Return when `handle_timer` is due."""
        if self._core is None or (timer := self._core.get_timer()) is None:
            return None
        at = timer[1]
        if timer[0] == "loss_detection" and not self._handshake_confirmed:
            at = max(at, self._probe_at)
        if self._ack_due_since < at:
            at = min(at, self._ack_due_since + LATEST_ACK)
        if self._validation is not None:
            return min(at, self._validation.retry_at)
        if timer[0] == "pacing":
            # qh3 sets this timer even when it holds back nothing.
            return max(timer[1], self._polled_at + PACING_GRAIN)
        if self._handshake_complete or not self._is_waiting():
            return at
        return min(at, self._hello_at)

    def handle_timer(self, now: float) -> None:
        """Handle the timers that are due.

        A client whose hello was acked, and that has nothing else to send, waits for the server. But
        a server that has reached the amplification limit waits for the client. RFC 9002 has the
        client send a packet (6.2.2.1); qh3 does not, so the hello is retransmitted.
        """
        self._now = now
        if now >= self._probe_at or self._handshake_confirmed or not self._is_about_to_probe():
            self._handle_timer(now)
        if self._ack_due_since + LATEST_ACK <= now:
            self._ack_with_probe(now)
        if self._validation is not None and self._validation.retry_at <= now:
            self._validation.retry(now)
            self._send_pings(self._validation, now)
        if self._hello_at <= now and self._is_waiting():
            self._hellos += 1
            self._hello_at = now + RETRANSMIT_HELLO_AFTER * 2**self._hellos
            assert isinstance(self._tls, TlsBridge)
            hello = self._tls.hello
            if hello is not None and self._core is not None:
                self._core.send_crypto(int(Epoch.INITIAL), hello.offset, hello.data)

    def _is_about_to_probe(self) -> bool:
        timer = self._require_core().get_timer()
        return timer is not None and timer[0] == "loss_detection"

    def _handle_timer(self, now: float) -> None:
        core = self._require_core()
        probes = core.pto_total
        super().handle_timer(now)
        if self._is_client and not self._handshake_confirmed and core.pto_total != probes:
            self._probe_at = now + self._probe_pause
            self._probe_pause *= 2

    def _ack_with_probe(self, now: float) -> None:
        """Send acks that wait behind reserved frames while the congestion window is full.

        qh3 then builds no packet until it probes, and puts acks behind all reserved frames. With
        data in both directions each side waits for the acks of the other, for minutes: each probe
        doubles the time to the next, and the measured round-trip time grows. The engine therefore
        makes qh3 probe whenever the peer sends and an ack is due.
        """
        core = self._require_core()
        self._ack_due_since = _NEVER
        core.discard_keys(int(Epoch.INITIAL))  # gone already; this resets the probe count
        timer = core.get_timer()
        if timer is not None and timer[0] == "loss_detection" and now < timer[1]:
            core.handle_timer(timer[1])
            self._ready_packets += self._poll(now, 0)

    def _drain_tls(self) -> None:
        before = self._handshake_complete
        super()._drain_tls()
        if self._is_client and self._handshake_complete and not before:
            core = self._require_core()
            if core.pto_total:
                self._make_room(core)

    def _make_room(self, core: QuicConnectionCore) -> None:
        """Free the congestion window of packets of a handshake that is complete, after losses.

        Otherwise there may be no room for the packet that completes the handshake at the server,
        whose answer would make room.
        """
        core.discard_keys(int(Epoch.INITIAL))
        room = core.congestion_window - core.bytes_in_flight
        if self._early_data_attempted and room < self._configuration.max_datagram_size:
            # qh3 retransmits early data, and applies the server's limits again.
            core.reject_zero_rtt()
            self._applied_transport_parameters = None
            super()._drain_tls()

    def _is_waiting(self) -> bool:
        if not self._is_client or self._handshake_complete or self._core is None:
            return False
        timer = self._core.get_timer()
        return timer is not None and timer[0] == "idle"

    def receive_joined(self, data: bytes, segment: int, address: Any, now: float) -> None:
        """Handle packets of one size, the last perhaps shorter.

        After the handshake this bypasses qh3's Python layers, which take time.
        """
        self._now = now
        if self._core is None or not self._handshake_complete:
            if len(data) <= segment:
                self.receive_datagram(data, address, now)
            else:
                self.receive_gro_buffer(data, segment, address, now)
            return
        addresses = self._addresses
        if addresses is None:
            addresses = self._addresses = PeerAddresses(self._core.active_path[2][:2])
        try:
            is_known = address == addresses.at and addresses.checking is None
            name = addresses.name if is_known else addresses.name_for(address, now)
            if self.has_lost:
                self.black_hole.begin(self._core, now)
            report = self._core.receive_gro_buffer(data, segment, name, now)
            if self.has_lost:
                self.black_hole.end(self._core, now)
        except RuntimeError as error:
            raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, None, str(error)) from None
        if report[_NEW_PACKETS]:
            self.heard_at = now
        self.withheld += len(data)
        self._drain_core()
        if self._withholds_events and now < self._ack_due_since and report[_NEW_PACKETS]:
            self._ack_due_since = now
        if not is_known and report[_NEW_PACKETS] and not addresses.record_packet(address, now):
            self._validate(address, len(data), now)
        if addresses.checking is not None and self._core.active_path[2][:2] == addresses.checking:
            addresses.record_response(now)
            self._core.send_ping(0)  # qh3 has lost the timer for packets in flight

    def _validate(self, address: Address, size: int, now: float) -> None:
        """Start or continue to validate the address that packets came from."""
        validation = self._validation
        if validation is None or validation.address != address:
            assert self._addresses is not None
            validation = self._validation = AddressValidation(address, self._addresses.at, now)
        validation.received(size, now)
        self._send_pings(validation, now)

    def _send_pings(self, validation: AddressValidation, now: float) -> None:
        """Send as many pings as allowed to an address that is being validated."""
        self._ready_packets += self._poll(now, 0)
        while validation.may_send():
            pings = []
            for _ in range(CHOICE):
                ping = self._make_ping(now)
                if ping is None:
                    return  # discard the incomplete group of pings
                pings.append(ping)
            chosen = randbelow(CHOICE)
            for number, (uid, data) in enumerate(pings):
                if number == chosen:
                    validation.sent(uid, len(data))
                    self._ready_pings.append((data, validation.address))
                else:
                    validation.dropped(uid)

    def _make_ping(self, now: float) -> tuple[int, bytes] | None:
        """Build a packet with only a ping; return None if QUIC has other frames to send first."""
        core = self._require_core()
        self._pings += 1
        was_full = self.is_window_full()
        try:
            core.send_ping(self._pings)
            transmit = core.poll_transmit(now)
        except RuntimeError as error:
            if _NO_ROOM in str(error):
                return None  # the amplification limit of an address that QUIC validates; temporary
            raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, None, str(error)) from None
        if transmit is None:
            return None
        if was_full:
            self._may_reserve = False  # otherwise QUIC would have built nothing
        if len(transmit[0]) > PING_SIZE:  # it carries frames that must arrive
            self._ready_packets.append((transmit[0], transmit[1]))
            return None
        return self._pings, transmit[0]

    def reset_if_open(self, stream: int, code: int) -> bool:
        """Reset a stream, also one that is finished (AQ-CANCEL-1).

        Return False if the peer has acknowledged all of it: qh3 has forgotten it then.
        """
        try:
            self.reset_stream(stream, code)
        except ValueError:
            return False
        return True

    def handle_pong(self, uid: int, now: float) -> bool:
        """Handle the ack of a ping; return False if the ping was never sent."""
        validation = self._validation
        if validation is None or (verdict := validation.acked(uid)) is None:
            return True
        self._validation = None
        if verdict:
            assert self._addresses is not None
            self._addresses.validated(validation.address, now)
        return verdict

    def _drain_core(self) -> None:
        """Take events from the native connection, unless that could break it.

        ``poll_transmit`` reserves frames of up to 16 streams, or of all when it probes, and those
        that do not fit the packet stay reserved while the congestion window is full. A probe
        retransmits frames whose first packet was not lost. When that packet is acked, the stream is
        finished, or its reset complete, and the event for that deletes the stream: building the
        next packet fails on the reserved frame ("reserved stream is missing"), permanently. So no
        event is taken until all reserved frames are sent. QUIC processes acks and timers meanwhile,
        so the window opens, unless a hostile peer acknowledges nothing to make QUIC hold events
        without limit. Past ``max_withheld`` events are therefore taken anyway.
        """
        self._withholds_events = False
        core = self._core
        if not self.has_lost and core is not None and (core.loss_total or core.pto_total):
            self.has_lost = True
        if self._may_reserve and self._handshake_complete and self.has_lost:
            if self.bytes_in_flight < self._withheld_at:
                self.withheld = 0  # the peer acknowledges
            self._ready_packets += self._poll(self._now, 0)
            self._withheld_at = self.bytes_in_flight
            may_wait = self._is_sending() and self.withheld <= self.max_withheld
            if may_wait and self._may_reserve:
                self._withholds_events = True
                return
        self.withheld = 0
        super()._drain_core()

    def _is_checking(self, now: float) -> bool:
        """Return whether QUIC may be silent because it waits for a PATH_RESPONSE."""
        return self._addresses is not None and self._addresses.is_checking(now)

    def _is_sending(self) -> bool:
        return self._core is not None and self._core.state in _SENDING

    def datagrams_to_send(
        self, now: float, *, until_short: bool = False
    ) -> list[tuple[bytes, Any]]:
        """Return packets to send; ``until_short`` stops after one that is not half full.

        Such a packet has all that qh3 had to send, unless that was frames of more than 16 streams
        or a datagram that did not fit. qh3's pacer charges the price of a full packet for each
        poll, even for one that returns nothing, so that one poll too many can delay what follows.

        While the peer's address is not validated, qh3 may find no room for a frame and raise. This
        clears on the peer's next packet; the packets built so far are returned.

        A client that has waited too long for the server's first answer probes with keys that it
        does not have. The probe leaves as early data, if there is any, or waits for the keys.
        """
        self._polled_at = now
        short = self._configuration.max_datagram_size // 2 if until_short else 0
        packets, self._ready_packets = self._ready_packets, []
        packets += self._poll(now, short)
        addresses = self._addresses
        if addresses is not None and (
            addresses.at != addresses.name or addresses.checking is not None
        ):
            packets = [(data, addresses.destination(name[:2])) for data, name in packets]
        if self._validation is not None:
            there, may_copy = self._validation.address, self._validation.may_copy
            packets += [(data, there) for data, _ in packets if may_copy(len(data), now)]
        if self._ready_pings:
            packets += self._ready_pings
            self._ready_pings = []
        return packets

    def _poll(self, now: float, short: int) -> list[tuple[bytes, Any]]:
        packets: list[tuple[bytes, Any]] = []
        could_reserve, self._may_reserve = self._may_reserve, True
        while self._core is not None:
            try:
                transmit = self._core.poll_transmit(now)
            except RuntimeError as error:
                if _NO_ROOM in str(error):
                    break
                if "missing OneRtt packet key" in str(error):
                    if self._probes == self._core.pto_total:
                        break
                    self._probes = self._core.pto_total
                    continue
                raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, None, str(error)) from None
            if transmit is None:
                # With room for a packet, QUIC would have built one from reserved frames. Without
                # room, it reserves frames only for packets that it builds.
                if not packets:
                    self._may_reserve = could_reserve
                if self._may_reserve and self.has_lost and not self._is_checking(now):
                    self._may_reserve = self.is_window_full()
                break
            packets.append((transmit[0], transmit[1]))
            self._ack_due_since = _NEVER
            if len(packets) > MAX_PACKETS:
                raise QuicConnectionError(
                    QuicErrorCode.INTERNAL_ERROR, None, "it sends without end"
                )
            if len(transmit[0]) < short:
                break
        return packets
