"""The settings of connections over a network."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.settings import declare, seconds, whole

SMALLEST_INITIAL = 1_200
"""Bytes of the smallest UDP payload that may carry a client's first packet (RFC 9000, 14.1)."""
_LARGEST_PACKET = 65_527
_LONGEST = 86_400 * 365
"""The longest timer in seconds, a year: QUIC can state it in milliseconds."""


@dataclass(frozen=True)
class QuicSettings:
    """How QUIC behaves, and TCP where a setting is not about packets."""

    idle_timeout: float = field(
        default=15.0,
        metadata=seconds(
            "The connection ends if nothing arrives from the peer for this long, with time "
            "for two lost pings. The smaller value of both sides counts, and at least three "
            "probe timeouts.",
            above=0,
            most=_LONGEST,
        ),
    )
    keep_alive: float | None = field(
        default=5.0,
        metadata=seconds(
            "Silence of the peer after which it is pinged, a third of the idle timeout at most: a "
            "longer value counts as a third. A client pings a tenth sooner, so that the server "
            "need not.",
            above=0,
            most=_LONGEST,
            none="never",
        ),
    )
    max_packet: int | None = field(
        default=None,
        metadata=whole(
            "bytes",
            "UDP payload: QUIC needs 1,200 bytes, and UDP carries 65,527.",
            least=SMALLEST_INITIAL,
            most=_LARGEST_PACKET,
            none="16,000 bytes on loopback and 1,452 elsewhere",
        ),
    )
    handshake_timeout: float = field(
        default=10.0,
        metadata=seconds(
            "The server drops a client that has not completed the handshake and sent its headers "
            "this long after its first packet.",
            above=0,
            most=_LONGEST,
        ),
    )
    handshakes_before_retry: int = field(
        default=256,
        metadata=whole(
            "connections",
            "Half-open connections above which new clients must validate their address (Retry); "
            "also a client whose address has a quarter of that. Validation takes a round trip.",
        ),
    )
    max_half_open: int = field(
        default=512,
        metadata=whole(
            "connections",
            "Connections not yet accepted, about 80 KB each. Above that, the server drops the "
            "oldest one of the address with the most.",
            least=1,
        ),
    )
    max_resets: int = field(
        default=1_000,
        metadata=whole(
            "packets",
            "Packets of unknown connections that a server answers in a second, so that clients of "
            "an earlier run learn at once that it was restarted. 0 for none: for "
            "servers with one certificate, host name and address, such as copies behind a load "
            "balancer.",
        ),
    )
    max_connections: int = field(
        default=10_000,
        metadata=whole(
            "connections",
            "Connections that one server serves at once, over QUIC and TCP; above that, it drops "
            "half-open ones. One address gets nine tenths of them at most.",
            least=1,
        ),
    )


declare(QuicSettings)
