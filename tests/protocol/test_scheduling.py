"""The order in which blocked senders are woken."""

from dataclasses import replace

import pytest

from aqueduct.errors import WouldBlock
from aqueduct.protocol.config import Config
from aqueduct.protocol.events import Writable
from aqueduct.protocol.flow import Window
from aqueduct.protocol.scheduling import BlockedSenders
from aqueduct.protocol.timers import Timers
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import Dequeued
from tests.protocol.wires import GIVE_RECEIVER, WIDE, RawPeer, client_core

TIMEOUT = Config().starvation_timeout


def line(limit: int, outstanding: int, **sizes: int) -> tuple[BlockedSenders, Window, Timers]:
    """Return channels that wait to send: a letter and the channel's number, and the size."""
    window, timers = Window(limit), Timers()
    window.outstanding = outstanding
    blocked = BlockedSenders(window, timers, TIMEOUT)
    for name, size in sizes.items():
        blocked.wait(int(name[1:]), size)
    return blocked, window, timers


def test_a_message_that_does_not_fit_is_passed_over() -> None:
    blocked, _, _ = line(100, 50, c1=80, c2=30, c3=60, c4=50)
    assert blocked.next(0.0) == [2, 4]


def test_a_passed_over_message_gets_priority_by_turns() -> None:
    blocked, window, timers = line(100, 50, c1=80, c2=30)
    assert blocked.next(7.0) == [2]
    assert timers.next() == 7.0 + TIMEOUT
    assert blocked.next(7.0 + 0.9 * TIMEOUT) == [2]
    timers.due(7.0 + TIMEOUT)
    assert blocked.next(7.0 + TIMEOUT) == []
    assert timers.next() == 7.0 + 2 * TIMEOUT
    assert blocked.next(7.0 + 1.9 * TIMEOUT) == []
    assert blocked.next(7.0 + 2 * TIMEOUT) == [2]
    assert blocked.next(7.0 + 3 * TIMEOUT) == []
    window.outstanding = 20
    assert blocked.next(7.0 + 3 * TIMEOUT) == [1, 2]


def test_a_sender_that_waits_alone_needs_no_timer() -> None:
    blocked, _, timers = line(100, 50, c1=80)
    assert blocked.next(0.0) == []
    assert timers.next() is None


def test_a_message_in_the_reserve_of_its_channel_does_not_wait() -> None:
    """AQ-FLOW-10."""
    window = Window(100, reserve=20, pool=30)
    window.add(120, 20)
    blocked = BlockedSenders(window, Timers(), TIMEOUT)
    blocked.wait(1, 50)
    blocked.wait(2, 20, 20)
    assert blocked.next(0.0) == []  # 10 bytes of it would count
    window.remove(20, 20)
    assert blocked.next(0.0) == [2]
    blocked.wait(2, 20)
    assert blocked.next(0.0) == []
    blocked.leave(2)
    window.remove(50, 0)
    assert blocked.next(0.0) == [1]


def test_a_sender_that_left_gets_no_priority() -> None:
    blocked, _, _ = line(100, 50, c1=80, c3=70, c2=30)
    assert blocked.next(0.0) == [2]
    blocked.leave(1)
    assert blocked.next(TIMEOUT) == [2]  # now behind the third, since this moment
    assert blocked.next(2 * TIMEOUT) == []


def test_a_smaller_message_that_waits_later_is_woken() -> None:
    blocked, _, _ = line(100, 50, c1=80, c2=70)
    assert blocked.next(0.0) == []
    blocked.wait(3, 50)
    assert blocked.next(0.0) == [3]


def blocked() -> tuple[RawPeer, int, int]:
    """Return a client with 10 of 100 bytes left in its connection window, and two channels."""
    peer = client_core(limits=replace(WIDE, connection_window=100))
    attach = [GIVE_RECEIVER] * 2
    large, small = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach).channels
    peer.core.send(ENTRYPOINT, b"x" * 86, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(large, b"x" * 90, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(small, b"x" * 20, peer.now)
    return peer, large, small


def test_a_waiting_large_message_does_not_block_a_small_one() -> None:
    peer, _, small = blocked()
    peer.routed(ENTRYPOINT, Dequeued(40))
    assert peer.events() == [Writable(small)]


def test_a_large_message_does_not_starve_among_small_ones() -> None:
    peer, large, small = blocked()
    stream = peer.routed(ENTRYPOINT, Dequeued(40))
    seen = peer.events()
    peer.core.send(small, b"x" * 49, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(small, b"x" * 20, peer.now)
    answers = peer.routed(small, Dequeued(20))
    assert (seen, peer.events()) == ([Writable(small)], [Writable(small)])
    with pytest.raises(WouldBlock):
        peer.core.send(small, b"x" * 22, peer.now)
    peer.wait(1.1 * TIMEOUT)
    peer.more(answers, Dequeued(29))
    assert peer.events() == []
    peer.more(stream, Dequeued(46))
    assert peer.events() == [Writable(large), Writable(small)]


def test_a_blocked_sender_is_passed_over_again_after_the_timeout() -> None:
    peer, _, small = blocked()
    peer.wait(0.0)
    stream = peer.routed(ENTRYPOINT, Dequeued(11))
    assert peer.events() == [Writable(small)]
    peer.wait(1.1 * TIMEOUT)
    with pytest.raises(WouldBlock):
        peer.core.send(small, b"x" * 22, peer.now)
    peer.more(stream, Dequeued(10))
    assert peer.events() == []
    peer.wait(TIMEOUT)
    assert peer.events() == [Writable(small)]


def test_a_message_that_is_given_up_leaves_the_queue() -> None:
    peer, large, small = blocked()
    assert peer.core.give_up(large)
    assert not peer.core.give_up(large)
    assert not peer.core.give_up(12345)
    peer.routed(ENTRYPOINT, Dequeued(86))
    assert peer.events() == [Writable(small)]


def test_a_sent_message_does_not_block_another_of_its_channel() -> None:
    peer, large, _ = blocked()
    peer.core.send(large, b"x" * 5, peer.now)
    peer.routed(ENTRYPOINT, Dequeued(86))
    assert Writable(large) in peer.events()
