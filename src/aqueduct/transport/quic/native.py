"""qh3's connection with our limits and transport parameters, and without its idle timer."""

from __future__ import annotations

from typing import Any

from qh3._hazmat import QuicConnectionCore
from qh3.quic.connection import QuicConnection
from qh3.quic.tls_bridge import QuicTlsBridge

from aqueduct.transport.quic.tls import (
    BIDIRECTIONAL_STREAMS,
    MAX_DATAGRAM_FRAME,
    EngineConfiguration,
    TlsBridge,
)

_ACK_DELAY_EXPONENT = 3
LONGEST_ID = 20
"""Bytes of the longest connection id."""
_PACKET_OVERHEAD = 1 + 2 + 16
"""Bytes of a packet with a short header, besides its id and frames: flags, number, tag."""
_LENGTH_SIZE = 2
_MAX_SHORT_LENGTH = 16_383
"""A datagram's frame has its length in two bytes up to here, and in four beyond."""
_NO_IDLE_TIMEOUT = 86_400.0 * 365
"""Seconds of qh3's own idle timer, which never runs out: `Liveness` notices a silent peer."""


class NativeConnection(QuicConnection):
    """A QUIC connection that allows as many streams as its settings say."""

    _configuration: EngineConfiguration
    idle_timeout: float
    """What this side states to the peer, in seconds."""
    peer_idle_timeout: float | None = None
    """What the peer has stated, in seconds."""
    reset_token: bytes | None = None
    """The token of stateless resets that a server states for its first connection id; a random one
    if None."""

    @property
    def core(self) -> QuicConnectionCore | None:
        """The native connection, once it exists."""
        return self._core

    @property
    def was_reset(self) -> bool:
        """Whether a stateless reset of the peer has ended the connection."""
        event, core = self._close_event, self._core
        return (
            event is not None
            and core is not None
            and core.state == "terminated"  # qh3 is draining when the peer has sent a close
            and (event.error_code, event.frame_type, event.reason_phrase) == (0, None, "")
        )

    def probe_timeout(self) -> float:
        """Return about how long QUIC waits for an ack before it probes (RFC 9002, 6.2.1).

        qh3 does not tell the variation of the round-trip time; this takes its initial value.
        """
        rtt = self._core.smoothed_rtt if self._core is not None else None
        parameters = self._applied_transport_parameters
        delay = None if parameters is None else parameters.max_ack_delay
        return 3 * (rtt or 0.0) + (25 if delay is None else delay) / 1_000

    def datagram_limit(self) -> int:
        """Return the bytes of a datagram that fits a packet of the current path (AQ-SEND-8).

        qh3 must never get a larger one: it would be the first in the queue for good, and no packet
        could be built. MTU discovery makes packets larger; they become smaller when packets of the
        first flight are lost, and on another path.
        """
        core, tls = self._core, self._tls
        if core is None:
            return 0
        remote = tls.remote_initial_source_connection_id if tls is not None else None
        packet: int = core.active_path[5]
        frame = packet - _PACKET_OVERHEAD - (LONGEST_ID if remote is None else len(remote))
        frame = min(frame, self._remote_max_datagram_frame_size or 0)
        size = frame - 1 - _LENGTH_SIZE
        return size if size <= _MAX_SHORT_LENGTH else max(_MAX_SHORT_LENGTH, size - 2)

    def statistics(self) -> dict[str, float]:
        """Return counters of the native connection."""
        core = self._core
        return {
            "rtt": (core.smoothed_rtt or 0.0) if core is not None else 0.0,
            "lost_packets": core.loss_total if core is not None else 0,
            "congestion_window": core.congestion_window if core is not None else 0,
            "bytes_in_flight": core.bytes_in_flight if core is not None else 0,
        }

    def _drain_tls(self) -> None:
        """Hand what TLS has to qh3, but not the peer's idle timeout (`Liveness`)."""
        parameters = self._tls.remote_transport_parameters if self._tls is not None else None
        if parameters is not None and parameters.max_idle_timeout:
            self.peer_idle_timeout = parameters.max_idle_timeout / 1_000
            parameters.max_idle_timeout = None
        super()._drain_tls()

    def _create_core(self, remote_addr: Any, initial_dcid: bytes, now: float) -> None:
        configuration = self._configuration
        assert self._version is not None
        remembered = self._remembered_transport_parameters()

        def early(name: str) -> int:
            """Return a limit of the previous connection, for early data (AQ-EARLY-4)."""
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
            idle_timeout=_NO_IDLE_TIMEOUT,
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
            local_max_streams_bidi=BIDIRECTIONAL_STREAMS,
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
            stateless_reset_token=self.reset_token,
            session_ticket_fetcher=self._session_ticket_fetcher,
            session_ticket_handler=self._session_ticket_handler,
            version_change_handler=self._set_version,
        )
        self._tls = bridge
        return bridge
