"""What an endpoint asks of a transport, and what a transport tells an endpoint."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from aqueduct.errors import TLSError
from aqueduct.ipc.core.events import Heard, Transmit
from aqueduct.ipc.core.outgoing import OutgoingTransfer


class PduTransport(Protocol):
    """Carries PDUs to remotes and back, as well as it can; the core makes up for the rest."""

    address: str
    """What others send to, such as ``udp://127.0.0.1:5000``."""
    max_pdu: int
    """The largest PDU it carries."""
    window: int
    """How many bytes may be under way to one remote before something would be lost."""
    id_trust: float | None
    """How long an owner id may be used without asking; None for what the configuration says."""
    reports_sent: bool
    """Whether it tells by `PduListener.handle_sent` when a PDU has gone."""

    async def locate(self, address: str) -> Hashable:
        """The remote that an address means; raises `ConnectError` for one that means none."""

    def name(self, remote: Hashable) -> str:
        """A remote as people write it."""

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send PDUs; never waits and never raises for a remote's sake."""

    def diagnose(self, remote: Hashable) -> str:
        """Why a remote may not have answered, as far as one can tell now; "" for no idea."""

    async def close(self) -> None:
        """Let go of everything, after what was sent has gone as far as it can."""


class PduListener(Protocol):
    """Who is told what a transport hears: an endpoint."""

    def handle_pdus(self, pdus: Sequence[bytes], remote: Hashable) -> Heard:
        """Handle PDUs from a remote; return whether they were useful."""

    def handle_sent(self, transfers: Sequence[OutgoingTransfer]) -> None:
        """PDUs of these have gone, or could not go."""

    def handle_trouble(self, remote: Hashable, why: str) -> None:
        """A remote could not be reached just now, or is no longer there."""

    def handle_unreachable(self, remote: Hashable, error: TLSError) -> None:
        """A remote will not be reached however often one tries."""
