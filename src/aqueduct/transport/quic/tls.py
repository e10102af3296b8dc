"""TLS below QUIC: transport parameters that qh3 fixes, and checks that it leaves out."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from qh3._hazmat import Buffer, Certificate
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.packet import pull_quic_transport_parameters, push_quic_transport_parameters
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError, QuicTlsCryptoData
from qh3.tls import Epoch

from aqueduct.errors import TLSError
from aqueduct.security import check_path, describe_fault

MAX_DATAGRAM_FRAME = 65_535
BIDIRECTIONAL_STREAMS = 1
"""Bidirectional streams that a peer may open: one, so that the server can tell a peer that opens it
what it did wrong (AQ-STREAM-6)."""
BAD_CERTIFICATE = 0x100 + 42
"""QUIC's error code for the TLS alert bad_certificate."""
NO_APPLICATION_PROTOCOL = 0x100 + 120
"""QUIC's error code for the TLS alert no_application_protocol."""


@dataclass
class EngineConfiguration(QuicConfiguration):
    """qh3's configuration, and settings that it has no field for."""

    max_streams: int = 131_072
    """Most concurrent incoming unidirectional streams."""
    max_ack_delay: float = 0.025
    """Most seconds that this side delays an ack, as stated to the peer."""


class TlsBridge(QuicTlsBridge):
    """qh3's TLS with our limits in the transport parameters, and a check of the path length."""

    configuration: EngineConfiguration
    hello: QuicTlsCryptoData | None = None
    """The ClientHello, for a retransmission."""
    _fault: QuicTlsBridgeError | None = None
    """Why the handshake failed."""

    def next_crypto_data(self) -> QuicTlsCryptoData | None:
        """Return what TLS has to send."""
        data = super().next_crypto_data()
        if self.hello is None:
            self.hello = data
        return data

    def receive_crypto(
        self, epoch: Epoch, data: bytes, offset: int | None = None, *, version: int | None = None
    ) -> None:
        """Handle the peer's TLS messages; check its certificate path at the end of a handshake."""
        if self._fault is not None:
            # What follows a fatal message is not its cause.
            raise QuicTlsBridgeError(self._fault.error_code, self._fault.reason_phrase)
        before = self.handshake_complete
        try:
            super().receive_crypto(epoch, data, offset, version=version)
        except QuicTlsBridgeError as error:
            self._fault = error
            if error.error_code == BAD_CERTIFICATE and self.peer_certificate is not None:
                error.reason_phrase = self._why_rejected(self.peer_certificate, error)
            raise
        if self.handshake_complete and not before and self.peer_certificate is not None:
            self._check_path(self.peer_certificate)

    def _why_rejected(self, certificate: Certificate, error: QuicTlsBridgeError) -> str:
        """Return what is wrong with the server's certificate; qh3 names it only at times."""
        der = bytes(certificate.public_bytes())
        pinned = self.configuration.assert_fingerprint
        if pinned is not None:
            found = hashlib.sha256(der).hexdigest()
            return f"the certificate has the fingerprint {found}, and {pinned} is pinned"
        return describe_fault(der, self.configuration.server_name or "") or error.reason_phrase

    def _on_alpn(self, alpn_protocol: str | None) -> None:
        """Reject a server that chose no protocol, as RFC 9001 (8.1) has a client do."""
        if alpn_protocol not in (self.configuration.alpn_protocols or ()):
            raise QuicTlsBridgeError(NO_APPLICATION_PROTOCOL, "no application protocol was chosen")
        super()._on_alpn(alpn_protocol)

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
        """Return qh3's transport parameters with our limits in them."""
        parameters = pull_quic_transport_parameters(
            Buffer(data=super().serialize_transport_parameters())
        )
        parameters.initial_max_streams_bidi = BIDIRECTIONAL_STREAMS
        parameters.initial_max_streams_uni = self.configuration.max_streams
        parameters.max_datagram_frame_size = MAX_DATAGRAM_FRAME
        parameters.max_udp_payload_size = 65_527
        parameters.max_ack_delay = round(1_000 * self.configuration.max_ack_delay)
        buffer = Buffer(capacity=1_024)
        push_quic_transport_parameters(buffer, parameters)
        return bytes(buffer.data)
