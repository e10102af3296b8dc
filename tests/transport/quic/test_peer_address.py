"""The addresses of a peer: it is followed, and an address is validated before it is used."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest
from qh3.quic.events import PingAcknowledged

from aqueduct.errors import CloseCode
from aqueduct.protocol.events import ConnectionEnded
from aqueduct.testing.faults import Faults
from aqueduct.transport.address import Address
from aqueduct.transport.quic.peer_address import (
    ACKS_TO_VALIDATE,
    AMPLIFICATION,
    CHECK_FOR,
    COPY_FOR,
    MAX_CHECKS,
    MAX_PINGS,
    MAX_UNANSWERED,
    MAX_VALIDATED,
    PING_SIZE,
    SETTLE,
    AddressValidation,
    PeerAddresses,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from tests.transport.quic.survival import Visit

HOME: Address = ("192.0.2.1", 1_000)
ELSEWHERE: Address = ("198.51.100.1", 1_000)


def test_a_late_packet_does_not_switch_back_to_the_previous_address() -> None:
    where = PeerAddresses(HOME)
    where.validated(ELSEWHERE, 1.0)
    assert where.record_packet(HOME, 1.0 + SETTLE / 2)
    assert where.at == ELSEWHERE
    where.record_packet(HOME, 1.0 + SETTLE)
    assert where.at == HOME
    assert where.name == HOME


def test_another_port_is_validated_once() -> None:
    where = PeerAddresses(HOME)
    address = (HOME[0], 2_000)
    assert where.name_for(address, 1.0) == HOME
    assert not where.record_packet(address, 1.0)
    assert where.at == HOME
    where.validated(address, 2.0)
    assert where.at == address
    assert where.record_packet(HOME, 10.0)
    assert where.at == HOME
    assert where.record_packet(address, 20.0)
    assert where.at == address
    assert where.destination(HOME) == address


def test_another_host_is_validated_by_quic_as_often_as_it_can() -> None:
    where = PeerAddresses(HOME)
    for number in range(MAX_CHECKS):
        host = (f"198.51.100.{number}", 1_000)
        assert where.name_for(host, 1.0) == host
        assert where.record_packet(host, 1.0)
        assert where.at != host
        assert where.is_checking(1.0)
        assert not where.is_checking(1.0 + CHECK_FOR)
        assert where.destination(host) == host
        where.record_response(2.0)
        assert where.at == where.name == host
        assert not where.is_checking(2.0)
    assert where.name_for(("203.0.113.1", 1), 3.0) == where.name
    assert not where.record_packet(("203.0.113.1", 1), 3.0)
    assert where.name_for(HOME, 3.0) == where.name
    assert where.record_packet(HOME, 10.0)
    assert where.destination(where.name) == HOME


def test_a_validation_is_abandoned_when_the_peer_sends_from_elsewhere() -> None:
    where = PeerAddresses(HOME)
    assert where.record_packet(ELSEWHERE, 1.0)
    soon, later = 1.0 + SETTLE / 2, 1.0 + SETTLE
    assert where.name_for(HOME, soon) == HOME
    assert where.record_packet(HOME, soon)
    assert where.destination(ELSEWHERE) == ELSEWHERE
    assert where.name_for(HOME, later) == ELSEWHERE
    assert where.record_packet(HOME, later)
    assert where.destination(ELSEWHERE) == where.destination(HOME) == HOME
    third = ("203.0.113.1", 1)
    assert where.name_for(third, later) == ELSEWHERE
    assert not where.record_packet(third, later)
    where.record_response(2.0)
    assert (where.name, where.at) == (ELSEWHERE, HOME)
    assert where.destination(ELSEWHERE) == HOME
    assert not where.record_packet(ELSEWHERE, 3.0), "it was not validated"


@pytest.mark.parametrize("packets", [1, 5])
def test_packets_forwarded_from_another_host_do_not_stop_a_connection(packets: int) -> None:
    visit = Visit(1, Faults(delay=0.01))
    visit.run(5)
    deliver = visit.network._arrive
    left = packets

    def send_on(arrival: tuple[Side, bytes, Address]) -> None:
        nonlocal left
        side, data, address = arrival
        if side == Side.SERVER and left:
            left -= 1
            address = ELSEWHERE
        deliver((side, data, address))

    with patch.object(visit.network, "_arrive", send_on):
        visit.pair.run(1.0)
        fate = visit.run(20, limit=20.0)
    assert not left
    assert (fate.reason, fate.done) == (None, 25)


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    where = PeerAddresses(HOME)
    for number in range(2 * MAX_VALIDATED):
        where.validated((f"10.0.0.{number}", 1), float(number))
    assert len(where._validated) == MAX_VALIDATED
    assert not where.record_packet(HOME, 1_000.0)
    assert len(where._hosts) == 1
    proof = AddressValidation(ELSEWHERE, HOME, 0.0)
    for uid in range(2 * MAX_PINGS):
        proof.dropped(uid)
    assert len(proof._pings) == MAX_PINGS


def test_acks_of_sent_pings_validate_an_address() -> None:
    proof = AddressValidation(ELSEWHERE, HOME, 0.0)
    verdicts = []
    for uid in range(ACKS_TO_VALIDATE):
        proof.sent(uid, PING_SIZE)
        verdicts.append(proof.acked(uid))
    assert verdicts == [None] * (ACKS_TO_VALIDATE - 1) + [True]


def test_an_ack_of_a_discarded_ping_is_detected() -> None:
    proof = AddressValidation(ELSEWHERE, HOME, 0.0)
    proof.sent(1, PING_SIZE)
    proof.dropped(2)
    assert proof.acked(1) is None
    assert proof.acked(1) is None
    assert proof.acked(2) is False


def test_validation_respects_the_amplification_limit() -> None:
    proof = AddressValidation(ELSEWHERE, HOME, 0.0)
    sent = 0
    for now in range(100):
        proof.retry(float(now))
        while proof.may_send():
            proof.sent(1_000 * now + sent, PING_SIZE)
            sent += PING_SIZE
    assert sent == 0
    proof.received(40, 100.0)
    for now in range(100, 200):
        while proof.may_send():
            proof.sent(1_000 * now + sent, PING_SIZE)
            sent += PING_SIZE
        proof.retry(float(now))
    assert 0 < sent <= AMPLIFICATION * 40


def test_unanswered_pings_in_flight_are_bounded() -> None:
    proof = AddressValidation(ELSEWHERE, HOME, 0.0)
    proof.received(1_000_000, 0.0)
    sent = 0
    while proof.may_send():
        proof.sent(sent, PING_SIZE)
        sent += 1
    assert sent == MAX_UNANSWERED


def test_copies_go_to_another_port_of_the_host_and_few_to_another_host() -> None:
    neighbour = AddressValidation((HOME[0], 2_000), HOME, 0.0)
    assert neighbour.may_copy(1_000_000, COPY_FOR / 2)
    assert not neighbour.may_copy(1_000_000, COPY_FOR)
    stranger = AddressValidation(ELSEWHERE, HOME, 0.0)
    assert not stranger.may_copy(1_000, 0.0)
    stranger.received(10_000, 0.0)
    copied = 0
    while stranger.may_copy(1_000, 0.0):
        copied += 1_000
    assert 20_000 < copied <= AMPLIFICATION * 10_000


def spy(visit: Visit, side: Side) -> Counter[Address]:
    """Return a counter of the bytes that a side sends, by destination."""
    bytes_to: Counter[Address] = Counter()
    send = visit.network._send

    def watch(sender: Side, packet: tuple[bytes, Address]) -> None:
        if sender == side:
            bytes_to[packet[1]] += len(packet[0])
        send(sender, packet)

    visit.network._send = watch  # type: ignore[method-assign, assignment]
    return bytes_to


def test_a_spoofed_address_gets_at_most_three_times_what_came_from_it() -> None:
    """The remaining packets go to the peer's validated address."""
    visit = Visit(1, Faults(delay=0.01))
    bytes_to = spy(visit, Side.SERVER)
    bridge = visit.network.bridges[Side.SERVER]
    assert bridge is not None
    receive, forged = bridge.receive, 0
    visit.run(1)
    where = bridge.quic._addresses
    assert where is not None
    where._checks = MAX_CHECKS  # otherwise QUIC validates it
    bytes_to.clear()

    def forge(data: bytes, segment: int, address: Address, now: float) -> None:
        nonlocal forged
        forged += len(data)
        receive(data, segment, ELSEWHERE, now)

    bridge.receive = forge  # type: ignore[method-assign]
    assert visit.run(50).done == 51
    assert bytes_to[visit.network.addresses[Side.CLIENT]] > 50_000
    assert 0 < bytes_to[ELSEWHERE] <= AMPLIFICATION * forged
    assert where.at == visit.network.addresses[Side.CLIENT]


