"""A server under accepted clients that misbehave: floods, huge lengths, slow readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aqueduct
from aqueduct import channel, oneshot
from tests.hostile.attacks import MEGABYTE, SLOWEST, Attacker, attacker, siege
from tests.interop.frames import message, route_to, varint, version
from tests.processes.lab import Produce, Report, Request, Stall
from tests.processes.peers import bounded, connect

CLOSED_BY_LIMIT = (aqueduct.CloseCode.LIMIT_EXCEEDED, aqueduct.CloseCode.FLOW_CONTROL)


async def closed(rude: Attacker, seconds: float = SLOWEST) -> tuple[int, str]:
    """Return the code and reason with which the server closed the connection."""
    async with asyncio.timeout(seconds):
        await rude.connection.wait_closed()
    ended = rude.connection._driver.ended
    assert ended is not None
    assert ended.by_peer
    return ended.code, ended.reason


@bounded
async def test_slow_readers_cost_a_window_each() -> None:
    async with (
        siege("40 readers that do not read") as (server, watch),
        connect(server.address, Request) as connection,
    ):
        kept: list[Any] = []
        for _ in range(40):
            sink, source = channel()
            report, outcome = oneshot(str)
            await connection.entrypoint.send(Produce(1_000_000, 10_000, "finish", sink, report))
            kept += [source, outcome]
        await asyncio.sleep(2)
        watch.look()
        for half in kept:
            half.close()
    # One connection may have 16 MiB in flight, whatever its channels.
    assert watch.grown < 100 * MEGABYTE


@bounded
async def test_unread_senders_cost_a_window_each() -> None:
    async with (
        siege("40 senders to a reader that does not read") as (server, watch),
        connect(server.address, Request) as connection,
    ):
        kept: list[Any] = []
        for _ in range(40):
            sender, receiver = channel()
            go, stop = channel()
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Stall(receiver, stop, report))
            kept += [sender, go, answer]

            async def pour(sender: aqueduct.Sender[bytes] = sender) -> None:
                while True:
                    await sender.send(bytes(10_000))

            kept.append(asyncio.create_task(pour()))
        await asyncio.sleep(2)
        watch.look()
        for each in kept:
            if isinstance(each, aqueduct.Receiver):
                each.close()
            else:
                each.cancel()
        await asyncio.gather(
            *(each for each in kept if isinstance(each, asyncio.Task)), return_exceptions=True
        )
    assert watch.grown < 100 * MEGABYTE


@bounded
async def test_announced_lengths_without_data_cost_no_memory() -> None:
    async with (
        siege("5,000 streams that announce 16 MB each") as (server, watch),
        attacker(server.address) as rude,
    ):
        head = b"\x04\x00\x00\x00" + varint(16_000_000) + b"just the beginning"
        for number in range(5_000):
            rude.stream(version() + route_to(8 + 8 * number) + head)
            if number % 100 == 0:
                await asyncio.sleep(0.005)
        await rude.settle()
        watch.look()
    assert watch.grown < 100 * MEGABYTE


@bounded
async def test_a_length_over_the_limit_closes_at_once() -> None:
    async with (
        siege("a message of a terabyte") as (server, watch),
        attacker(server.address) as rude,
    ):
        rude.stream(version() + route_to(0) + b"\x04\x00\x00\x00" + varint(1 << 40))
        code, reason = await closed(rude)
        assert code == aqueduct.CloseCode.LIMIT_EXCEEDED
        assert reason.startswith("AQ-SEQ-6")
    assert watch.grown < 20 * MEGABYTE


@bounded
async def test_unfinished_large_messages_are_bounded_over_all_streams() -> None:
    async with (
        siege("200 unfinished messages of 15 MB") as (server, watch),
        attacker(server.address) as rude,
    ):
        head = b"\x04\x00\x00\x00" + varint(15_000_000)
        for number in range(200):
            rude.stream(version() + route_to(8 + 8 * number) + head + bytes(500_000))
            await asyncio.sleep(0.005)
        code, _ = await closed(rude)
        assert code in CLOSED_BY_LIMIT
    assert watch.grown < 120 * MEGABYTE


@bounded
async def test_a_flood_of_channels_ends_at_the_limit() -> None:
    async with (
        siege("15,000 channels with a limit of 5,000", "--max-channels", "5000") as (server, watch),
        attacker(server.address) as rude,
    ):
        flood = asyncio.create_task(open_channels(rude, 15_000))
        code, reason = await closed(rude)
        flood.cancel()
        assert code == aqueduct.CloseCode.LIMIT_EXCEEDED, reason
    assert watch.grown < 60 * MEGABYTE


async def open_channels(rude: Attacker, count: int) -> None:
    for number in range(count):
        rude.stream(version() + route_to(8 + 8 * number), fin=True)
        if number % 200 == 0:
            await rude.pace()


@bounded
async def test_a_flood_of_streams_with_a_byte_each_is_bounded() -> None:
    async with (
        siege("100,000 streams of a byte") as (server, watch),
        attacker(server.address) as rude,
    ):
        for number in range(100_000):
            rude.stream(b"\xef")
            if number % 500 == 0:
                await rude.pace()
        await rude.settle()
        watch.look()
    assert watch.grown < 400 * MEGABYTE


@bounded
async def test_empty_messages_cost_no_credit_and_little_memory() -> None:
    async with (
        siege("a million empty messages") as (server, watch),
        attacker(server.address) as rude,
    ):
        stream = rude.stream(version() + route_to(8))
        for start in range(0, 1_000_000, 10_000):
            rude.write(stream, b"".join(message(start + n) for n in range(10_000)))
            await asyncio.sleep(0.005)
        await rude.settle()
        watch.look()
    assert watch.grown < 60 * MEGABYTE


@bounded
async def test_memory_of_tiny_messages_is_proportional_to_their_credit() -> None:
    async with (
        siege("a window of messages of a byte") as (server, watch),
        attacker(server.address) as rude,
    ):
        stream = rude.stream(version() + route_to(8))
        for start in range(0, 250_000, 10_000):
            rude.write(stream, b"".join(message(start + n, b"x") for n in range(10_000)))
            await asyncio.sleep(0.005)
        await rude.settle()
        watch.look()
    assert watch.grown < 80 * MEGABYTE


@bounded
async def test_a_server_survives_a_flood_of_datagrams() -> None:
    async with siege("50,000 datagrams") as (server, watch), attacker(server.address) as rude:
        for number in range(50_000):
            rude.datagram(version() + route_to(8) + message(number, b"x" * 100))
            if number % 100 == 0:
                await asyncio.sleep(0.001)
        await rude.settle()
        watch.look()
    assert watch.grown < 60 * MEGABYTE


@bounded
@pytest.mark.parametrize("frame", [b"\x08\x02\x00\x01", b"\x0c\x01", b"\x0a"])
async def test_routes_to_nonexistent_channels_are_bounded(frame: bytes) -> None:
    async with (
        siege("30,000 nonexistent channels of the server") as (server, watch),
        attacker(server.address) as rude,
    ):
        for number in range(30_000):
            rude.stream(version() + route_to(1 + 8 * number) + frame, fin=True)
            if number % 200 == 0:
                await rude.pace()
            if not rude.connection.is_open:
                break
        await rude.settle()
        watch.look()
    assert watch.grown < 150 * MEGABYTE
