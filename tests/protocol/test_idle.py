"""The memory and time that idle channels cost."""

import gc
import tracemalloc
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import Attach
from aqueduct.wire.chanid import ENTRYPOINT
from tests.protocol.wires import GIVE_RECEIVER, GIVE_SENDER, HUGE, WIDE, Pair, payloads

ROOMY = Config(limits=WIDE, max_streams=HUGE)
ALLOWED = 1536
"""Bytes that an idle channel may cost each side."""


class Cost(NamedTuple):
    creator: float
    peer: float


def batches(count: int, size: int = 250) -> Iterator[int]:
    while count > 0:
        yield min(count, size)
        count -= size


def fill(pair: Pair, count: int, attach: Attach, *, used: bool) -> None:
    """Make channels whose handles both applications hold, each used once or never."""
    sender, receiver = (
        (pair.client, pair.server) if attach is GIVE_RECEIVER else (pair.server, pair.client)
    )
    for size in batches(count):
        channels = [
            pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=[attach]).channels[0]
            for _ in range(size)
        ]
        pair.run()
        assert len(pair.server.take(ENTRYPOINT, size, pair.now)) == size
        if used:
            for channel in channels:
                sender.send(channel, b"hello", pair.now)
            pair.run()
            for channel in channels:
                assert payloads(receiver.take(channel, 1, pair.now)) == [b"hello"]
        pair.wait(0.1)
        pair.forget_events()


def cost_of_idle_channels(count: int, attach: Attach, *, used: bool) -> Cost:
    """Return the bytes per channel at its creator, the client, and at its peer, the server."""
    pair = Pair(ROOMY, ROOMY)
    gc.collect()
    tracemalloc.start()
    try:
        fill(pair, count, attach, used=used)
        gc.collect()
        both = tracemalloc.get_traced_memory()[0]
        assert pair.client.channel_count == pair.server.channel_count == count + 1
        del pair.server, pair.to_client, pair.to_server
        gc.collect()
        creator = tracemalloc.get_traced_memory()[0]
        assert pair.client.channel_count == count + 1
    finally:
        tracemalloc.stop()
    return Cost(creator / count, (both - creator) / count)


@pytest.mark.slow
@pytest.mark.parametrize("used", [False, True], ids=["never used", "used once"])
@pytest.mark.parametrize("attach", [GIVE_RECEIVER, GIVE_SENDER], ids=["there", "back"])
def test_an_idle_channel_is_cheap(attach: Attach, used: bool) -> None:
    """100,000 idle channels on one connection take 150 MB at most."""
    cost = cost_of_idle_channels(3_000, attach, used=used)
    assert 100 < cost.creator <= ALLOWED
    assert 100 < cost.peer <= ALLOWED


@pytest.mark.slow
def test_the_cost_of_a_channel_does_not_grow_with_their_number() -> None:
    few = cost_of_idle_channels(500, GIVE_RECEIVER, used=True)
    many = cost_of_idle_channels(4_000, GIVE_RECEIVER, used=True)
    assert many.creator < 1.25 * few.creator
    assert many.peer < 1.25 * few.peer
