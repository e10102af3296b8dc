"""The core of an endpoint: takes PDUs and the time as input, returns PDUs and events.

Pure: it uses no socket and no clock. A *remote* is the transport's address of another endpoint.

Theory of operation. A sender must know the receiver's owner id, and learns it from the answer to a
HEADER with a wrong one. A restarted endpoint has a new id, so it does not accept messages for its
predecessor. The ids of processed messages are kept until no retry of them can arrive, which
prevents a second delivery. See docs/spec, page 8.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from aqueduct.errors import LocalProtocolError, RemoteProtocolError
from aqueduct.ipc.core.events import BatchResult, Event, Randomness, Statistics, Transmit
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.core.pdu import OVERHEAD, Code, DataAck, Header, HeaderAck, decode
from aqueduct.ipc.core.receiving import TransferReceiver
from aqueduct.ipc.core.sending import TransferSender
from aqueduct.ipc.core.settings import MIN_PDU, IpcSettings
from aqueduct.protocol.timers import Timers


class Exchange:
    """The core of an endpoint.

    ``handle_*`` are inputs; ``send``, ``cancel``, ``take``, ``refuse`` and ``close`` are commands;
    ``poll_*`` and ``next_timer`` are outputs.
    """

    def __init__(
        self, config: IpcSettings, randomness: Randomness, now: float, *, reports_sent: bool = False
    ) -> None:
        """``reports_sent``: the transport calls `handle_sent` when a PDU was sent."""
        self.config = config
        self.statistics = Statistics()
        self._timers = Timers()
        self._receiver = TransferReceiver(config, randomness, self._timers, self.statistics, now)
        self._sender = TransferSender(
            config, randomness, self._timers, self.statistics, reports_sent
        )
        self._closed = False

    # Commands

    def send(self, remote: Hashable, payload: bytes, now: float) -> bytes:
        """Send a message and return its id; an `Ended` event reports its result."""
        if self._closed:
            raise LocalProtocolError("the endpoint is closed")
        return self._sender.send(remote, payload, now)

    def cancel(self, message_id: bytes, now: float, code: int = Code.RESET) -> None:
        """Abort a transfer; no-op if it has ended."""
        self._sender.cancel(message_id, code, now)

    def take(self, message_id: bytes) -> bool:
        """Acknowledge a message that the application took; return False if it was withdrawn."""
        return self._receiver.take(message_id)

    def refuse(self, message_id: bytes) -> None:
        """Refuse a message on behalf of the application."""
        self._receiver.refuse(message_id)

    def holds(self, message_id: bytes) -> bool:
        """Return whether a message that arrived can still be taken."""
        return self._receiver.holds(message_id)

    @property
    def max_pdu(self) -> int:
        """The PDU size of new transfers."""
        return self._sender.max_data + OVERHEAD

    def resize(self, max_pdu: int) -> None:
        """Change the PDU size of new transfers in both directions (IPC-CONF-4)."""
        if max_pdu < MIN_PDU:
            raise LocalProtocolError(f"a PDU of {max_pdu} bytes; max_pdu is at least {MIN_PDU}")
        self._receiver.max_data = self._sender.max_data = max_pdu - OVERHEAD

    def change_owner(self, now: float) -> None:
        """Change the owner id before it expires."""
        self._receiver.change_owner(now)

    def stop_sending(self, now: float) -> None:
        """Fail all sends with SHUTDOWN; messages that arrived can still be taken."""
        self._sender.close(now)

    def close(self, now: float) -> None:
        """Fail all sends with SHUTDOWN, and refuse messages that were not taken."""
        if not self._closed:
            self._closed = True
            self._sender.close(now)
            self._receiver.close()

    # Inputs

    def handle_pdus(self, pdus: Sequence[bytes], remote: Hashable, now: float) -> BatchResult:
        """Handle PDUs from a remote; return whether they were useful (IPC-TCP-2, IPC-TCP-6)."""
        counts = self.statistics
        malformed = counts.malformed
        useless = _useless(counts)
        for pdu in pdus:
            self.handle_pdu(pdu, remote, now)
        if counts.malformed != malformed:
            return BatchResult.MALFORMED
        return BatchResult.USEFUL if _useless(counts) - useless < len(pdus) else BatchResult.USELESS

    def handle_pdu(self, pdu: bytes, remote: Hashable, now: float) -> None:
        """Process a PDU from a remote."""
        self.statistics.pdus_received += 1
        try:
            value = decode(pdu)
        except RemoteProtocolError:
            self.statistics.malformed += 1  # IPC-PDU-9
            return
        if isinstance(value, HeaderAck):
            self._sender.handle_header_ack(value, remote, now)
        elif isinstance(value, Header):
            self._receiver.handle_header(value, remote, now)
        elif isinstance(value, DataAck):
            self._sender.handle_data_ack(value, remote, now)
        else:
            self._receiver.handle_data(value, remote, now)

    def handle_sent(self, transfer: OutgoingTransfer, now: float) -> None:
        """Process that a PDU of a transfer was sent, or could not be."""
        self._sender.handle_sent(transfer, now)

    def handle_timer(self, now: float) -> None:
        """Run the timers that are due."""
        if now >= self._receiver.owner_until:
            self._receiver.change_owner(now)
        for sleeper in self._timers.due(now):
            sleeper.handle_timer(now)

    def handle_transient_error(self, remote: Hashable, why: str) -> None:
        """Record why the transport could not reach a remote; retries continue."""
        self._sender.handle_transient_error(remote, why)

    def handle_unreachable(self, remote: Hashable, why: str, now: float) -> None:
        """Fail the transfers to a remote that no retry can reach."""
        self._sender.handle_unreachable(remote, why, now)

    # Outputs

    def poll_transmits(self) -> list[Transmit]:
        """Return the PDUs to send now, in order."""
        transmits = self._receiver.transmits + self._sender.transmits
        if transmits:
            self._receiver.transmits.clear()
            self._sender.transmits.clear()
            self.statistics.pdus_sent += len(transmits)
        return transmits

    def poll_events(self) -> list[Event]:
        """Return the events for the application, in order."""
        events: list[Event] = [*self._receiver.arrived, *self._sender.ended]
        if events:
            self._receiver.arrived.clear()
            self._sender.ended.clear()
        return events

    def next_timer(self) -> float:
        """Return when to call `handle_timer`."""
        first = self._timers.next()
        until = self._receiver.owner_until
        return until if first is None else min(first, until)

    # State

    @property
    def owner(self) -> bytes:
        """The current owner id."""
        return self._receiver.owner

    @property
    def processed(self) -> int:
        """How many processed ids are remembered."""
        return self._receiver.processed

    def leftovers(self) -> dict[str, int]:
        """Return what is held, by kind; empty once all transfers have ended."""
        held = self._receiver.leftovers() | self._sender.leftovers()
        return {kind: count for kind, count in held.items() if count}


def _useless(counts: Statistics) -> int:
    """Return the number of PDUs that advanced no message."""
    return counts.ignored + counts.misdirected + counts.over_limit + counts.duplicates
