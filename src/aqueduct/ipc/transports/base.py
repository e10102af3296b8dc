"""The interface between an endpoint and its transport of PDUs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from aqueduct.errors import TLSError
from aqueduct.ipc.core.events import BatchResult, Transmit
from aqueduct.ipc.core.outgoing import OutgoingTransfer


class PduTransport(Protocol):
    """Carries PDUs between this endpoint and remotes, best effort; the core retransmits."""

    address: str
    """The address that others send to, such as ``udp://127.0.0.1:5000``."""
    max_pdu: int
    """The largest PDU, in bytes."""
    window: int
    """Bytes in flight to one remote above which PDUs would be lost."""
    id_trust: float | None
    """Seconds for which an owner id is valid without a new handshake; None for the configured."""
    reports_sent: bool
    """Whether it calls `PduListener.handle_sent` when a PDU was sent."""

    async def locate(self, address: str) -> Hashable:
        """Return the remote of an address; raise `ConnectError` if it has none."""

    def name(self, remote: Hashable) -> str:
        """Return the address of a remote."""

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send PDUs without waiting; errors of a remote are not raised."""

    def diagnose(self, remote: Hashable) -> str:
        """Return why a remote may not have answered, or "" if unknown."""

    async def close(self) -> None:
        """Send what is buffered as far as possible, and release everything."""


class PduListener(Protocol):
    """What a transport calls: the endpoint."""

    def handle_pdus(self, pdus: Sequence[bytes], remote: Hashable) -> BatchResult:
        """Handle PDUs from a remote; return whether they were useful."""

    def handle_sent(self, transfers: Sequence[OutgoingTransfer]) -> None:
        """Process that PDUs of these transfers were sent, or could not be."""

    def handle_transient_error(self, remote: Hashable, why: str) -> None:
        """Record why a remote could not be reached, or was lost; retries continue."""

    def handle_unreachable(self, remote: Hashable, error: TLSError) -> None:
        """Fail the transfers to a remote that no retry can reach."""
