"""Tests of the simulated network of datagrams."""

from __future__ import annotations

from random import Random

from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import CALM, Faults
from aqueduct.testing.ipc.network import DatagramNetwork


def arrivals(faults: Faults, deaf: tuple[tuple[str, float, float], ...] = ()) -> list[bytes]:
    """Send a hundred datagrams, one per millisecond; return those that arrive."""
    clock = VirtualClock()
    network = DatagramNetwork(clock, Random(1), faults)
    network.deaf = deaf
    came: list[bytes] = []
    network.receivers["bob"] = lambda source, datagram: came.append(datagram)
    for number in range(100):
        network.carry("ann", "bob", bytes([number]))
        clock.run(0.001)
    clock.run(10.0)
    return came


EACH = [bytes([number]) for number in range(100)]


def test_everything_arrives_in_order_on_a_calm_network() -> None:
    assert arrivals(CALM) == EACH


def test_some_datagrams_are_lost() -> None:
    assert 20 < len(arrivals(Faults(loss=0.5))) < 80


def test_some_datagrams_arrive_twice() -> None:
    came = arrivals(Faults(duplicate=0.3))
    assert len(came) > 110
    assert set(came) == set(EACH)


def test_some_datagrams_overtake_others() -> None:
    came = arrivals(Faults(jitter=0.1))
    assert came != EACH
    assert sorted(came) == EACH


def test_nothing_passes_in_a_blackout() -> None:
    assert arrivals(Faults(blackouts=((0.0, 0.0495),))) == EACH[50:]


def test_a_deaf_name_receives_nothing_in_its_interval() -> None:
    assert arrivals(Faults(delay=0.0), deaf=(("bob", 0.0, 0.0495),)) == EACH[50:]
    assert arrivals(Faults(delay=0.0), deaf=(("ann", 0.0, 1.0),)) == EACH


def test_a_listener_also_gets_lost_datagrams() -> None:
    network = DatagramNetwork(VirtualClock(), Random(1), Faults(loss=1.0))
    heard: list[tuple[str, str, bytes]] = []
    network.on_datagram = lambda source, remote, datagram: heard.append((source, remote, datagram))
    network.carry("ann", "bob", b"lost")
    assert heard == [("ann", "bob", b"lost")]
