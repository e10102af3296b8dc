"""qh3's QUIC connection, with the limits it fixes raised to those a connection of ours needs."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow
from typing import Any

from qh3._hazmat import Buffer, Certificate, QuicConnectionCore
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError
from qh3.quic.events import ConnectionTerminated
from qh3.quic.packet import (
    QuicErrorCode,
    pull_quic_transport_parameters,
    push_quic_transport_parameters,
)
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError, QuicTlsCryptoData
from qh3.tls import Epoch, SessionTicket

from aqueduct.errors import TLSError
from aqueduct.security import check_path
from aqueduct.transport.address import Address
from aqueduct.transport.quic.peer_address import CHOICE, PING_SIZE, Proof, Whereabouts
from aqueduct.transport.quic.tickets import ServerTickets

# qh3 logs what its peers do wrong. Who configures logging sees it, and nobody else.
logging.getLogger("quic").addHandler(logging.NullHandler())

ALPN = "aqueduct"
MAX_DATAGRAM_FRAME = 65_535
PACING_GRAIN = 0.001
"""Seconds between two looks at the pacer."""
SMALL_WINDOW = 8
"""Packets in a congestion window too small to keep one free."""
MAX_PACKETS = 65_536
"""Packets QUIC may want to send at one instant, which is far more than a congestion window."""

_BIDIRECTIONAL_STREAMS = 1
"""One, so that a peer that opens one is told what it did wrong (AQ-STREAM-6)."""
_ACK_DELAY_EXPONENT = 3
_NEW_PACKETS = 2
"""Where qh3's report has the number of packets that were authentic and new."""
_NEVER = float("inf")
_NO_ROOM = "capacity exhausted"
"""The error of qh3 when the amplification limit of an unvalidated address is reached."""
_SENDING = ("first_flight", "connected")
"""States of the native connection in which it builds packets from reserved frames."""

BAD_CERTIFICATE = 0x100 + 42
"""QUIC's error code for the TLS alert bad_certificate."""

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

KNOCK_AFTER = 0.3
"""How long a client waits in silence for the rest of the server's handshake, at first; seconds."""


@dataclass
class Settings(QuicConfiguration):
    """qh3's configuration, and what it has no field for."""

    max_streams: int = 131_072
    """Incoming unidirectional streams at once."""
    max_ack_delay: float = 0.025
    """How long the peer has to wait for our acks before it may doubt; seconds."""


class TlsBridge(QuicTlsBridge):
    """States our stream limits and packet size in the transport parameters."""

    configuration: Settings
    hello: QuicTlsCryptoData | None = None
    """The first thing a client says, should it have to say it again."""

    def next_crypto_data(self) -> QuicTlsCryptoData | None:
        """What TLS wants to send."""
        data = super().next_crypto_data()
        if self.hello is None:
            self.hello = data
        return data

    def receive_crypto(
        self, epoch: Epoch, data: bytes, offset: int | None = None, *, version: int | None = None
    ) -> None:
        """Handle the peer's TLS messages; check its certificate path at the end of a handshake."""
        before = self.handshake_complete
        super().receive_crypto(epoch, data, offset, version=version)
        if self.handshake_complete and not before and self.peer_certificate is not None:
            self._check_path(self.peer_certificate)

    def _check_path(self, certificate: Certificate) -> None:
        configuration = self.configuration
        if configuration.verify_mode == ssl.CERT_NONE:
            return  # the certificate is pinned
        authorities = configuration.cadata
        if authorities is None and configuration.cafile is not None:
            authorities = Path(configuration.cafile).read_bytes()
        if authorities is None:
            return
        sent = [bytes(one.public_bytes()) for one in self.peer_certificate_chain]
        try:
            check_path(bytes(certificate.public_bytes()), sent, authorities)
        except (TLSError, ValueError) as error:
            raise QuicTlsBridgeError(BAD_CERTIFICATE, str(error)) from None

    def serialize_transport_parameters(self) -> bytes:
        """The parameters qh3 would state, with ours in them."""
        parameters = pull_quic_transport_parameters(
            Buffer(data=super().serialize_transport_parameters())
        )
        parameters.initial_max_streams_bidi = _BIDIRECTIONAL_STREAMS
        parameters.initial_max_streams_uni = self.configuration.max_streams
        parameters.max_datagram_frame_size = MAX_DATAGRAM_FRAME
        parameters.max_udp_payload_size = 65_527
        parameters.max_ack_delay = round(1_000 * self.configuration.max_ack_delay)
        buffer = Buffer(capacity=1_024)
        push_quic_transport_parameters(buffer, parameters)
        return bytes(buffer.data)


