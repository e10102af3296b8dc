"""0-RTT over real QUIC in virtual time: one round trip less, and no message twice."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from qh3._hazmat import pull_quic_header

from aqueduct.errors import CloseCode
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import ConnectionEnded, End, PeerHeaders, ReceiverEnded, SenderEnded
from aqueduct.security import Trust
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.configuration import server_settings, settings_for_path
from aqueduct.transport.quic.endpoint import ID_LENGTH, destination_id
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.tickets import TICKETS_PER_SERVER, ClientTickets, ServerTickets
from aqueduct.transport.settings import QuicSettings
from aqueduct.wire.chanid import ENTRYPOINT, Side
from tests.protocol.wires import credit
from tests.transport.quic.early import (
    DELAY,
    INITIAL,
    RTT,
    SLACK,
    ZERO_RTT,
    Talk,
    World,
    network_of,
    was_early,
)
from tests.transport.quic.virtual import ADDRESSES, certificates

MESSAGES = [b"%d" % number for number in range(20)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def deliver(pair: Pair, seconds: float = 20.0) -> list[bytes]:
    """Send the messages at once, and return what the server has after ``seconds``."""
    got: list[bytes] = []

    def take(side: Side) -> None:
        if side == Side.SERVER:
            got.extend(message.payload for message in pair.server.take(ENTRYPOINT))

    pair.on_input = take
    for payload in MESSAGES:
        pair.client.send(ENTRYPOINT, payload)
    pair.run(seconds)
    return got


# -- round trips -----------------------------------------------------------------------------------


def test_without_a_ticket_the_answer_takes_two_round_trips(world: World) -> None:
    talk = Talk(world.pair(tickets=world.store))
    talk.ask(b"hello")
    talk.pair.run(1)
    assert talk.answered_at == [pytest.approx(2 * RTT, abs=SLACK)]
    assert was_early(talk.pair) == (False, False)


@pytest.mark.parametrize("size", [1_200, 1_452])
def test_with_a_ticket_the_answer_takes_one_round_trip(world: World, size: int) -> None:
    world.resize(size)
    talk = Talk(world.back())
    talk.ask(b"hello")
    talk.pair.run(1)
    assert talk.asked_at == [pytest.approx(DELAY, abs=SLACK)]
    assert talk.answered_at == [pytest.approx(RTT, abs=SLACK)]
    assert was_early(talk.pair) == (True, True)
    assert talk.pair.violations() == []


def test_each_connection_gets_a_ticket_for_the_next(world: World) -> None:
    ticket = world.a_ticket()
    for _ in range(5):
        pair = world.pair(ticket=ticket, tickets=world.store)
        assert deliver(pair, 1.0) == MESSAGES
        assert was_early(pair) == (True, True)
        (ticket,) = world.received
        world.received.clear()
    assert len(world.store) == 1


def test_more_than_a_first_flight_arrives_in_order(world: World) -> None:
    pair = world.back()
    talk = Talk(pair)
    payloads = [bytes([number]) * 3_000 for number in range(20)]
    for payload in payloads:
        talk.ask(payload)
    pair.run(5)
    assert talk.asked == payloads
    assert sorted(talk.answers) == payloads
    assert talk.asked_at[0] == pytest.approx(DELAY, abs=SLACK)
    assert pair.violations() == []


# -- without early data ----------------------------------------------------------------------------


def test_a_server_without_early_data_issues_and_accepts_no_tickets(world: World) -> None:
    plain = world.pair()
    assert deliver(plain, 1.0) == MESSAGES
    assert world.received == []
    pair = world.pair(ticket=world.a_ticket(), tickets=None)
    assert deliver(pair, 1.0) == MESSAGES
    assert was_early(pair) == (False, False)


def test_a_ticket_is_not_used_for_another_server_name(world: World) -> None:
    ticket = replace(world.a_ticket(), server_name="elsewhere.test")
    pair = world.pair(ticket=ticket, tickets=world.store)
    client = network_of(pair).bridges[Side.CLIENT]
    assert client is not None
    assert not client.quic.is_early
    assert deliver(pair, 1.0) == MESSAGES


# -- retransmission of rejected data ---------------------------------------------------------------


def test_a_restarted_server_gets_everything_once_and_in_order(world: World) -> None:
    """AQ-EARLY-2."""
    pair = world.back_in_vain()
    assert deliver(pair) == MESSAGES
    assert was_early(pair) == (False, False)
    assert pair.violations() == []


def test_a_used_ticket_costs_only_a_round_trip(world: World) -> None:
    ticket = world.a_ticket()
    first = world.pair(ticket=ticket, tickets=world.store)
    assert deliver(first, 1.0) == MESSAGES
    talk = Talk(world.pair(ticket=ticket, tickets=world.store))
    talk.ask(b"again")
    talk.pair.run(1)
    assert talk.asked == talk.answers == [b"again"]
    assert talk.answered_at == [pytest.approx(2 * RTT, abs=SLACK)]
    assert was_early(talk.pair) == (False, False)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("lost", range(6))
@pytest.mark.parametrize("side", list(Side))
def test_any_packet_of_the_first_flights_may_be_lost(
    world: World, side: Side, lost: int, taken: bool
) -> None:
    """AQ-EARLY-2. If the server's first packet is lost, qh3 may probe with keys that it lacks."""
    come = world.back if taken else world.back_in_vain
    pair = come(loses=lambda who, number: who == side and number == lost)
    assert deliver(pair) == MESSAGES
    assert was_early(pair) == (taken, taken)
    assert pair.violations() == []


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_early_data_arrives_once_on_a_lossy_network(world: World, seed: int, taken: bool) -> None:
    world.resize(1_200, 1_452, 16_000)
    come = world.back if taken else world.back_in_vain
    pair = come(seed=seed, faults=Faults(loss=0.1, delay=0.02, jitter=0.005))
    assert deliver(pair) == MESSAGES
    assert pair.violations() == []


