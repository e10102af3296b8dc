"""The configuration of QUIC connections: certificates, trust and packet sizes."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import replace

from qh3.quic.packet import QuicProtocolVersion

from aqueduct.errors import TLSError
from aqueduct.security import ServerTLS, Trust, check, system_authorities
from aqueduct.transport.address import Address
from aqueduct.transport.quic.endpoint import ID_LENGTH
from aqueduct.transport.quic.engine import ALPN
from aqueduct.transport.quic.tls import EngineConfiguration
from aqueduct.transport.settings import QuicSettings

SAFE_PACKET = 1_452
"""Fits every Ethernet path with IPv4 and IPv6, before path MTU discovery finds more."""
LOOPBACK_PACKET = 16_000
"""UDP payload on loopback, where the cost of a packet hardly depends on its size."""
LOOPBACK_ACK_DELAY = 0.25
"""Seconds that the peer may take for an ack on loopback. Packets are not lost there, but a busy
process answers late, and a needless retransmission costs more than the wait: it also triggers
faults of qh3."""


def server_settings(tls: ServerTLS, options: QuicSettings) -> EngineConfiguration:
    """Return the QUIC settings of a server, without those that depend on the client."""
    check(tls)
    settings = EngineConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        connection_id_length=ID_LENGTH,
        idle_timeout=options.idle_timeout,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )
    try:
        settings.load_cert_chain(tls.certificate, tls.key)
    except ValueError as error:
        raise TLSError(f"the server's certificate or key cannot be used: {error}") from None
    return settings


def client_settings(
    trust: Trust, options: QuicSettings, server_name: str, address: Address
) -> EngineConfiguration:
    """Return the QUIC settings of a client for one server."""
    settings = EngineConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        connection_id_length=ID_LENGTH,
        idle_timeout=options.idle_timeout,
        supported_versions=[QuicProtocolVersion.VERSION_1],
        server_name=server_name,
    )
    if trust.pinned is not None:
        # qh3 compares the fingerprint, which identifies the server better than an authority.
        settings.assert_fingerprint = trust.pinned
        settings.verify_mode = ssl.CERT_NONE
    elif trust.authorities is not None:
        settings.cadata = trust.authorities
    else:
        settings.cafile = system_authorities()
    return settings_for_path(settings, options, address)


def settings_for_path(
    settings: EngineConfiguration, options: QuicSettings, address: Address
) -> EngineConfiguration:
    """Return the settings with the packet size and the ack delay for a path."""
    size = options.max_packet
    loopback = ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
    if size is None:
        size = LOOPBACK_PACKET if loopback else SAFE_PACKET
    delay = LOOPBACK_ACK_DELAY if loopback else settings.max_ack_delay
    return replace(
        settings,
        max_datagram_size=size,
        probe_datagram_size=not loopback,
        max_ack_delay=delay,
    )