class Engine(QuicConnection):
    """A QUIC connection that allows as many streams as its settings say.

    A server with ``tickets`` lets clients come back with early data; a client gives each ticket it
    gets to ``on_ticket``, and uses the one in its settings.
    """

    _configuration: Settings

    def __init__(
        self,
        *,
        configuration: Settings,
        original_destination_connection_id: bytes | None = None,
        retry_source_connection_id: bytes | None = None,
        tickets: ServerTickets | None = None,
        on_ticket: Callable[[SessionTicket], None] | None = None,
    ) -> None:
        self._tickets = tickets
        self._issued: list[SessionTicket] = []
        self._probes = 0
        self._probe_at = 0.0
        self._probe_pause = PROBE_AFTER
        self._knocks = 0
        self._knock_at = 0.0
        self._asked_at = 0.0
        self._now = 0.0
        self._may_reserve = False
        """Whether frames may be reserved for a packet that has yet to be made."""
        self._is_held_back = False
        """Whether events wait for that."""
        self.withheld = 0
        """Bytes received since events were taken or the peer acknowledged something, if events wait
        (`_drain_core`)."""
        self._withheld_at = 0
        """Bytes that were in flight then."""
        self.max_withheld = MAX_EARLY_WITHHELD
        self._ready_packets: list[tuple[bytes, Any]] = []
        self._owes_since = _NEVER
        """Arrival time of a packet whose ack may wait behind reserved frames."""
        self._where: Whereabouts | None = None
        """The peer's addresses, once the handshake is done."""
        self._proof: Proof | None = None
        self._pings = 0
        self._ready_pings: list[tuple[bytes, Any]] = []
        """Packets for the address that is being validated."""
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
            session_ticket_fetcher=tickets.take if tickets is not None else None,
            session_ticket_handler=self._issued.append if tickets is not None else on_ticket,
        )

    @property
    def core(self) -> QuicConnectionCore | None:
        """The native connection, once it exists."""
        return self._core

    def release(self) -> None:
        """Free the native connection after its end; the application may keep this object."""
        self._core = None
        self._events.clear()
        self._ready_packets.clear()
        self._ready_pings.clear()

    def is_window_full(self) -> bool:
        """Whether the congestion window has no room for a packet of the size the path takes now."""
        core = self._core
        if core is None:
            return False
        path = core.active_path
        return core.congestion_window - core.bytes_in_flight < path[5]

    def spare_room(self) -> int:
        """Bytes of the congestion window to keep free of new data: one packet, after a loss.

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
        """Whether the server took early data; a client knows when the server has answered."""
        return self.tls is not None and self.tls.early_data_accepted

    def keep_tickets(self) -> None:
        """The handshake is done: the client is real, and its ticket is worth its place."""
        if self._tickets is not None:
            for ticket in self._issued:
                self._tickets.add(ticket)
            self._issued.clear()

    def connect(self, addr: Any, now: float) -> None:
        """Begin the handshake."""
        self._knock_at = now + KNOCK_AFTER
        super().connect(addr, now)

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        """A packet came."""
        if not self._handshake_complete:
            self._knock_at = now + KNOCK_AFTER * 2**self._knocks
        super().receive_datagram(data, addr, now)

    def get_timer(self) -> float | None:
        """When `handle_timer` wants to be called."""
        if self._core is None or (timer := self._core.get_timer()) is None:
            return None
        at = timer[1]
        if timer[0] == "loss_detection" and not self._handshake_confirmed:
            at = max(at, self._probe_at)
        if self._owes_since < at:
            at = min(at, self._owes_since + LATEST_ACK)
        if self._proof is not None:
            return min(at, self._proof.retry_at)
        if timer[0] == "pacing":
            # It is set even when nothing is held back, and then looked at in vain.
            return max(timer[1], self._asked_at + PACING_GRAIN)
        if self._handshake_complete or not self._is_waiting():
            return at
        return min(at, self._knock_at)

    def handle_timer(self, now: float) -> None:
        """Time has passed.

        A client whose hello was acked, and who has nothing else to send, waits for the server to
        go on. But the server may have sent all that it may to an address that is not proven: then
        it waits for the client. RFC 9002 has the client speak (6.2.2.1); qh3 does not.
        """
        self._now = now
        if now >= self._probe_at or self._handshake_confirmed or not self._is_about_to_probe():
            self._handle_timer(now)
        if self._owes_since + LATEST_ACK <= now:
            self._ack_with_probe(now)
        if self._proof is not None and self._proof.retry_at <= now:
            self._proof.retry(now)
            self._send_pings(self._proof, now)
        if self._knock_at <= now and self._is_waiting():
            self._knocks += 1
            self._knock_at = now + KNOCK_AFTER * 2**self._knocks
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
        self._owes_since = _NEVER
        core.discard_keys(int(Epoch.INITIAL))  # they are gone; this forgets how often it has probed
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
        """The handshake is done, with losses: forget what fills the congestion window since then.

        Else there may be no room for the packet that tells the server, and it is the server's
        answer to that which would make room.
        """
        core.discard_keys(int(Epoch.INITIAL))
        room = core.congestion_window - core.bytes_in_flight
        if self._early_data_attempted and room < self._configuration.max_datagram_size:
            # qh3 sends it again, and takes the server's limits anew.
            core.reject_zero_rtt()
            self._applied_transport_parameters = None
            super()._drain_tls()

    def _is_waiting(self) -> bool:
        if not self._is_client or self._handshake_complete or self._core is None:
            return False
        timer = self._core.get_timer()
        return timer is not None and timer[0] == "idle"

    def receive_joined(self, data: bytes, segment: int, address: Any, now: float) -> None:
        """Packets of one size, the last perhaps shorter.

        qh3's own way to the native connection is long, and needed only for the handshake.
        """
        self._now = now
        if self._core is None or not self._handshake_complete:
            if len(data) <= segment:
                self.receive_datagram(data, address, now)
            else:
                self.receive_gro_buffer(data, segment, address, now)
            return
        where = self._where
        if where is None:
            where = self._where = Whereabouts(self._core.active_path[2][:2])
        try:
            is_known = address == where.at and where.checking is None
            name = where.name if is_known else where.name_for(address, now)
            report = self._core.receive_gro_buffer(data, segment, name, now)
        except RuntimeError as error:
            raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, None, str(error)) from None
        self.withheld += len(data)
        self._drain_core()
        if self._is_held_back and now < self._owes_since and report[_NEW_PACKETS]:
            self._owes_since = now
        if not is_known and report[_NEW_PACKETS] and not where.heard(address, now):
            self._prove(address, len(data), now)
        if where.checking is not None and self._core.active_path[2][:2] == where.checking:
            where.checked(now)
            self._core.send_ping(0)  # qh3 has lost the timer for packets in flight

    def _prove(self, address: Address, size: int, now: float) -> None:
        """Start or continue to validate the address that packets came from."""
        proof = self._proof
        if proof is None or proof.address != address:
            assert self._where is not None
            proof = self._proof = Proof(address, self._where.at, now)
        proof.received(size, now)
        self._send_pings(proof, now)

    def _send_pings(self, proof: Proof, now: float) -> None:
        """Send as many pings as allowed to an address that is being validated."""
        self._ready_packets += self._poll(now, 0)
        while proof.may_send():
            pings = []
            for _ in range(CHOICE):
                ping = self._make_ping(now)
                if ping is None:
                    return  # discard the incomplete group of pings
                pings.append(ping)
            chosen = randbelow(CHOICE)
            for number, (uid, data) in enumerate(pings):
                if number == chosen:
                    proof.sent(uid, len(data))
                    self._ready_pings.append((data, proof.address))
                else:
                    proof.dropped(uid)

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
                return None  # an address that QUIC checks may get no more: that passes
            raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, None, str(error)) from None
        if transmit is None:
            return None
        if was_full:
            self._may_reserve = False  # otherwise QUIC would have built nothing
        if len(transmit[0]) > PING_SIZE:  # it carries frames that must arrive
            self._ready_packets.append((transmit[0], transmit[1]))
            return None
        return self._pings, transmit[0]

    def handle_pong(self, uid: int, now: float) -> bool:
        """Handle the ack of a ping; return False if the ping was never sent."""
        proof = self._proof
        if proof is None or (verdict := proof.acked(uid)) is None:
            return True
        self._proof = None
        if verdict:
            assert self._where is not None
            self._where.proven(proof.address, now)
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
        self._is_held_back = False
        if self._may_reserve and self._handshake_complete and self.has_lost:
            if self.bytes_in_flight < self._withheld_at:
                self.withheld = 0  # the peer acknowledges
            self._ready_packets += self._poll(self._now, 0)
            self._withheld_at = self.bytes_in_flight
            may_wait = self._is_sending() and self.withheld <= self.max_withheld
            if may_wait and self._may_reserve:
                self._is_held_back = True
                return
        self.withheld = 0
        super()._drain_core()

    def _is_checking(self, now: float) -> bool:
        """Return whether QUIC may be silent because it waits for a PATH_RESPONSE."""
        return self._where is not None and self._where.is_checking(now)

    def _is_sending(self) -> bool:
        return self._core is not None and self._core.state in _SENDING

    def datagrams_to_send(
        self, now: float, *, until_short: bool = False
    ) -> list[tuple[bytes, Any]]:
        """The packets to send now; ``until_short`` stops at one that is not half full.

        Such a packet holds all that qh3 had to send, unless that was frames of more than 16 streams
        or a datagram that did not fit.

        qh3's pacer takes the price of a full packet for every time it is asked, even for nothing,
        so to ask once more than needed can hold up what comes next.

        While the peer's address is not proven, qh3 may find no room for a frame and raise. That
        passes with the peer's next packet, so what was made until then is sent.

        A client that has waited too long for the server's first answer probes with keys it has
        not got. What it made for that leaves as early data, if there is such a thing here, or
        waits for the keys.
        """
        self._asked_at = now
        short = self._configuration.max_datagram_size // 2 if until_short else 0
        packets, self._ready_packets = self._ready_packets, []
        packets += self._poll(now, short)
        where = self._where
        if where is not None and (where.at != where.name or where.checking is not None):
            packets = [(data, where.destination(name[:2])) for data, name in packets]
        if self._proof is not None:
            there, may_copy = self._proof.address, self._proof.may_copy
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
            self._owes_since = _NEVER
            if len(packets) > MAX_PACKETS:
                raise QuicConnectionError(
                    QuicErrorCode.INTERNAL_ERROR, None, "it sends without end"
                )
            if len(transmit[0]) < short:
                break
        return packets

    @property
    def has_lost(self) -> bool:
        """Whether packets were lost, or seemed to be, on this connection."""
        core = self._core
        return core is not None and bool(core.loss_total or core.pto_total)

    def _create_core(self, remote_addr: Any, initial_dcid: bytes, now: float) -> None:
        configuration = self._configuration
        assert self._version is not None
        remembered = self._remembered_transport_parameters()

        def early(name: str) -> int:
            """What the peer allowed the last time, for data before the handshake (AQ-EARLY-4)."""
            return getattr(remembered, name) or 0 if remembered is not None else 0

        self._core = QuicConnectionCore(
            is_client=self._is_client,
            version=self._version,
            local_addr=("0.0.0.0", 0),
            remote_addr=remote_addr,
            source_cid=self.host_cid,
            destination_cid=initial_dcid,
            peer_address_validated=self._is_client or self._retry_source_connection_id is not None,
            active_connection_id_limit=8,
            max_datagram_size=configuration.max_datagram_size,
            probe_datagram_size=configuration.probe_datagram_size,
            idle_timeout=configuration.idle_timeout,
            ack_delay_exponent=_ACK_DELAY_EXPONENT,
            max_datagram_frame_size=MAX_DATAGRAM_FRAME,
            peer_max_datagram_frame_size=early("max_datagram_frame_size") or None,
            connection_receive_window=configuration.max_data,
            connection_send_limit=early("initial_max_data"),
            stream_receive_window=configuration.max_stream_data,
            stream_send_limit_bidi_local=early("initial_max_stream_data_bidi_local"),
            stream_send_limit_bidi_remote=early("initial_max_stream_data_bidi_remote"),
            stream_send_limit_uni=early("initial_max_stream_data_uni"),
            max_stream_reassembly=configuration.max_stream_data,
            local_max_streams_bidi=_BIDIRECTIONAL_STREAMS,
            local_max_streams_uni=configuration.max_streams,
            peer_max_streams_bidi=early("initial_max_streams_bidi"),
            peer_max_streams_uni=early("initial_max_streams_uni"),
            initial_rtt=configuration.initial_rtt,
            max_ack_delay=configuration.max_ack_delay,
            initial_time=now,
        )
        self._applied_transport_parameters = None
        self._pre_handshake_state_replayed = False

    def _create_tls(self, remote_source_cid: bytes | None) -> QuicTlsBridge:
        assert self._version is not None
        bridge = TlsBridge(
            self._configuration,
            version=self._version,
            local_initial_source_connection_id=self.host_cid,
            remote_initial_source_connection_id=remote_source_cid,
            original_destination_connection_id=self._original_destination_connection_id,
            retry_source_connection_id=self._retry_source_connection_id,
            session_ticket_fetcher=self._session_ticket_fetcher,
            session_ticket_handler=self._session_ticket_handler,
            version_change_handler=self._set_version,
        )
        self._tls = bridge
        return bridge