@pytest.mark.parametrize("taken", [True, False])
def test_most_early_handshakes_survive_heavy_loss(world: World, taken: bool) -> None:
    """They are not retried. Those that fail have neither lost nor duplicated a message."""
    world.resize(1_200, 1_452)
    come = world.back if taken else world.back_in_vain
    failed = 0
    for seed in range(40):
        pair = come(seed=seed, faults=Faults(loss=0.2, delay=0.02, jitter=0.005))
        got = deliver(pair, 10)
        if all(bridge is not None and bridge.connected for bridge in network_of(pair).bridges):
            pair.calm()
            pair.run(20)
            assert got == MESSAGES
        else:
            failed += 1
            assert got in ([], MESSAGES)
    assert failed <= 1


def test_a_client_sends_when_the_server_has_reached_the_amplification_limit(world: World) -> None:
    """With qh3 alone, both sides would wait for each other."""

    def loses(side: Side, number: int) -> bool:
        return number in ((1, 2, 3) if side == Side.CLIENT else (1,))

    world.resize(16_000)
    pair = world.pair(loses=loses)
    assert deliver(pair, 3.0) == MESSAGES


def test_early_packets_that_overtake_the_first_are_retransmitted(world: World) -> None:
    pair = world.back(faults=Faults(delay=0.02, jitter=0.02))
    assert deliver(pair) == MESSAGES


# -- what waits for the handshake ------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0.005, 0.3])
@pytest.mark.parametrize("taken", [True, False])
def test_datagrams_wait_for_the_handshake_and_arrive(
    world: World, delay: float, taken: bool
) -> None:
    """AQ-EARLY-3."""
    come = world.back if taken else world.back_in_vain
    pair = come(faults=Faults(delay=delay))
    client = network_of(pair).bridges[Side.CLIENT]
    assert client is not None
    sent_at: list[float] = []
    send = client.quic.send_datagram_frame

    def note(data: bytes) -> None:
        assert client.connected
        sent_at.append(pair.now)
        send(data)

    client.quic.send_datagram_frame = note  # type: ignore[method-assign]
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    assert sorted(deliver(pair)) == sorted(MESSAGES)
    assert sent_at
    assert min(sent_at) >= 2 * delay
    assert pair.violations() == []


@pytest.mark.parametrize("taken", [True, False])
def test_a_cancel_before_the_handshake_is_sent_after_it(world: World, taken: bool) -> None:
    come = world.back if taken else world.back_in_vain
    pair = come()
    pair.client.send(ENTRYPOINT, b"x" * 10_000)
    pair.flush()
    pair.client.cancel(ENTRYPOINT)
    pair.run(5)
    assert pair.server.events_of(ReceiverEnded)[0].how is End.CANCELLED
    assert pair.client.events_of(SenderEnded)[0].how is End.CANCELLED
    assert pair.leftovers() == []


