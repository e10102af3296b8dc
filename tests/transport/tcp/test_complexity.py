"""The work of an engine grows with the messages, and not with the channels beside them."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.wire.chanid import ENTRYPOINT
from tests.transport.tcp.test_engine import End, exchange, joined


def run(client: End, server: End, rounds: int) -> None:
    for _ in range(rounds):
        exchange(client, server, 0.001)
        for end in (client, server):
            due = end.engine.next_timer()
            if due is not None and due <= end.now:
                end.engine.handle_timer(end.now)


def calls_per_message(channels: int, mode: Mode) -> float:
    """Return the calls of functions, on both sides, for one message on each of many channels."""
    client, server = joined()
    opened = []
    for number in range(channels):
        attach = [Attach(Give.RECEIVER, mode=mode)]
        sent = client.core.send_message(ENTRYPOINT, b"", client.now, attach=attach)
        opened.append(sent.channels[0])
        if number % 50 == 0:
            run(client, server, 1)
            server.core.take(ENTRYPOINT, 1_000, server.now)
    run(client, server, 50)
    server.core.take(ENTRYPOINT, channels, server.now)
    run(client, server, 50)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for channel in opened:
            client.core.send(channel, b"x" * 100, client.now)
        run(client, server, channels // 100 + 10)
        received = [server.core.take(channel, 100, server.now) for channel in opened]
    finally:
        sys.setprofile(None)
    assert [len(messages) for messages in received] == [1] * channels
    return calls / channels


@pytest.mark.parametrize("mode", [Mode.ORDERED, Mode.UNORDERED])
def test_a_message_costs_the_same_beside_many_channels(mode: Mode) -> None:
    few, many = calls_per_message(200, mode), calls_per_message(1_600, mode)
    assert many < 1.3 * few, (few, many)
