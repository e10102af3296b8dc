"""What a peer can make QUIC hold is bounded."""

from __future__ import annotations

from typing import Any, cast

from aqueduct.errors import CloseCode
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import ConnectionEnded
from aqueduct.transport.quic.costs import Unacknowledged, least_head
from aqueduct.transport.quic.engine import Engine
from aqueduct.wire.chanid import Side


class FakeQuic:
    """A QUIC connection that holds a given number of packets."""

    def __init__(self) -> None:
        self.held = self.looks = self.pings = 0
        self.bytes_in_flight = 0

    def unacknowledged(self) -> int:
        self.looks += 1
        return self.held

    def send_ping(self, _: int) -> None:
        self.pings += 1


def unacknowledged(side: Side, **limits: Any) -> tuple[FakeQuic, ConnectionCore, Unacknowledged]:
    quic = FakeQuic()
    core = ConnectionCore(side, Config(**limits))
    return quic, core, Unacknowledged(core, cast(Engine, quic))


def test_a_peer_that_never_acknowledges_gets_a_ping_and_is_then_closed() -> None:
    """AQ-COST-2."""
    quic, core, found = unacknowledged(Side.CLIENT, max_unacknowledged=8_000)
    for quic.held in (1_999, 2_000, 2_001, 5_000):
        found.add_packets(1_024, 0.0)
    assert (quic.pings, core.has_ended) == (1, False)
    quic.held = 1_000
    found.add_packets(1_024, 0.0)
    quic.held = 8_000
    assert found.add_packets(1_024, 0.0)
    assert (quic.pings, core.has_ended) == (2, False)
    quic.held = 8_001
    assert found.add_packets(1_024, 0.0)
    (ended,) = [event for event in core.poll_events() if isinstance(event, ConnectionEnded)]
    assert (ended.code, ended.reason[:9]) == (CloseCode.LIMIT_EXCEEDED, "AQ-COST-2")


def test_the_limit_is_lower_before_acceptance() -> None:
    """AQ-COST-2."""
    quic, core, found = unacknowledged(Side.SERVER, max_early_unacknowledged=100)
    quic.held = 101
    found.add_packets(1_024, 0.0)
    assert core.has_ended


def test_held_packets_are_rarely_counted() -> None:
    """AQ-COST-2: counting takes linear time."""
    quic, _, found = unacknowledged(Side.CLIENT, max_unacknowledged=8_000)
    for _ in range(10_240):
        found.add_packets(1, 0.0)
    assert quic.looks == 10


def test_this_side_stops_sending_at_half_of_the_limit() -> None:
    """AQ-COST-2: so that only a peer can reach the limit."""
    quic, _, found = unacknowledged(Side.CLIENT, max_unacknowledged=8_000)
    assert not found.is_full
    quic.held, quic.bytes_in_flight = 4_000, 80_000
    found.add_packets(1_024, 10.0)
    for _ in range(100):
        found.recount(10.05)
        assert found.is_full
    assert quic.looks == 1, "nothing was acknowledged"
    found.recount(10.1)
    assert quic.looks == 2, "acks are not in flight and may have been acknowledged"
    quic.held, quic.bytes_in_flight = 3_000, 60_000
    found.recount(10.1)
    assert [found.is_full] == [False]


def test_the_head_of_a_frame_grows_with_its_stream_number() -> None:
    assert [least_head(stream) for stream in (0, 63, 64, 1 << 14, 1 << 30)] == [2, 2, 3, 5, 9]
