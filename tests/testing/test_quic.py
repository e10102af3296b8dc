"""Tests of the fake network: what it promises about streams, datagrams, timers and its end."""

import pytest

from aqueduct.protocol.actions import CloseConnection, ResetStream, SendDatagram, WriteStream
from aqueduct.testing.clock import StuckTimer
from aqueduct.testing.faults import Faults
from aqueduct.wire.chanid import Side
from tests.testing.fakes import FakeWorld

NASTY = Faults(delay=0.01, jitter=0.5, loss=0.4, split=1.0, merge=0.5)
TEXT = bytes(range(200))


@pytest.mark.parametrize("seed", range(20))
def test_each_stream_delivers_its_bytes_in_order_whatever_the_network_does(seed: int) -> None:
    world = FakeWorld(NASTY, seed)
    for start in range(0, len(TEXT), 20):
        chunk = TEXT[start : start + 20]
        world.send(*(WriteStream(stream, chunk, start == 180) for stream in range(5)))
    world.clock.run_until_idle(60)
    assert list(world.server.streams.values()) == [TEXT] * 5
    assert len(world.server.finished) == 5


def test_streams_overtake_each_other() -> None:
    world = FakeWorld(Faults(jitter=1.0))
    world.send(*(WriteStream(stream, b"x", False) for stream in range(20)))
    world.clock.run_until_idle(60)
    order = [stream for _, stream, _ in world.server.chunks]
    assert order != sorted(order)


def test_writes_are_split_and_merged() -> None:
    world = FakeWorld(Faults(jitter=0.1, split=1.0))
    world.send(WriteStream(0, TEXT, False))
    world.clock.run_until_idle(60)
    assert len(world.server.chunks) > 1
    joined = FakeWorld(Faults(merge=1.0))
    joined.send(*(WriteStream(0, bytes([byte]), False) for byte in TEXT))
    joined.clock.run_until_idle(60)
    assert [data for _, _, data in joined.server.chunks] == [TEXT]


@pytest.mark.parametrize("seed", range(20))
def test_a_reset_arrives_after_a_prefix_of_the_stream(seed: int) -> None:
    world = FakeWorld(NASTY, seed)
    world.send(*(WriteStream(0, TEXT[at : at + 10], False) for at in range(0, 200, 10)))
    world.send(ResetStream(0, 16))
    world.clock.run_until_idle(60)
    (received,) = world.server.streams.values() or (b"",)
    assert TEXT.startswith(received)
    assert world.server.resets == [(2, 16)]


def test_a_reset_of_a_finished_stream_may_come_too_late() -> None:
    outcomes = set()
    for seed in range(40):
        world = FakeWorld(NASTY, seed)
        world.send(WriteStream(0, TEXT, True), ResetStream(0, 16))
        world.clock.run_until_idle(60)
        outcomes.add((bool(world.server.finished), bool(world.server.resets)))
    assert outcomes == {(True, False), (False, True)}


def test_datagrams_are_lost_delayed_and_reordered_but_not_duplicated() -> None:
    world = FakeWorld(NASTY)
    world.send(*(SendDatagram(bytes([number])) for number in range(200)))
    world.clock.run_until_idle(60)
    numbers = [data[0] for _, data in world.server.datagrams]
    assert len(numbers) == len(set(numbers)) == 200 - world.network.datagrams_lost
    assert 40 < world.network.datagrams_lost < 120
    assert numbers != sorted(numbers)


def test_in_a_blackout_datagrams_are_lost_and_streams_wait() -> None:
    world = FakeWorld(Faults(delay=0.01, blackouts=((0.0, 5.0),)))
    world.send(WriteStream(0, b"x", False), SendDatagram(b"y"))
    world.clock.run_until_idle(60)
    assert world.server.datagrams == []
    assert world.server.chunks[0][0] > 5.0


def test_a_core_is_woken_when_its_timer_is_due() -> None:
    world = FakeWorld(Faults())
    world.client.timer = 0.5
    world.network.flush(Side.CLIENT)
    world.clock.run(1)
    assert world.client.timers == [0.5]


def test_a_timer_may_be_late_but_not_early() -> None:
    for seed in range(30):
        world = FakeWorld(Faults(late_timer=1.0, lateness=0.1), seed)
        world.client.timer = 0.5
        world.network.flush(Side.CLIENT)
        world.clock.run(1)
        (woken,) = world.client.timers
        assert 0.5 <= woken <= 0.6


def test_an_earlier_timer_replaces_a_later_one() -> None:
    world = FakeWorld(Faults())
    world.client.timer = 0.5
    world.network.flush(Side.CLIENT)
    world.client.timer = 0.2
    world.network.flush(Side.CLIENT)
    world.clock.run(1)
    assert world.client.timers == [0.2]


def test_a_stuck_timer_is_an_error() -> None:
    world = FakeWorld(Faults())
    world.client.timer = 0.0
    world.client.stubborn = True
    world.network.flush(Side.CLIENT)
    with pytest.raises(StuckTimer):
        world.clock.run(1)


def test_a_close_reaches_the_peer_as_a_lost_connection() -> None:
    world = FakeWorld(Faults(delay=0.1))
    world.send(CloseConnection(2, "no"), WriteStream(0, b"never", False))
    world.clock.run_until_idle(60)
    assert world.server.lost == [(0.1, 2, True)]
    assert world.server.streams == {}
    assert not world.network.is_alive(Side.CLIENT)


def test_both_sides_learn_of_a_lost_connection_which_carries_nothing() -> None:
    world = FakeWorld(Faults(delay=0.1))
    world.send(WriteStream(0, b"under way", False), SendDatagram(b"too"))
    world.network.kill(9, "gone", 0.05)
    world.clock.run_until_idle(60)
    times = sorted(lost[0] for lost in world.client.lost + world.server.lost)
    assert times == [0.0, 0.05]
    assert world.server.streams == {}
    assert world.server.datagrams == []


def test_round_trip_times_are_reported_and_plausible() -> None:
    world = FakeWorld(Faults(delay=0.02, jitter=0.01))
    world.send(*(WriteStream(stream, b"x", True) for stream in range(300)))
    world.clock.run_until_idle(60)
    assert world.server.rtts
    assert all(0.04 <= rtt <= 0.06 for rtt in world.server.rtts)
