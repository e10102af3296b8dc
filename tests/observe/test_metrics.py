"""Counters of connections: what a conversation of known size counts, as Prometheus text."""

from __future__ import annotations

import msgspec

import aqueduct
from aqueduct import Receiver
from aqueduct.observe import ConnectionMetrics, ObservedConnection
from aqueduct.protocol.events import Undelivered


class Carrier(msgspec.Struct):
    numbers: Receiver[bytes]


async def test_messages_and_connections_are_counted_by_side() -> None:
    metrics = ConnectionMetrics()
    async with (
        aqueduct.serve("memory://", tls=aqueduct.dev_tls(), observers=[metrics]) as server,
        aqueduct.connect(
            server.address, trust=aqueduct.dev_trust(), observers=[metrics]
        ) as connection,
    ):
        accepted = await server.accept()
        assert accepted is not None
        for _ in range(3):
            await connection.entrypoint.send(b"payload")
        for _ in range(3):
            await accepted.entrypoint.receive()
        await connection.entrypoint.flush()
    lines = metrics.text().splitlines()
    assert 'aqueduct_connections_total{side="client"} 1' in lines
    assert 'aqueduct_connections_total{side="server"} 1' in lines
    assert 'aqueduct_messages_received_total{side="server"} 3' in lines
    assert 'aqueduct_messages_delivered_total{side="client",reliable="true"} 3' in lines
    assert 'aqueduct_connections_ended_total{side="client",code="0x0"} 1' in lines


async def test_channels_are_counted_where_they_are_created() -> None:
    metrics = ConnectionMetrics()
    async with (
        aqueduct.serve("memory://", Carrier, tls=aqueduct.dev_tls(), observers=[metrics]) as server,
        aqueduct.connect(
            server.address, Carrier, trust=aqueduct.dev_trust(), observers=[metrics]
        ) as connection,
    ):
        tx, rx = aqueduct.channel(bytes)
        await connection.entrypoint.send(Carrier(rx))
        tx.finish()
    lines = metrics.text().splitlines()
    assert 'aqueduct_channels_total{side="client"} 1' in lines
    assert not any(line.startswith('aqueduct_channels_total{side="server"') for line in lines)


def test_losses_are_counted_by_reliability() -> None:
    metrics = ConnectionMetrics()
    observer = metrics(ObservedConnection("c0de", "client", ("127.0.0.1", 4433)))
    observer.events_raised([Undelivered(4, False, ((0, 2), (5, 6)))], {})
    expected = 'aqueduct_messages_lost_total{side="client",reliable="false"} 3'
    assert expected in metrics.text().splitlines()


def test_text_names_and_explains_every_counter() -> None:
    text = ConnectionMetrics().text()
    assert text.count("# HELP") == text.count("# TYPE") == 8
    assert text.endswith("\n")
