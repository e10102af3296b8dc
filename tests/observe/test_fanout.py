"""Several observers of a connection: each hears everything, and one that raises is detached."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aqueduct.observe.base import NullObserver, ObservedConnection, Observer, ObserverFactory
from aqueduct.observe.fanout import FanOut, observe
from tests.observe.contract import CallLog
from tests.observe.trace.recorded import Conversation

CONNECTION = ObservedConnection("c0de", "client", ("127.0.0.1", 4433))


class Raising(NullObserver):
    def datagram_read(self, data: bytes) -> None:
        raise RuntimeError("planted")

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        raise RuntimeError("planted")


def test_every_observer_gets_every_call() -> None:
    first, second = CallLog(), CallLog()
    both = FanOut([first, second])
    both.stream_written(2, b"data", True)
    both.receiver_closed(4)
    assert first.calls == second.calls
    assert first.calls == [("stream_written", 2, b"data", True), ("receiver_closed", 4)]


def test_an_observer_that_raises_is_detached_and_the_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    last = CallLog()
    all_of_them = FanOut([Raising(), last])
    with caplog.at_level(logging.ERROR, "aqueduct.observe"):
        all_of_them.datagram_read(b"one")
        all_of_them.datagram_read(b"two")
    assert last.calls == [("datagram_read", b"one"), ("datagram_read", b"two")]
    assert all_of_them.observers == (last,)
    assert len(caplog.records) == 1


def test_a_factory_may_leave_a_connection_unobserved() -> None:
    assert observe(CONNECTION, [lambda _: None]) is None


def test_a_factory_that_raises_is_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def fail(connection: ObservedConnection) -> Observer:
        raise RuntimeError("planted")

    log = CallLog()
    with caplog.at_level(logging.ERROR, "aqueduct.observe"):
        made = observe(CONNECTION, [fail, lambda _: log])
    assert made is not None
    assert made.observers == (log,)
    assert "planted" in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1:0", "memory://"])
def test_a_connection_survives_its_observers(address: str) -> None:
    """Users pass factories to ``connect`` and ``serve``; each side makes an observer of its own."""
    seen: list[ObservedConnection] = []
    logs: list[CallLog] = []

    def log(connection: ObservedConnection) -> CallLog:
        seen.append(connection)
        logs.append(CallLog())
        return logs[-1]

    observers: list[ObserverFactory] = [lambda _: Raising(), log]
    asyncio.run(Conversation(None, None, address, observers).play())
    assert sorted(one.side for one in seen) == ["client", "server"]
    assert len({one.id for one in seen}) == 1
    for each in logs:
        assert len([call for call in each.calls if call[0] == "stream_read"]) > 1
