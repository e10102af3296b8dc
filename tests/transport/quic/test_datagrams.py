"""Datagrams are as large as the packets of the path allow, and never larger."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import aqueduct
from aqueduct.errors import CloseCode, WouldBlock
from aqueduct.observe import NullObserver
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.events import ConnectionEnded, Delivered, Undelivered
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.udp import Packet
from aqueduct.wire.chanid import ENTRYPOINT, Side
from tests.transport.quic.virtual import RealQuic

OVERHEAD = 22 + 8
"""Bytes of a packet besides the content of its only datagram; two more above 16,383."""


class Narrow(RealQuic):
    """A path that drops packets of the client over a size."""

    mtu = 65_527

    def _send(self, side: Side, packet: Packet) -> None:
        if side is Side.SERVER or len(packet[0]) <= self.mtu:
            super()._send(side, packet)


def narrow_pair(
    monkeypatch: pytest.MonkeyPatch, max_packet: int, mtu: int = 65_527
) -> tuple[Pair, Narrow]:
    class Network(Narrow):
        options = QuicSettings(max_packet=max_packet, idle_timeout=15)

    Network.mtu = mtu
    monkeypatch.setattr("aqueduct.testing.pair.FakeQuic", Network)
    pair = Pair(0, faults=Faults(delay=0.01))
    network: object = pair.network
    assert isinstance(network, Narrow)
    network.shake_hands()
    pair.run(0.5)
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    return pair, network


def bridge_of(network: RealQuic, side: Side) -> Bridge:
    bridge = network.bridges[side]
    assert bridge is not None
    return bridge


def numbers(pair: Pair, kind: type[Delivered] | type[Undelivered], *, reliable: bool) -> int:
    """Return how many messages of the client had this fate."""
    return sum(
        stop - start
        for event in pair.client.events_of(kind)
        if event.reliable is reliable
        for start, stop in event.ranges
    )


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("packet", [1_200, 1_452, 16_000, 16_410, 16_420, 60_000])
def test_the_largest_datagram_fills_a_packet(
    monkeypatch: pytest.MonkeyPatch, packet: int, side: Side
) -> None:
    """AQ-SEND-8."""
    pair, network = narrow_pair(monkeypatch, packet)
    bridge = bridge_of(network, side)
    limit = bridge.quic.datagram_limit()
    size: int = bridge.quic.core.active_path[5]  # type: ignore[union-attr]
    assert size >= packet  # discovery may have found more
    sent: list[int] = []
    monkeypatch.setattr(network, "_send", lambda _, packet: sent.append(len(packet[0])))
    bridge.quic.send_datagram_frame(bytes(limit))
    bridge.request_poll()
    pair.flush()
    assert sent == [size]


@pytest.mark.parametrize("packet", [1_452, 16_000, 60_000])
def test_qh3_sends_nothing_more_after_one_byte_too_many(
    monkeypatch: pytest.MonkeyPatch, packet: int
) -> None:
    """AQ-SEND-8: the limit is exact, and has to be."""
    pair, network = narrow_pair(monkeypatch, packet)
    bridge = bridge_of(network, Side.SERVER)
    sent: list[int] = []
    monkeypatch.setattr(network, "_send", lambda _, packet: sent.append(len(packet[0])))
    bridge.quic.send_datagram_frame(bytes(bridge.quic.datagram_limit() + 1))
    bridge.quic.send_ping(0)
    bridge.request_poll()
    pair.flush()
    assert sent == []


@pytest.mark.parametrize(("size", "reliable"), [(1_400, False), (1_422, True)])
def test_a_message_that_does_not_fit_goes_on_a_stream(
    monkeypatch: pytest.MonkeyPatch, size: int, reliable: bool
) -> None:
    """AQ-SEND-4, AQ-SEND-8."""
    pair, network = narrow_pair(monkeypatch, 1_452)
    assert bridge_of(network, Side.CLIENT).quic.datagram_limit() in (1_422, 1_442)
    pair.client.core.handle_datagram_limit(1_422)
    for _ in range(5):
        pair.client.send(ENTRYPOINT, bytes(size))
    pair.run(2.0)
    assert numbers(pair, Delivered, reliable=reliable) == 5
    assert numbers(pair, Delivered, reliable=not reliable) == 0


def test_a_datagram_that_no_longer_fits_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-SEND-8: its fate is told, and what follows arrives."""
    pair, network = narrow_pair(monkeypatch, 1_452)
    quic = bridge_of(network, Side.CLIENT).quic
    pair.client.send(ENTRYPOINT, bytes(1_400))
    monkeypatch.setattr(quic, "datagram_limit", lambda: 1_170)  # as on another path
    pair.run(2.0)
    assert numbers(pair, Undelivered, reliable=False) == 1
    pair.client.send(ENTRYPOINT, bytes(1_400))
    pair.client.send(ENTRYPOINT, bytes(1_100))
    pair.run(2.0)
    assert numbers(pair, Delivered, reliable=True) == 1
    assert numbers(pair, Delivered, reliable=False) == 1


