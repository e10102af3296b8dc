"""Tests of the pair of cores that other tests are built on."""

from __future__ import annotations

import pytest

from aqueduct.errors import ChannelClosed, CloseCode
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.events import ConnectionEnded, Delivered, End, PeerHeaders, SenderEnded
from aqueduct.testing import Faults, Pair
from aqueduct.testing.endpoint import CoreFailed
from aqueduct.testing.record import CommandCalled, CoreFault, MessageSent, MessageTaken, SendFailed
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import MessageFrame


def test_a_message_arrives() -> None:
    pair = Pair(seed=1, loss=0.0, delay=0.01)
    pair.run(1)
    pair.client.send(ENTRYPOINT, b"hello")
    pair.run_until_idle()
    assert [message.payload for message in pair.server.take(ENTRYPOINT)] == [b"hello"]
    assert pair.client.events_of(Delivered)


def test_a_pair_ends_without_leftovers_or_violations() -> None:
    pair = Pair(loss=0.3, jitter=0.2)
    pair.client.send(ENTRYPOINT, b"early")
    pair.client.finish(ENTRYPOINT)
    pair.run_until_idle()
    pair.server.take(ENTRYPOINT)
    assert pair.run_until_idle()
    pair.record.drained = True
    assert pair.leftovers() == []
    assert pair.violations() == []
    assert pair.client.events_of(SenderEnded) == [SenderEnded(ENTRYPOINT, End.FINISHED)]


def test_time_advances_only_in_run() -> None:
    pair = Pair(delay=0.5)
    assert pair.now == 0.0
    pair.run(0.4)
    assert pair.server.events == []
    pair.run(0.2)
    assert pair.server.events_of(PeerHeaders)
    assert pair.now == pytest.approx(0.6)


def test_a_test_can_accept_the_client_itself() -> None:
    pair = Pair(accept=False, headers=((b"who", b"me"),))
    pair.run(1)
    (headers,) = pair.server.events_of(PeerHeaders)
    assert headers.headers == ((b"who", b"me"),)
    pair.server.refuse(CloseCode.REFUSED, "go away")
    pair.run(1)
    (ended,) = pair.client.events_of(ConnectionEnded)
    assert ended.by_peer
    assert ended.code == CloseCode.REFUSED


def test_frames_can_be_looked_up_by_side_and_kind() -> None:
    pair = Pair()
    pair.client.send(ENTRYPOINT, b"x")
    pair.run(1)
    (sent,) = pair.sent(Side.CLIENT, MessageFrame)
    assert sent.channel == ENTRYPOINT
    assert pair.sent(Side.SERVER, MessageFrame) == []


def test_the_record_has_the_actions_of_the_applications() -> None:
    pair = Pair()
    pair.run(1)
    pair.client.send_message(ENTRYPOINT, b"x", attach=[Attach(Give.SENDER)])
    pair.run(1)
    pair.server.take(ENTRYPOINT)
    pair.client.finish(ENTRYPOINT)
    with pytest.raises(ChannelClosed):
        pair.client.send(ENTRYPOINT, b"too late")
    kinds = [type(entry) for entry in pair.record.entries]
    assert {MessageSent, MessageTaken, CommandCalled, SendFailed} <= set(kinds)


def test_the_record_has_the_number_space_of_each_message() -> None:
    pair = Pair()
    pair.run(1)
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    pair.client.send(ENTRYPOINT, b"small")
    pair.client.send(ENTRYPOINT, b"x" * 5000)
    sent = [entry for entry in pair.record.entries if isinstance(entry, MessageSent)]
    assert [(entry.number, entry.reliable) for entry in sent] == [(0, False), (0, True)]


def test_limits_of_both_sides_can_be_set() -> None:
    small = Config(limits=Limits(channel_window=100))
    pair = Pair(server=small)
    assert pair.record.limits == (Limits(), small.limits)


def test_faults_can_be_turned_off() -> None:
    pair = Pair(faults=Faults(delay=0.5, loss=0.4, jitter=1.0))
    pair.calm()
    assert pair.network.faults.loss == 0.0
    assert pair.network.faults.delay <= 0.02


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[str]:
        pair = Pair(seed=5, loss=0.3, jitter=0.3)
        pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
        for number in range(20):
            pair.client.send(ENTRYPOINT, bytes([number]))
            pair.run(0.1)
        return [repr(entry) for entry in pair.record.entries]

    assert run() == run()


def test_an_undocumented_error_of_the_core_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()

    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(pair.client.core, "finish", broken, raising=True)
    with pytest.raises(CoreFailed):
        pair.client.finish(ENTRYPOINT)
    assert any(isinstance(entry, CoreFault) for entry in pair.record.entries)
