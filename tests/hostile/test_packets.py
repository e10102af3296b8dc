"""A server under malformed packets and unfinished handshakes."""

from __future__ import annotations

import asyncio
import itertools

from tests.hostile.attacks import MEGABYTE, attacker, first_packet, garbage, shoot, siege
from tests.processes.lab import Ask, Request
from tests.processes.peers import bounded, connect


@bounded
async def test_garbage_is_ignored() -> None:
    async with siege("20,000 packets of garbage") as (server, watch):
        await shoot(server.address, garbage(1), 20_000, sockets=4)
        await asyncio.sleep(0.5)
    assert watch.grown < 40 * MEGABYTE


@bounded
async def test_half_open_handshakes_do_not_block_other_clients() -> None:
    async with siege("1,500 unfinished handshakes") as (server, watch):
        packets = (first_packet() for _ in itertools.count())
        await shoot(server.address, packets, 1_500, sockets=8)
        await asyncio.sleep(0.5)
    assert watch.grown < 120 * MEGABYTE


@bounded
async def test_a_repeated_first_packet_creates_one_connection() -> None:
    async with siege("5,000 times the same first packet") as (server, watch):
        await shoot(server.address, itertools.repeat(first_packet()), 5_000)
        await asyncio.sleep(0.3)
    assert watch.grown < 30 * MEGABYTE


@bounded
async def test_connections_that_disappear_are_freed() -> None:
    async with siege("200 connections that disappear", "--idle", "2") as (server, watch):
        for _ in range(10):

            async def come_and_go() -> None:
                async with attacker(server.address) as rude:
                    rude.stream(b"\xef")

            await asyncio.gather(*(come_and_go() for _ in range(20)))
        gone = 0
        while gone < 200:
            gone += (await server.next_event())["event"] == "gone"
    assert watch.grown < 80 * MEGABYTE


@bounded
async def test_a_flood_of_connections_is_served_and_freed() -> None:
    async with siege("600 connections, 60 at a time") as (server, watch):

        async def come_and_go() -> None:
            async with connect(server.address, Request) as connection:
                assert await connection.entrypoint.call(Ask, text="hi") == "HI"

        for _ in range(10):
            await asyncio.gather(*(come_and_go() for _ in range(60)))
        gone = 0
        while gone < 600:
            gone += (await server.next_event())["event"] == "gone"
    assert watch.grown < 80 * MEGABYTE