@pytest.mark.parametrize("packet", [1_452, 16_000])
def test_a_path_that_takes_only_the_smallest_packets_carries_datagrams(
    monkeypatch: pytest.MonkeyPatch, packet: int
) -> None:
    """AQ-SEND-8: QUIC falls back when packets of its first flight are lost."""
    pair, network = narrow_pair(monkeypatch, packet, mtu=1_250)
    client = bridge_of(network, Side.CLIENT)
    assert client.quic.datagram_limit() == 1_200 - OVERHEAD
    for size in (100, 1_100, 1_300, 5_000):
        pair.client.send(ENTRYPOINT, bytes(size))
    pair.run(5.0)
    assert numbers(pair, Delivered, reliable=False) == 2
    assert numbers(pair, Delivered, reliable=True) == 2


class Sizes(NullObserver):
    """Notes the sizes of the datagrams that a side sends."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def datagram_written(self, data: bytes) -> None:
        self.sizes.append(len(data))


async def sizes_to(address: str, **more: Any) -> list[int]:
    """Return the sizes of the datagrams of a client that sends 50 messages of 1,000 bytes."""
    observer = Sizes()
    async with (
        asyncio.timeout(60),
        aqueduct.serve(address, tls=aqueduct.dev_tls(), **more) as server,
        aqueduct.connect(
            server.address, trust=aqueduct.dev_trust(), observers=[lambda _: observer], **more
        ) as client,
    ):
        client.entrypoint.mode = aqueduct.Mode.UNRELIABLE
        accepted = await server.accept()
        assert accepted is not None
        for _ in range(50):
            await client.entrypoint.send(bytes(1_000))
        await client.entrypoint.flush()
        async with accepted:
            pass
    return observer.sizes


async def test_on_loopback_datagrams_have_nearly_16_kb() -> None:
    """AQ-SEND-8: fifteen messages of 1,000 bytes and their heads."""
    assert 15_000 < max(await sizes_to("127.0.0.1:0")) <= 16_000 - OVERHEAD


@pytest.mark.parametrize("address", ["127.0.0.1:0", "memory://sizes"])
async def test_an_application_can_choose_smaller_datagrams(address: str) -> None:
    sizes = await sizes_to(address, delivery=aqueduct.Delivery(max_datagram=1_050))
    assert sizes == [1_008] * 50 or 1_000 < max(sizes) <= 1_050


@pytest.mark.parametrize("mode", list(Mode))
def test_a_path_that_loses_large_packets_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """AQ-CODE-4: otherwise pings would keep it open, and messages would wait for ever."""
    pair, network = narrow_pair(monkeypatch, 1_452)
    pair.client.set_mode(ENTRYPOINT, mode)
    for size in (100, 5_000):
        for _ in range(5):
            pair.client.send(ENTRYPOINT, bytes(size))
    pair.run(2.0)
    assert sum(numbers(pair, Delivered, reliable=which) for which in (True, False)) == 10
    network.mtu = 1_300
    for _ in range(20):
        pair.client.send(ENTRYPOINT, bytes(5_000))
    pair.run(45.0)
    (end,) = pair.client.events_of(ConnectionEnded)
    if end.by_peer:  # which had no ack either, because those share the large packets
        assert end.code == CloseCode.IDLE
    else:
        assert end.code == CloseCode.TRANSPORT
        assert end.reason.startswith("packets over 1,200 bytes no longer arrive")


def test_unreliable_messages_on_such_a_path_are_told_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-SEND-8."""
    pair, network = narrow_pair(monkeypatch, 1_452)
    network.mtu = 1_300
    for size in (1_000, 1_400):
        for _ in range(10):
            pair.client.send(ENTRYPOINT, bytes(size))
            pair.run(0.05)
    pair.run(2.0)
    assert numbers(pair, Delivered, reliable=False) == 10
    assert numbers(pair, Undelivered, reliable=False) == 10


@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_a_lossy_path_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    pair, network = narrow_pair(monkeypatch, 1_452)
    pair.client.set_mode(ENTRYPOINT, Mode.ORDERED)
    network.faults = Faults(delay=0.01, loss=loss)
    for _ in range(600):
        with suppress(WouldBlock):
            pair.client.send(ENTRYPOINT, bytes(1_500))
        pair.run(0.1)
        pair.server.take(ENTRYPOINT)
    assert not pair.client.events_of(ConnectionEnded)


def test_a_network_that_was_down_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its large datagrams are lost, and only small ones follow."""
    pair, network = narrow_pair(monkeypatch, 1_452)
    for size, faults in ((1_400, Faults(delay=0.01, loss=1.0)), (10, Faults(delay=0.01))):
        network.faults = faults
        for _ in range(80):
            pair.client.send(ENTRYPOINT, bytes(size))
            pair.run(0.1 if faults.loss else 1.0)
            pair.server.take(ENTRYPOINT)
    assert not pair.client.events_of(ConnectionEnded)
