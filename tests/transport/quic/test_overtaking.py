"""Urgent things overtake bulk that waits for real QUIC, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aqueduct.errors import WouldBlock
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.priorities import CLASSES
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.testing.record import FrameArrived
from aqueduct.wire.frames import CancelSender, Frame, MessageFrame
from tests.transport.quic.test_bridge import network, open_senders, real_pair

DELAY = 0.01
BULK = bytes(900_000)


def arrivals(pair: Pair, channel: int, kind: type[Frame]) -> list[float]:
    """Return when frames of a channel arrived whole."""
    return [
        entry.time
        for entry in pair.record.entries
        if isinstance(entry, FrameArrived)
        and isinstance(entry.sent.frame, kind)
        and entry.sent.channel == channel
    ]


def saturate(pair: Pair, channels: list[int]) -> float:
    """Let bulk wait on all these channels; return when nothing more of it fits."""
    for channel in channels:
        pair.client.send(channel, BULK)
        with pytest.raises(WouldBlock):
            pair.client.send(channel, BULK)
    pair.run(4 * DELAY)
    assert sum(len(arrivals(pair, channel, MessageFrame)) for channel in channels) == 0
    return pair.clock.now


def send(pair: Pair, channel: int) -> type[Frame]:
    pair.client.send(channel, b"small")
    return MessageFrame


def cancel(pair: Pair, channel: int) -> type[Frame]:
    pair.client.cancel(channel)
    return CancelSender


@pytest.mark.parametrize(
    ("act", "mode"),
    [(send, Mode.ORDERED), (send, Mode.UNORDERED), (send, Mode.UNRELIABLE), (cancel, Mode.ORDERED)],
)
@pytest.mark.parametrize("priority", [1, 4])
def test_what_is_small_does_not_wait_for_the_bulk_of_other_channels(
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Pair, int], type[Frame]],
    mode: Mode,
    priority: int,
) -> None:
    """AQ-PRIO-2, AQ-PRIO-3: with the class of the bulk it waits for a turn of each channel."""
    pair = real_pair(monkeypatch)
    network(pair).faults = Faults(delay=DELAY)
    *bulk, small = open_senders(pair, Mode.ORDERED, 5)
    pair.client.set_mode(small, mode)
    pair.client.core.set_priority(small, priority)
    began = saturate(pair, bulk)
    kind = act(pair, small)
    while not arrivals(pair, small, kind):
        pair.run(0.001)
    (arrived,) = arrivals(pair, small, kind)
    # Half a round trip, and at most one more until the congestion window has room again.
    assert arrived - began < 4 * DELAY
    assert sum(len(arrivals(pair, channel, MessageFrame)) for channel in bulk) == 0


def test_bulk_arrives_by_class_and_the_least_urgent_does_not_starve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-PRIO-3, AQ-PRIO-4."""
    pair = real_pair(monkeypatch)
    network(pair).faults = Faults(delay=DELAY)
    least, middle, most = open_senders(pair, Mode.ORDERED, 3)
    for channel, priority in ((least, CLASSES - 1), (middle, 4), (most, 0)):
        pair.client.core.set_priority(channel, priority)
        for _ in range(20):
            pair.client.send(channel, bytes(40_000))
    pair.run(5)
    times = {each: arrivals(pair, each, MessageFrame) for each in (most, middle, least)}
    assert [len(each) for each in times.values()] == [20, 20, 20]
    assert times[most][-1] < times[middle][-1] < times[least][-1]
    assert times[most][-1] < times[middle][4]
    # One turn in each 16 for those that wait: 57 of the 800 kB of the most urgent.
    assert times[middle][0] < times[most][-1]
    assert times[least][0] < times[most][-1]
