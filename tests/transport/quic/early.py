"""Pairs over real QUIC in virtual time whose client reconnects with a ticket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from qh3.quic.packet import QuicPacketType
from qh3.tls import SessionTicket

from aqueduct.protocol.connection import Attach, Give
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.tickets import ServerTickets
from aqueduct.transport.quic.tls import EngineConfiguration
from aqueduct.transport.udp import Packet
from aqueduct.wire.chanid import ENTRYPOINT, Side
from tests.transport.quic.virtual import RealQuic
from tests.transport.tapped import DRAIN

DELAY = 0.05
RTT = 2 * DELAY
SLACK = 0.005

Loss = Callable[[Side, int], bool]
"""Returns whether the packet of a side with this number is lost."""


def no_loss(side: Side, number: int) -> bool:
    return False


class EarlyQuic(RealQuic):
    """Real QUIC whose client may have a ticket, and whose server may issue tickets."""

    ticket: SessionTicket | None = None
    tickets: ServerTickets | None = None
    received: list[SessionTicket]
    loses: Loss = staticmethod(no_loss)
    flights: tuple[list[bytes], list[bytes]]

    def new_client(self, settings: EngineConfiguration) -> Engine:
        self.flights = ([], [])
        return Engine(
            configuration=replace(settings, session_ticket=self.ticket),
            on_ticket=self.received.append,
        )

    def new_server(self, settings: EngineConfiguration, original: bytes) -> Engine:
        return Engine(
            configuration=settings,
            original_destination_connection_id=original,
            tickets=self.tickets,
        )

    def _send(self, side: Side, packet: Packet) -> None:
        number = len(self.flights[side])
        self.flights[side].append(packet[0])
        if not self.loses(side, number):
            super()._send(side, packet)


class World:
    """One server and one client that connect repeatedly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, size: int = 1_452) -> None:
        self._patch = monkeypatch
        self.store = ServerTickets()
        self.received: list[SessionTicket] = []
        self.resize(size)

    def resize(self, *sizes: int) -> None:
        """Set the packet sizes to choose from."""
        self._patch.setattr("tests.transport.quic.virtual.PACKET_SIZES", sizes)

    def pair(
        self,
        *,
        ticket: SessionTicket | None = None,
        tickets: ServerTickets | None = None,
        seed: int = 0,
        faults: Faults | None = None,
        loses: Loss = no_loss,
        accept: bool = True,
    ) -> Pair:
        """Return a pair whose client has sent its first packets."""
        network = type(
            "Network",
            (EarlyQuic,),
            {
                "ticket": ticket,
                "tickets": tickets,
                "received": self.received,
                "loses": staticmethod(loses),
            },
        )
        self._patch.setattr("aqueduct.testing.pair.FakeQuic", network)
        pair = Pair(seed, faults=faults or Faults(delay=DELAY), accept=accept)
        pair.record.backlog = DRAIN
        return pair

    def a_ticket(self) -> SessionTicket:
        """Return a ticket of the server's store, from an earlier connection."""
        pair = self.pair(tickets=self.store, faults=Faults(delay=0.001))
        network_of(pair).shake_hands()
        pair.run(1)
        return self.received.pop()

    def back(self, *, seed: int = 0, faults: Faults | None = None, loses: Loss = no_loss) -> Pair:
        """Return a pair whose client reconnects to the same server."""
        ticket = self.a_ticket()
        return self.pair(ticket=ticket, tickets=self.store, seed=seed, faults=faults, loses=loses)

    def back_in_vain(
        self, *, seed: int = 0, faults: Faults | None = None, loses: Loss = no_loss
    ) -> Pair:
        """Return a pair whose client reconnects to a restarted server."""
        ticket = self.a_ticket()
        return self.pair(
            ticket=ticket, tickets=ServerTickets(), seed=seed, faults=faults, loses=loses
        )


class Talk:
    """A client that sends requests and a server that echoes them, with the time of each."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.asked: list[bytes] = []
        self.asked_at: list[float] = []
        self.answers: list[bytes] = []
        self.answered_at: list[float] = []
        self._replies: list[int] = []
        pair.on_input = self._look

    def ask(self, payload: bytes) -> None:
        sent = self.pair.client.send_message(ENTRYPOINT, payload, attach=[Attach(Give.SENDER)])
        self._replies += sent.channels
        self.pair.flush()

    def _look(self, side: Side) -> None:
        now = self.pair.now
        if side == Side.SERVER:
            for message in self.pair.server.take(ENTRYPOINT):
                self.asked.append(message.payload)
                self.asked_at.append(now)
                for attachment in message.attachments:
                    self.pair.server.send(attachment.channel, message.payload)
                    self.pair.server.finish(attachment.channel)
        else:
            for reply in self._replies:
                for message in self.pair.client.take(reply):
                    self.answers.append(message.payload)
                    self.answered_at.append(now)


def network_of(pair: Pair) -> EarlyQuic:
    real: object = pair.network
    assert isinstance(real, EarlyQuic)
    return real


def was_early(pair: Pair) -> tuple[bool, bool]:
    """Return whether each side reports that early data was accepted."""
    client, server = network_of(pair).bridges
    assert client is not None
    assert server is not None
    return client.quic.early_data_accepted, server.quic.early_data_accepted


INITIAL, ZERO_RTT = int(QuicPacketType.INITIAL), int(QuicPacketType.ZERO_RTT)