@pytest.mark.parametrize("taken", [True, False])
def test_a_close_before_the_handshake_loses_no_message(world: World, taken: bool) -> None:
    """AQ-EARLY-5."""
    come = world.back if taken else world.back_in_vain
    pair = come()
    got: list[bytes] = []
    pair.on_input = lambda side: got.extend(
        message.payload for message in pair.server.take(ENTRYPOINT)
    )
    for payload in MESSAGES:
        pair.client.send(ENTRYPOINT, payload)
    pair.client.close_connection(CloseCode.NO_ERROR, "goodbye")
    pair.run(5)
    assert got == MESSAGES
    (ended,) = pair.server.events_of(ConnectionEnded)
    assert (ended.code, ended.reason, ended.by_peer) == (CloseCode.NO_ERROR, "goodbye", True)


@pytest.mark.parametrize("lost", [None, 0, 1, 2, 3])
def test_a_server_refuses_early_data_with_the_same_code_and_reason(
    world: World, lost: int | None
) -> None:
    """AQ-EARLY-5: whichever packet of the server's first flight is lost."""
    ticket = world.a_ticket()
    pair = world.pair(
        ticket=ticket,
        tickets=world.store,
        accept=False,
        loses=lambda side, number: side == Side.SERVER and number == lost,
    )
    pair.server.on_event = lambda event: (
        pair.server.refuse(CloseCode.UNAUTHENTICATED, "who are you?")
        if isinstance(event, PeerHeaders)
        else None
    )
    pair.client.send(ENTRYPOINT, b"secret")
    pair.run(10)
    (ended,) = pair.client.events_of(ConnectionEnded)
    assert (ended.code, ended.reason) == (CloseCode.UNAUTHENTICATED, "who are you?")
    assert was_early(pair)[Side.SERVER]


def test_early_messages_are_held_until_the_application_accepts(world: World) -> None:
    pair = world.pair(ticket=world.a_ticket(), tickets=world.store, accept=False)
    pair.client.send(ENTRYPOINT, b"early")
    pair.run(1)
    assert pair.server.events_of(PeerHeaders)
    assert pair.server.take(ENTRYPOINT) == []
    pair.server.accept()
    pair.run(1)
    assert [message.payload for message in pair.server.take(ENTRYPOINT)] == [b"early"]


def test_the_initial_limits_apply_whatever_the_server_stated_before(world: World) -> None:
    """AQ-EARLY-4."""
    pair = world.back()
    assert (
        credit(pair.client.core, ENTRYPOINT)
        == pair.client.core.config.initial_limits.channel_window
    )
    pair.run(1)
    assert credit(pair.client.core, ENTRYPOINT) == pair.server.core.config.limits.channel_window


# -- replays ---------------------------------------------------------------------------------------


class Stage:
    """A server that gets recorded packets."""

    def __init__(self, tickets: ServerTickets, packets: list[bytes]) -> None:
        tls, _ = certificates()
        options = QuicSettings(max_packet=1_452)
        settings = settings_for_path(server_settings(tls, options), options, ADDRESSES[0])
        self.core = ConnectionCore(Side.SERVER)
        self.quic = Engine(
            configuration=settings,
            original_destination_connection_id=destination_id(packets[0]),
            tickets=tickets,
        )
        self.bridge = Bridge(self.core, self.quic)
        for number, data in enumerate(packets):
            self.bridge.receive(data, len(data), ADDRESSES[0], 100 + number / 1_000)
            self.bridge.flush(100 + number / 1_000)
        self.events = self.core.poll_events()

    def messages(self) -> int:
        if not self.core.poll_events() and not self.events:
            return 0
        self.core.accept((), 101.0)
        return len(self.core.take(ENTRYPOINT, 100, 101.0))


def first_flight(pair: Pair) -> list[bytes]:
    """Return the client's packets before its first answer to the server."""
    kinds = [
        pull_quic_header(data, 0, ID_LENGTH)[1] for data in network_of(pair).flights[Side.CLIENT]
    ]
    assert ZERO_RTT in kinds
    count = next(
        (at for at, kind in enumerate(kinds) if kind not in (INITIAL, ZERO_RTT)), len(kinds)
    )
    return network_of(pair).flights[Side.CLIENT][:count]


