"""Detects that a path no longer carries packets over 1,200 bytes (RFC 8899, 4.3)."""

from __future__ import annotations

from qh3._hazmat import QuicConnectionCore

SMALL = 1_200
"""Bytes of a packet that every path of QUIC carries."""
FEW = 5
"""Lost packets that are evidence enough."""
PROOF_LASTS = 5.0
"""Seconds after an acknowledged large packet in which nothing is examined, which takes time."""


class BlackHole:
    """The large packets of a connection that leave no trace, although the peer answers small ones.

    qh3 cannot make its packets smaller after the handshake, so such a connection can only end:
    pings keep it open, and its streams retransmit for ever.
    """

    __slots__ = ("_before", "_first_at", "_last_at", "_lost", "_lost_before", "_proven_at")

    def __init__(self) -> None:
        self._proven_at = -PROOF_LASTS
        """When a large packet was acknowledged."""
        self._lost = 0
        """Large packets that were lost since then, and when the first and the last were."""
        self._first_at = self._last_at = 0.0
        self._before: list[tuple[int, int, int]] | None = None
        """Number, size and frames of each packet that was outstanding."""
        self._lost_before = 0

    def lasts(self, seconds: float) -> bool:
        """Return whether large packets have been lost for so long, and none was acknowledged.

        Losses at about the same time are no evidence: the network may have been down.
        """
        return self._lost >= FEW and self._last_at - self._first_at >= seconds

    def begin(self, core: QuicConnectionCore, now: float) -> None:
        """Note what is outstanding, before packets of the peer are handled."""
        if now < self._proven_at + PROOF_LASTS:
            return
        self._before = core.outstanding_application_packets
        self._lost_before = core.loss_total

    def end(self, core: QuicConnectionCore, now: float) -> None:
        """Examine which packets were acknowledged or lost meanwhile."""
        before, self._before = self._before, None
        if before is None:
            return
        after = {packet[0] for packet in core.outstanding_application_packets}
        gone = sum(1 for number, size, _ in before if size > SMALL and number not in after)
        if gone > core.loss_total - self._lost_before:
            self._proven_at = now  # some were acknowledged: more disappeared than were lost
            self._lost = 0
        elif gone:
            if not self._lost:
                self._first_at = now
            self._last_at = now
            self._lost += gone