def test_a_peer_that_acks_packets_it_did_not_get_is_closed() -> None:
    visit = Visit(2, Faults(delay=0.01))
    bridge = visit.network.bridges[Side.SERVER]
    assert bridge is not None
    bridge.quic._validate(ELSEWHERE, 1_000, visit.pair.now)
    proof = bridge.quic._validation
    assert proof is not None
    lie = next(uid for uid, was_sent in proof._pings.items() if not was_sent)
    bridge.quic._events.append(PingAcknowledged(lie))
    visit.run(1, limit=1.0)
    (ended,) = visit.pair.client.events_of(ConnectionEnded)
    assert (ended.code, ended.by_peer) == (CloseCode.PROTOCOL_VIOLATION, True)
    assert "never sent" in ended.reason


def test_packets_go_only_to_the_new_address_of_a_peer_that_moved() -> None:
    visit = Visit(3, Faults(delay=0.01))
    visit.run(5)
    moved = visit.network.addresses[Side.CLIENT] = ("127.0.0.9", 9_999)
    visit.run(20)
    bytes_to = spy(visit, Side.SERVER)
    visit.run(20)
    assert set(bytes_to) == {moved}


def test_a_ping_waits_while_quic_has_reached_the_amplification_limit() -> None:
    visit = Visit(1, Faults(delay=0.01))
    bridge = visit.network.bridges[Side.SERVER]
    assert bridge is not None

    class Crowded:
        def send_ping(self, uid: int) -> None:
            """Accept it."""

        def poll_transmit(self, now: float) -> None:
            raise RuntimeError("packet builder capacity exhausted")

    with patch.object(bridge.quic, "_require_core", Crowded):
        assert bridge.quic._make_ping(visit.pair.now) is None


def test_the_backoff_of_probes_ends_with_the_handshake() -> None:
    visit = Visit(1, Faults(delay=0.01))
    bridge = visit.network.bridges[Side.CLIENT]
    assert bridge is not None
    quic = bridge.quic
    visit.pair.client.send(ENTRYPOINT, b"to be acked")
    visit.pair.flush()
    quic._probe_at = visit.pair.now + 100.0
    timer = quic.get_timer()
    assert timer is not None
    assert timer < visit.pair.now + 10.0
    assert quic.core is not None
    probes = quic.core.pto_total
    quic.handle_timer(timer)
    assert quic.core.pto_total == probes + 1
