"""FORGET_CHANNEL in answer to a ROUTE_TO: when, how often, and with how much memory."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import Attach, Give
from aqueduct.protocol.forgetting import Forgetting, expire
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.protocol.timers import Timers
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import AckReliable, CloseReceiver, FinishSender, ForgetChannel
from tests.protocol.wires import RawPeer, client_core, from_client, plain, server_core, to_client


def forgets(peer: RawPeer, channel: int) -> int:
    return peer.said_about(channel).count(ForgetChannel())


def ended(*, receiver: bool, config: Config | None = None) -> tuple[RawPeer, int]:
    """Return a client with a channel of its own creation that ended in good order."""
    peer = client_core(config)
    give = Attach(Give.SENDER if receiver else Give.RECEIVER)
    (channel,) = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[give]).channels
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)))
    if receiver:
        peer.routed(channel, plain(0, b"x"), FinishSender(1), fin=True)
        peer.core.take(channel, 9, peer.now)
    else:
        peer.core.finish(channel, peer.now)
        peer.routed(channel, CloseReceiver(), fin=True)
    peer.poll()
    assert peer.core.channel_count == 1
    return peer, channel


@pytest.mark.parametrize("receiver", [True, False])
@pytest.mark.parametrize("datagram", [True, False])
def test_a_ghost_is_forgotten_after_a_second_of_quiet(receiver: bool, datagram: bool) -> None:
    """AQ-ROUTE-5: neither at once nor never."""
    peer, channel = ended(receiver=receiver)
    if datagram:
        peer.datagram_to(channel, plain(0, b"ghost"))
    else:
        peer.routed(channel, plain(0, b"ghost"))
    peer.wait(0.99)
    assert forgets(peer, channel) == 0
    peer.wait(0.02)
    assert forgets(peer, channel) == 1
    (answer,) = [seen for seen in peer.about(channel) if ForgetChannel() in seen.about]
    assert (answer.about, answer.fin) == ([ForgetChannel()], True)  # AQ-STREAM-8
    peer.wait(60)
    assert forgets(peer, channel) == 1
    assert peer.core.next_timer() is None
    assert peer.core.channel_count == 1


def test_each_further_route_starts_the_second_again() -> None:
    """AQ-ROUTE-5."""
    peer, channel = ended(receiver=True)
    for _ in range(5):
        peer.datagram_to(channel, plain(0))
        peer.wait(0.7)
        assert forgets(peer, channel) == 0
    peer.wait(0.31)
    assert forgets(peer, channel) == 1


def test_a_peer_that_is_never_quiet_is_answered_after_five_seconds() -> None:
    """AQ-ROUTE-5, and at most once a second by AQ-FORGET-2."""
    peer, channel = ended(receiver=True)
    for at in range(150):
        peer.datagram_to(channel, plain(at))
        peer.wait(0.1)
        if at == 49:
            assert forgets(peer, channel) == 0
    assert 1 <= forgets(peer, channel) <= 3


def test_a_route_that_comes_after_the_answer_is_answered_again() -> None:
    """AQ-ROUTE-6: the ghost may be another one."""
    peer, channel = ended(receiver=False)
    for answers in range(1, 4):
        peer.routed(channel, fin=True)
        peer.wait(1.5)
        assert forgets(peer, channel) == answers


def test_a_route_to_a_lost_channel_within_the_second_is_answered_when_that_is_over() -> None:
    """AQ-ROUTE-6, AQ-FORGET-2: the draft waives only answers to what came before."""
    peer = client_core()
    lost = to_client(5)
    peer.routed(lost, fin=True)
    assert forgets(peer, lost) == 1  # AQ-ROUTE-3: at once
    peer.wait(0.4)
    peer.routed(lost, fin=True)
    peer.wait(0.59)
    assert forgets(peer, lost) == 1
    peer.wait(0.5)
    assert forgets(peer, lost) == 2
    peer.wait(60)
    assert forgets(peer, lost) == 2
    assert peer.core.next_timer() is None


def test_a_forget_that_is_sent_for_another_reason_answers_what_waits() -> None:
    """AQ-ROUTE-6: FORGET_CHANNEL is later than the ROUTE_TO."""
    peer = client_core()
    lost = to_client(5)
    peer.routed(lost, fin=True)
    peer.wait(0.5)
    peer.routed(lost, fin=True)
    peer.now += 0.6
    peer.routed(lost, fin=True)
    assert forgets(peer, lost) == 2
    peer.wait(60)
    assert forgets(peer, lost) == 2


def test_a_ghost_of_a_channel_whose_queue_is_untaken_is_forgotten_too() -> None:
    """AQ-ROUTE-5: the half has ended on the wire; the application has yet to take its queue."""
    peer = client_core()
    attach = [Attach(Give.SENDER)]
    (channel,) = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach).channels
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)))
    peer.routed(channel, plain(0, b"kept"), FinishSender(1), fin=True)
    peer.routed(channel, plain(0, b"ghost"), fin=True)
    peer.wait(1.1)
    assert forgets(peer, channel) == 1
    assert len(peer.core.take(channel, 9, peer.now)) == 1


def test_nothing_is_forgotten_for_channels_of_the_peer_or_for_the_entrypoint() -> None:
    """AQ-ROUTE-4, AQ-FRAME-20: only the creator forgets, and the entrypoint cannot be lost."""
    peer = server_core()
    peer.routed(from_client(1), FinishSender(0), fin=True)
    peer.core.close(ENTRYPOINT, peer.now)
    peer.wait(0.1)
    peer.said()
    for channel in (from_client(1), ENTRYPOINT):
        peer.routed(channel, plain(0))
    peer.wait(10)
    assert peer.said() == []
    client = client_core()
    client.core.finish(ENTRYPOINT, client.now)
    client.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    client.said()
    client.routed(ENTRYPOINT, fin=True)
    client.wait(10)
    assert client.said() == []


def test_answers_that_wait_are_bounded() -> None:
    """AQ-LIMIT-7: a ROUTE_TO past the bound is not answered, and ends nothing."""
    config = Config(max_forgets=8)
    out = Outgoing(config.max_datagram)
    timers = Timers()
    forgetting = Forgetting(config, out, timers)
    for round_ in range(3):
        for index in range(1_000):
            forgetting.answer(to_client(index), float(2 * round_), ended=True)
        assert len(out.poll()) == 0
        for sleeper in timers.due(2.0 * round_ + 1.0):
            sleeper.handle_timer(2.0 * round_ + 1.0)
        assert len(out.poll()) == 8
        assert timers.next() is None


def test_the_end_of_the_connection_ends_what_waits() -> None:
    """AQ-CONN-7."""
    peer, channel = ended(receiver=True)
    peer.routed(channel, fin=True)
    peer.core.handle_connection_lost(0, "", True, peer.now)
    assert peer.core.next_timer() is None


def test_only_old_entries_expire() -> None:
    times = OrderedDict({1: 0.0, 2: 1.0, 3: 1.0, 4: 2.0})
    expire(times, 1.0)
    assert times == {4: 2.0}
    expire(times, 5.0)
    assert times == {}
