"""One server on UDP and TCP, at the same port number."""

from __future__ import annotations

from aqueduct.transport.admission import Admission, Droppable
from aqueduct.transport.base import Listener


class DualListener:
    """A `Listener` that is two, which count their connections together."""

    def __init__(self, quic: Listener, tcp: Listener, admission: Admission[Droppable]) -> None:
        self.quic = quic
        self.tcp = tcp
        self._admission = admission

    @property
    def unclaimed(self) -> int:
        """Ended connections that the server still holds for the application."""
        return self._admission.unclaimed

    @unclaimed.setter
    def unclaimed(self, number: int) -> None:
        self._admission.unclaimed = number

    @property
    def address(self) -> str:
        """The address of both, without a scheme."""
        return self.quic.address

    @property
    def handshake_timeout(self) -> float:
        """Seconds that a client has for the handshake and its headers."""
        return self.quic.handshake_timeout

    def stop_accepting(self) -> None:
        """Ignore new clients of both."""
        self.quic.stop_accepting()
        self.tcp.stop_accepting()

    def close(self) -> None:
        """Abandon all connections of both, and free the address."""
        self.quic.close()
        self.tcp.close()
