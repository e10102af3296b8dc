"""The core of an endpoint in a test, with a virtual clock."""

from collections.abc import Hashable
from dataclasses import replace
from random import Random
from typing import Any

from aqueduct.ipc.core.events import Arrived, Ended, Event
from aqueduct.ipc.core.exchange import Exchange
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.core.pdu import Data, Header, HeaderAck, Pdu, decode
from aqueduct.ipc.core.settings import IpcSettings

THEM = "them"
"""The remote address of the other endpoint."""

CONFIG = IpcSettings(max_pdu=512)
DATA = CONFIG.max_data
"""The most data in a PDU of these tests: 470 bytes."""

ID = b"message id 16 by"
WRONG = b"unknown owner id"


class Core:
    """An exchange with its own clock, which starts at 0."""

    def __init__(self, *, seed: int = 1, reports_sent: bool = False, **changes: Any) -> None:
        self.config = replace(CONFIG, **changes)
        self.now = 0.0
        self.exchange = Exchange(self.config, Random(seed), 0.0, reports_sent=reports_sent)
        self.sendings: list[OutgoingTransfer] = []

    def hear(self, *pdus: Pdu, remote: Hashable = THEM) -> list[Pdu]:
        """Handle PDUs and return the answers."""
        for pdu in pdus:
            self.exchange.handle_pdu(pdu.encode(), remote, self.now)
        return self.said()

    def said(self) -> list[Pdu]:
        """Return the PDUs sent since the last call."""
        return [pdu for pdu, _ in self.said_to()]

    def said_to(self) -> list[tuple[Pdu, Hashable]]:
        transmits = self.exchange.poll_transmits()
        self.sendings = [each.transfer for each in transmits if each.transfer is not None]
        return [(decode(each.head + each.data), each.remote) for each in transmits]

    def wait(self, seconds: float) -> list[Pdu]:
        """Advance the clock, run each timer when it is due, and return the PDUs sent."""
        until = self.now + seconds
        while (at := self.exchange.next_timer()) <= until:
            self.now = max(at, self.now)
            self.exchange.handle_timer(self.now)
        self.now = until
        return self.said()

    def send(self, payload: bytes, remote: Hashable = THEM) -> bytes:
        return self.exchange.send(remote, payload, self.now)

    def take(self, message_id: bytes = ID) -> list[Pdu]:
        assert self.exchange.take(message_id)
        return self.said()

    def events(self) -> list[Event]:
        return self.exchange.poll_events()

    def arrived(self) -> list[bytes]:
        """Return the payloads of the messages that are complete."""
        return [each.payload for each in self.events() if isinstance(each, Arrived)]

    def ended(self) -> Ended:
        """Return the only event, the end of a send."""
        (event,) = self.events()
        assert isinstance(event, Ended)
        return event

    # Answers of a peer.

    def header(self, length: int, payload: bytes = b"", message_id: bytes = ID) -> Header:
        return Header(message_id, self.exchange.owner, length, payload)

    def data(self, sequence: int, payload: bytes = b"", message_id: bytes = ID) -> Data:
        return Data(message_id, self.exchange.owner, sequence, payload)

    def knows(self, owner: bytes, remote: Hashable = THEM) -> None:
        """Deliver an empty message, so that the core learns the remote's owner id."""
        message_id = self.send(b"", remote)
        self.said()
        self.exchange.handle_pdu(HeaderAck(message_id, 2, owner).encode(), remote, self.now)
        self.exchange.handle_pdu(HeaderAck(message_id).encode(), remote, self.now)
        self.said()
        self.events()
