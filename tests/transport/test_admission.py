"""Admission of new connections, and which half-open ones are dropped."""

from __future__ import annotations

import pytest

from aqueduct.protocol.budget import Share
from aqueduct.protocol.config import Config
from aqueduct.transport.admission import AddressAccounts, Admission, HalfOpen, neighbourhood
from aqueduct.transport.settings import QuicSettings


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_accounting_is_per_ipv4_address_or_ipv6_network(host: str, name: str) -> None:
    assert neighbourhood(host) == name


def crowd(**counts: int) -> HalfOpen[str]:
    """Return half-open connections by address, opened one per second in this order."""
    half_open: HalfOpen[str] = HalfOpen()
    now = 0
    for address, count in counts.items():
        for number in range(count):
            half_open.add(f"{address}{number}", address, now)
            now += 1
    return half_open


def test_the_oldest_connection_of_the_address_with_the_most_is_dropped() -> None:
    half_open = crowd(modest=2, greedy=5)
    assert half_open.connection_to_drop("new", 7.0, 100.0) == "greedy0"
    half_open.remove("greedy0")
    assert half_open.connection_to_drop("modest", 7.0, 100.0) == "greedy1"


def test_connections_of_addresses_without_more_are_dropped_only_after_min_age() -> None:
    half_open = crowd(a=3, b=3)
    assert half_open.connection_to_drop("b", 6.0, 10.0) is None
    assert half_open.connection_to_drop("a", 10.0, 10.0) == "a0"
    alone = crowd(a=1)
    assert alone.connection_to_drop("b", 0.5, 1.0) is None
    assert alone.connection_to_drop("b", 1.0, 1.0) == "a0"


def test_nothing_is_dropped_if_nothing_is_half_open() -> None:
    assert crowd().connection_to_drop("a", 1_000.0, 1.0) is None


def test_accepted_and_ended_connections_do_not_count() -> None:
    half_open = crowd(a=2, b=1)
    assert (len(half_open), half_open.count("a"), half_open.count("c")) == (3, 2, 0)
    for name in ("a0", "a0", "b0", "a1", "never"):
        half_open.remove(name)
    assert len(half_open) == 0
    assert not half_open._by_address


def test_an_address_has_one_account_while_it_has_connections() -> None:
    """AQ-COST-4."""
    config = Config(max_address_bytes=1_000, address_allowance=10)
    accounts = AddressAccounts(config)
    one, two = accounts.enter("a"), accounts.enter("a")
    assert one is two
    assert accounts.enter("b") is not one
    assert Share(one.accepted).hold(1_010)
    assert not Share(two.accepted).hold(11)
    assert one.early.limit * config.early_share == config.max_early_total
    for address in ("a", "b", "a"):
        accounts.leave(address)
    assert not accounts._accounts


class Guest:
    """A connection that can be dropped."""

    def __init__(self, admission: Admission[Guest], address: str, now: float) -> None:
        self.reason = ""
        self._admission = admission
        admission.account(address)
        admission.enter(self, address, now)

    def abandon(self, reason: str) -> None:
        self.reason = reason

    def close(self) -> None:
        self._admission.leave(self)


def test_a_half_open_connection_makes_room_for_one_of_another_address() -> None:
    admission: Admission[Guest] = Admission(QuicSettings(max_half_open=3), Config())
    first, *_ = [Guest(admission, "greedy", float(now)) for now in range(3)]
    assert admission.make_room("modest", 3.0)
    assert first.reason.startswith("dropped before acceptance")
    assert len(admission.half_open) == 2


def test_accepted_connections_are_not_dropped_and_leave_room_for_other_addresses() -> None:
    admission: Admission[Guest] = Admission(QuicSettings(max_connections=10), Config())
    guests = [Guest(admission, "greedy", 0.0) for _ in range(9)]
    for guest in guests:
        admission.accepted(guest)
    assert not admission.make_room("greedy", 100.0), "one address gets nine tenths"
    assert admission.make_room("modest", 100.0)
    admission.unclaimed = 1
    assert not admission.make_room("modest", 100.0), "unclaimed connections count"
    for guest in guests:
        assert admission.address_of(guest) == "greedy"
        guest.close()
        guest.close()
    assert not admission._accounts._accounts