def test_a_recorded_first_flight_is_accepted_once(world: World) -> None:
    """AQ-EARLY-1."""
    pair = world.pair(ticket=world.a_ticket(), tickets=world.store)
    for payload in MESSAGES:
        pair.client.send(ENTRYPOINT, payload)
    pair.flush()
    flight = first_flight(pair)
    once = Stage(world.store, flight)
    assert once.quic.early_data_accepted
    assert once.messages() == 1  # one run of all of them
    for _ in range(3):
        again = Stage(world.store, flight)
        assert not again.quic.early_data_accepted
        assert again.messages() == 0
    elsewhere = Stage(ServerTickets(), flight)
    assert elsewhere.messages() == 0


def test_a_recorded_connection_is_not_accepted_again(world: World) -> None:
    """AQ-EARLY-1."""
    pair = world.back()
    assert deliver(pair, 1.0) == MESSAGES
    again = Stage(world.store, network_of(pair).flights[Side.CLIENT])
    assert again.messages() == 0
    assert not again.quic.early_data_accepted


# -- ticket stores ---------------------------------------------------------------------------------


def test_a_ticket_is_stored_once_the_handshake_is_complete(world: World) -> None:
    """Unfinished handshakes cannot fill the store."""
    pair = world.pair(tickets=world.store, loses=lambda side, _: side == Side.SERVER)
    pair.run(1)
    assert network_of(pair).bridges[Side.SERVER] is not None
    assert len(world.store) == 0


def test_the_servers_store_evicts_the_oldest_ticket(world: World) -> None:
    ticket = world.a_ticket()
    store = ServerTickets(limit=10)
    for number in range(25):
        store.add(replace(ticket, ticket=b"%d" % number))
    assert len(store) == 10
    assert store.take(b"14") is None
    assert store.take(b"15") is not None
    assert store.take(b"15") is None


def test_the_servers_store_drops_expired_tickets(world: World) -> None:
    ticket = world.a_ticket()
    past = ticket.not_valid_before - datetime.timedelta(days=2)
    store = ServerTickets()
    for number in range(5):
        old = replace(ticket, ticket=b"%d" % number, not_valid_after=past)
        store._tickets[old.ticket] = old
    store.add(ticket)
    assert len(store) == 1


def test_a_client_keeps_a_bounded_number_of_tickets_and_servers(world: World) -> None:
    ticket = world.a_ticket()
    tickets = ClientTickets(servers=4)
    for port in range(10):
        for number in range(20):
            fresh = replace(ticket, ticket=b"%d" % number)
            tickets.add("host", ("127.0.0.1", port), Trust(), fresh)
    assert len(tickets) == 4 * TICKETS_PER_SERVER
    assert tickets.take("host", ("127.0.0.1", 5), Trust()) is None
    newest = tickets.take("host", ("127.0.0.1", 9), Trust())
    assert newest is not None
    assert newest.ticket == b"19"


def test_a_client_uses_a_ticket_only_with_the_same_trust(world: World) -> None:
    tickets = ClientTickets()
    tickets.add("host", ("127.0.0.1", 1), Trust(pinned="0" * 64), world.a_ticket())
    assert tickets.take("host", ("127.0.0.1", 1), Trust()) is None
    assert tickets.take("other", ("127.0.0.1", 1), Trust(pinned="0" * 64)) is None
    assert not tickets.knows("host", ("127.0.0.1", 2), Trust(pinned="0" * 64))
    assert tickets.knows("host", ("127.0.0.1", 1), Trust(pinned="0" * 64))
    assert tickets.take("host", ("127.0.0.1", 1), Trust(pinned="0" * 64)) is not None
    assert not tickets.knows("host", ("127.0.0.1", 1), Trust(pinned="0" * 64))


def test_a_client_drops_expired_tickets(world: World) -> None:
    ticket = world.a_ticket()
    past = ticket.not_valid_before - datetime.timedelta(days=2)
    tickets = ClientTickets()
    tickets.add("host", ADDRESSES[1], Trust(), replace(ticket, not_valid_after=past))
    assert tickets.take("host", ADDRESSES[1], Trust()) is None
    assert len(tickets) == 0


def test_halves_attached_to_early_messages_work(world: World) -> None:
    pair = world.back()
    sent = pair.client.send_message(ENTRYPOINT, b"", attach=[Attach(Give.RECEIVER)])
    (channel,) = sent.channels
    for payload in MESSAGES:
        pair.client.send(channel, payload)
    pair.client.finish(channel)
    pair.run(DELAY + SLACK)
    pair.server.take(ENTRYPOINT)
    assert [message.payload for message in pair.server.take(channel)] == MESSAGES
    pair.run(2)
    assert pair.server.events_of(ReceiverEnded)[0].how is End.FINISHED
