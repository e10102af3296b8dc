"""qh3's QUIC connection, with the limits it fixes raised to those a connection of ours needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qh3._hazmat import Buffer, QuicConnectionCore
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError
from qh3.quic.events import ConnectionTerminated
from qh3.quic.packet import (
    QuicErrorCode,
    pull_quic_transport_parameters,
    push_quic_transport_parameters,
)
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsCryptoData
from qh3.tls import Epoch, SessionTicket

from aqueduct.quic.tickets import ServerTickets

# qh3 logs what its peers do wrong. Who configures logging sees it, and nobody else.
logging.getLogger("quic").addHandler(logging.NullHandler())

ALPN = "aqueduct"
MAX_DATAGRAM_FRAME = 65_535
PACING_GRAIN = 0.001
"""Seconds between two looks at the pacer."""
LEAST_PATIENCE, MOST_PATIENCE = 0.002, 0.05
"""Seconds that events may wait for frames to leave, otherwise as long as a round trip takes."""
MAX_PACKETS = 65_536
"""Packets QUIC may want to send at one instant, which is far more than a congestion window."""

_BIDIRECTIONAL_STREAMS = 1
"""One, so that a peer that opens one is told what it did wrong (AQ-STREAM-6)."""
_ACK_DELAY_EXPONENT = 3

KNOCK_AFTER = 0.3
"""How long a client waits in silence for the rest of the server's handshake, at first; seconds."""


@dataclass
class Settings(QuicConfiguration):
    """qh3's configuration, and what it has no field for."""

    max_streams: int = 262_144
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
        self._knocks = 0
        self._knock_at = 0.0
        self._asked_at = 0.0
        self._now = 0.0
        self._may_reserve = False
        """Whether frames may be reserved for a packet that has yet to be made."""
        self._drain_at: float | None = None
        """When to take events at the latest, if they wait for that."""
        self._ready_packets: list[tuple[bytes, Any]] = []
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

    def is_window_full(self) -> bool:
        """Whether the congestion window has no room for a packet of the size the path takes now."""
        core = self._core
        if core is None:
            return False
        path = core.active_path
        return core.congestion_window - core.bytes_in_flight < path[5]

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
        if self._drain_at is not None:
            return min(timer[1], self._drain_at)
        if timer[0] == "pacing":
            # It is set even when nothing is held back, and then looked at in vain.
            return max(timer[1], self._asked_at + PACING_GRAIN)
        if self._handshake_complete or not self._is_waiting():
            return timer[1]
        return min(timer[1], self._knock_at)

    def handle_timer(self, now: float) -> None:
        """Time has passed.

        A client whose hello was acked, and who has nothing else to send, waits for the server to
        go on. But the server may have sent all that it may to an address that is not proven: then
        it waits for the client. RFC 9002 has the client speak (6.2.2.1); qh3 does not.
        """
        self._now = now
        super().handle_timer(now)
        if self._knock_at <= now and self._is_waiting():
            self._knocks += 1
            self._knock_at = now + KNOCK_AFTER * 2**self._knocks
            assert isinstance(self._tls, TlsBridge)
            hello = self._tls.hello
            if hello is not None and self._core is not None:
                self._core.send_crypto(int(Epoch.INITIAL), hello.offset, hello.data)

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
        try:
            self._core.receive_gro_buffer(data, segment, address, now)
        except RuntimeError as error:
            raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, None, str(error)) from None
        self._drain_core()

    def _drain_core(self) -> None:
        """Take events from the native connection, unless that could break it.

        A packet that was full, or a full congestion window, can leave frames that are reserved for
        the next packet. If the peer acks their stream meanwhile, as it does when a packet was only
        late and not lost, the event that says so also forgets the stream, and the native
        connection stumbles over the reservation. So those frames leave first.
        """
        if self._may_reserve:
            self._ready_packets += self._poll(self._now, 0)
            if self._may_reserve:
                if self._drain_at is None:
                    self._drain_at = self._now + self._patience()
                if self._now < self._drain_at:
                    return
        self._drain_at = None
        super()._drain_core()

    def _patience(self) -> float:
        rtt = self._core.smoothed_rtt if self._core is not None else None
        return min(max(rtt or 0.0, LEAST_PATIENCE), MOST_PATIENCE)

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
        return packets + self._poll(now, short)

    def _poll(self, now: float, short: int) -> list[tuple[bytes, Any]]:
        packets: list[tuple[bytes, Any]] = []
        while self._core is not None:
            try:
                transmit = self._core.poll_transmit(now)
            except RuntimeError as error:
                if "capacity exhausted" in str(error):
                    break
                if "missing OneRtt packet key" in str(error):
                    if self._probes == self._core.pto_total:
                        break
                    self._probes = self._core.pto_total
                    continue
                raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, None, str(error)) from None
            if transmit is None:
                break
            packets.append((transmit[0], transmit[1]))
            if len(packets) > MAX_PACKETS:
                raise QuicConnectionError(
                    QuicErrorCode.INTERNAL_ERROR, None, "it sends without end"
                )
            if len(transmit[0]) < short:
                break
        self._may_reserve = self._handshake_complete and self.has_lost and self.is_window_full()
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
