"""Real QUIC over a bad network: loss, outages, a new address, and channels lost in transit."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

import aqueduct
from aqueduct import DELIVERED, LOST, ChannelLostInTransit, Mode, channel, oneshot
from aqueduct.testing.relay import Direction, Impairments, Relay
from aqueduct.transport.quic.endpoint import destination_id
from aqueduct.transport.udp import Packet
from tests.processes.lab import Ask, Bag, Bags, Collect, Keep, Produce, Report, Request, numbered
from tests.processes.peers import (
    Peer,
    bounded,
    connect,
    eventually,
    lab,
    play,
    send_until_error,
)
from tests.transport.quic.inside import transport_of

SMALL = aqueduct.QuicSettings(max_packet=1_200, idle_timeout=10)


@bounded
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    "weather",
    [
        Impairments(loss=0.1, delay=0.002),
        Impairments(delay=0.002, jitter=0.01, reorder=0.2),
        Impairments(delay=0.001, duplicate=0.3),
    ],
    ids=["loss", "reordering", "duplication"],
)
async def test_every_mode_keeps_its_guarantees_on_a_bad_network(
    mode: Mode, weather: Impairments
) -> None:
    async def scenario(server: Peer, seed: int) -> None:
        async with (
            Relay(server.address, seed=seed) as relay,
            connect(relay.address, Request, options=SMALL) as connection,
        ):
            sender, receiver = channel(mode=mode)
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Collect(receiver, report))
            relay.impairments = weather
            receipts = [await sender.send(numbered(n, 300), receipt=True) for n in range(300)]
            sender.finish()
            result = await answer.receive()
            outcomes = [await receipt for receipt in receipts if receipt is not None]
            assert result.ended == "EndOfChannel"
            assert result.count == outcomes.count(DELIVERED)
            if mode is not Mode.UNRELIABLE:
                assert result.count == 300
            if mode is Mode.ORDERED:
                assert result.in_order
            if mode is Mode.UNRELIABLE and weather.loss:
                assert LOST in outcomes

    await play(scenario, "--max-packet", "1200")


@bounded
async def test_the_handshake_survives_loss() -> None:
    for first in range(0, 50, 10):

        async def scenario(server: Peer, seed: int, first: int = first) -> None:
            weather = Impairments(loss=0.1, delay=0.002)
            async with (
                Relay(server.address, weather, seed=first + seed) as relay,
                connect(relay.address, Request) as connection,
            ):
                assert await connection.entrypoint.call(Ask, text="hi") == "HI"

        await play(scenario)


@bounded
async def test_only_the_channel_of_a_lost_carrier_is_lost_in_transit() -> None:
    async def scenario(server: Peer, seed: int) -> None:
        async with (
            Relay(server.address, Impairments(delay=0.002)) as relay,
            connect(relay.address, Request) as connection,
        ):
            bags, source = channel(Bag, mode=Mode.UNRELIABLE)
            seen_in, seen = channel(tuple[int, bytes])
            await connection.entrypoint.send(Bags(source, seen_in))
            await bags.send(Bag(0, with_content(b"zero")))
            assert await seen.receive() == (0, b"zero")

            content_in, content = channel()
            relay.blackout(directions=(Direction.UP,))
            receipt = await bags.send(Bag(1, content), receipt=True)
            await until_lost(relay)

            assert receipt is not None
            assert await receipt is LOST
            with pytest.raises(ChannelLostInTransit) as caught:
                await send_until_error(content_in, b"into the void", pause=0.01)
            assert caught.value.channel is not None
            with pytest.raises(ChannelLostInTransit):
                await content_in.flush()
            await bags.send(Bag(2, with_content(b"two")))
            assert await seen.receive() == (2, b"two")
            bags.finish()
            with pytest.raises(aqueduct.EndOfChannel):
                await seen.receive()

    await play(scenario)


async def until_lost(relay: Relay) -> None:
    """Wait until a packet is lost, and then let packets pass again."""
    before = relay.counts[Direction.UP].lost
    await eventually(lambda: relay.counts[Direction.UP].lost > before, "a packet is lost")
    await asyncio.sleep(0.02)
    relay.end_blackout()


def with_content(payload: bytes) -> aqueduct.Receiver[bytes]:
    sender, receiver = channel()
    sender.send_nowait(payload)
    sender.finish()
    return receiver


@bounded
async def test_descendants_of_a_lost_channel_are_lost_with_their_lineage() -> None:
    async def scenario(server: Peer, seed: int) -> None:
        async with (
            Relay(server.address, Impairments(delay=0.002)) as relay,
            connect(relay.address, Request) as connection,
        ):
            bags, source = channel(Bag, mode=Mode.UNRELIABLE)
            seen_in, seen = channel(tuple[int, bytes])
            await connection.entrypoint.send(Bags(source, seen_in))
            await bags.flush()
            relay.blackout(directions=(Direction.UP,))
            # A reply that would come on a channel inside the lost message, two levels below.
            outer_in, outer = channel(Bag)
            inner_in, inner = channel()
            await bags.send(Bag(1, cast(Any, outer)))
            await outer_in.send(Bag(2, inner))
            await until_lost(relay)
            with pytest.raises(ChannelLostInTransit):
                await outer_in.flush()
            with pytest.raises(ChannelLostInTransit) as caught:
                await inner_in.send(b"x")
            assert len(caught.value.lineage) >= 1
            bags.finish()
            with pytest.raises(aqueduct.EndOfChannel):
                await seen.receive()

    await play(scenario)


@bounded
async def test_under_constant_loss_each_carrier_is_either_read_or_lost() -> None:
    async def scenario(server: Peer, seed: int) -> None:
        async with (
            Relay(server.address, Impairments(delay=0.002), seed=seed) as relay,
            connect(relay.address, Request) as connection,
        ):
            bags, source = channel(Bag, mode=Mode.UNRELIABLE)
            seen_in, seen = channel(tuple[int, bytes])
            await connection.entrypoint.send(Bags(source, seen_in))
            await connection.entrypoint.flush()
            relay.impairments = Impairments(loss=0.2, delay=0.002)
            receipts = {}
            for number in range(60):
                receipts[number] = await bags.send(
                    Bag(number, with_content(b"%d" % number)), receipt=True
                )
                await asyncio.sleep(0.005)
            bags.finish()
            arrived = {number: content async for number, content in seen}
            outcomes = {number: await receipt for number, receipt in receipts.items()}  # type: ignore[misc]
            assert LOST in outcomes.values()
            assert arrived == {n: b"%d" % n for n, how in outcomes.items() if how is DELIVERED}

    await play(scenario)


@bounded
async def test_a_connection_survives_an_outage() -> None:
    async def scenario(server: Peer, seed: int) -> None:
        async with (
            Relay(server.address, Impairments(delay=0.002)) as relay,
            connect(relay.address, Request) as connection,
        ):
            sender, receiver = channel()
            sink, source = channel()
            await connection.entrypoint.send(Keep(receiver, sink))
            await sender.send(b"before")
            assert await source.receive() == b"before"
            relay.blackout(1.0)
            for number in range(50):
                await sender.send(numbered(number, 1000))
            for number in range(50):
                assert await source.receive() == numbered(number, 1000)
            sender.finish()
            assert [payload async for payload in source] == []
            assert relay.counts[Direction.UP].lost > 0

    await play(scenario)


@bounded
async def test_a_connection_survives_a_new_address_busy_and_idle() -> None:
    async def scenario(server: Peer, seed: int) -> None:
        async with (
            Relay(server.address, Impairments(delay=0.002)) as relay,
            connect(relay.address, Request) as connection,
        ):
            sink, source = channel()
            report, outcome = oneshot(str)
            await connection.entrypoint.send(Produce(3000, 1000, "finish", sink, report))
            received = []
            async for payload in source:
                received.append(payload)
                if len(received) in (500, 1500):
                    relay.change_address()
            assert received == [numbered(number, 1000) for number in range(3000)]
            assert await outcome.receive() == "finish"
            relay.change_address()
            assert await connection.entrypoint.call(Ask, text="hi") == "HI"

    await play(scenario)


@bounded
async def test_a_permanent_outage_ends_the_connection() -> None:
    options = aqueduct.QuicSettings(idle_timeout=3.0, keep_alive=1.0)
    async with (
        lab("--idle", "3.0") as server,
        Relay(server.address) as relay,
        connect(relay.address, Request, options=options) as connection,
    ):
        assert await connection.entrypoint.call(Ask, text="hi") == "HI"
        await server.wait_for("connection")
        relay.blackout()
        with pytest.raises(aqueduct.ConnectionLost):
            await connection.entrypoint.call(Ask, text="hi")
        gone = await server.wait_for("gone")
        assert gone["by_peer"] is False


@bounded
async def test_keep_alive_keeps_an_idle_connection_open() -> None:
    options = aqueduct.QuicSettings(idle_timeout=2.0, keep_alive=0.5)
    async with (
        lab("--idle", "2.0") as server,
        connect(server.address, Request, options=options) as connection,
    ):
        await asyncio.sleep(3.0)
        assert await connection.entrypoint.call(Ask, text="hi") == "HI"


@bounded
async def test_connection_ids_may_change_during_a_transfer() -> None:
    async def scenario(server: Peer, seed: int) -> None:
        async with (
            Relay(server.address, Impairments(delay=0.001), seed=seed) as relay,
            connect(relay.address, Request) as connection,
        ):
            endpoint = transport_of(connection).endpoint
            send = endpoint.send
            seen: set[bytes] = set()

            def note_ids(packets: list[Packet]) -> None:
                seen.update(destination_id(data) for data, _ in packets)
                send(packets)

            endpoint.send = note_ids  # type: ignore[method-assign]
            sender, receiver = channel()
            sink, source = channel()
            await connection.entrypoint.send(Keep(receiver, sink))
            for number in range(60):
                await sender.send(numbered(number, 1000))
                if number % 5 == 0:
                    transport_of(connection).bridge.quic.change_connection_id()
                if number % 20 == 10:
                    relay.change_address()
                assert await source.receive() == numbered(number, 1000)
            sender.finish()
            assert [payload async for payload in source] == []
            assert len(seen) > 10

    await play(scenario)
