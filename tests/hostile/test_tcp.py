"""A server of channels over TCP under clients that are malformed, slow, silent or deaf."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import aqueduct
from aqueduct import channel, oneshot
from tests.hostile.attackers_tcp import BROKEN, pour, tcp_garbage
from tests.hostile.attacks import MEGABYTE, siege
from tests.hostile.raw import reset_stream, stream_frame
from tests.hostile.raw_tcp import (
    client_hello,
    dialled,
    parameters,
    ping,
    raw_tcp_client,
    record,
)
from tests.processes.lab import Produce, Request
from tests.processes.peers import bounded, connect, eventually

TCP = "aqueduct+tcp://127.0.0.1:0"
HERE = ("--listen", TCP)


def streams(data: bytes) -> Iterator[bytes]:
    return (stream_frame(number, data) for number in itertools.count(6, 4))


@bounded
async def test_garbage_is_dropped() -> None:
    async with siege("300 connections with garbage", *HERE) as (server, watch):
        await tcp_garbage({"tcp": server.address}, Random(1))
    assert watch.grown < 40 * MEGABYTE


@bounded
async def test_half_open_connections_do_not_block_other_clients() -> None:
    loop = asyncio.get_running_loop()
    async with (
        siege("1,500 unfinished handshakes", *HERE) as (server, watch),
        contextlib.AsyncExitStack() as stack,
    ):
        for number in range(1_500):
            sock = await stack.enter_async_context(dialled(server.address, Random(number)))
            with contextlib.suppress(OSError):
                await loop.sock_sendall(sock, client_hello()[: (0, 42, 10_000)[number % 3]])
            if number % 500 == 0:  # others connect meanwhile
                async with connect(server.address, Request) as connection:
                    assert connection.is_open
        watch.look()
    assert watch.grown < 120 * MEGABYTE


@bounded
async def test_a_handshake_that_drips_ends_in_time() -> None:
    """The time for the handshake is over, whatever comes."""
    loop = asyncio.get_running_loop()
    async with siege("40 handshakes by the byte", *HERE, "--handshake", "1") as (server, watch):

        async def drip(at_once: int) -> None:
            hello = client_hello()
            async with dialled(server.address) as sock:
                await loop.sock_sendall(sock, hello[:at_once])
                for byte in itertools.chain(hello[at_once : at_once + 50], itertools.repeat(0)):
                    await loop.sock_sendall(sock, bytes((byte,)))
                    await asyncio.sleep(0.1)

        drips = [drip(at_once) for at_once in (0, 60) * 20]
        ends = await asyncio.gather(*drips, return_exceptions=True)
        assert all(isinstance(end, ConnectionError) for end in ends), ends
    assert watch.grown < 40 * MEGABYTE


@bounded
async def test_a_client_that_sends_no_headers_is_dropped_in_time() -> None:
    async with siege("no headers", *HERE, "--handshake", "1") as (server, watch):
        for data in (b"", b"\x80", record(parameters())):
            async with raw_tcp_client(server.address, greets=False) as rude:
                if data:
                    await rude.say(data)
                await rude.closing()
    assert watch.grown < 40 * MEGABYTE


@bounded
async def test_a_client_that_breaks_a_rule_gets_the_rule() -> None:
    """AQ-TCP-3 to AQ-TCP-7, before and after it was accepted."""
    async with siege("malformed records", *HERE) as (server, watch):
        for greets in (False, True):
            for broken in BROKEN:
                async with raw_tcp_client(server.address, greets=greets) as rude:
                    if not greets:
                        await rude.say(record(parameters()))
                    await rude.say(broken)
                    assert "AQ-" in await rude.closing(), broken
    assert watch.grown < 40 * MEGABYTE


@bounded
@pytest.mark.parametrize(
    "frames",
    [
        lambda: itertools.repeat(b"\x00\x13\x00"),
        lambda: itertools.repeat(ping(1)),
        lambda: streams(b""),
        lambda: streams(b"\xef"),
        lambda: (reset_stream(number) for number in itertools.count(6, 4)),
    ],
    ids=["nothing", "pings", "empty streams", "streams of a byte", "resets"],
)
async def test_objects_are_bounded_before_acceptance(frames: Any) -> None:
    """AQ-COST-1 and AQ-COST-3: of a client that has not sent its headers."""
    async with siege("objects before acceptance", *HERE, "--handshake", "120") as (server, watch):
        async with raw_tcp_client(server.address, greets=False) as rude:
            await rude.say(record(parameters() + stream_frame(2, b"")))
            await pour(rude, frames(), 8, 0.0)
            reason = await rude.closing()
            assert "AQ-COST-" in reason or "AQ-CONN-" in reason, reason
        watch.look()
    assert watch.grown < 40 * MEGABYTE


@bounded
async def test_streams_that_never_end_are_bounded() -> None:
    """AQ-COST-4 and AQ-TCP-8."""
    async with (
        siege("streams of a byte on 6 connections", *HERE) as (server, watch),
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(6):
            rude = await stack.enter_async_context(raw_tcp_client(server.address, Random(1)))
            await pour(rude, streams(b"\xef"), 1, 0.0)
        watch.look()
    assert watch.grown < 250 * MEGABYTE


@bounded
async def test_a_client_that_sends_tiny_frames_does_not_delay_others() -> None:
    """The slowest answer is not timed; the test of turns is in tests/transport/tcp."""
    async with siege("records of tiny frames", *HERE) as (server, watch):
        for tiny in (b"\x00", b"\x13\x00", ping(1)):
            async with raw_tcp_client(server.address) as rude:
                before = len(watch.waits)
                await pour(rude, itertools.repeat(tiny), 2, 0.0)
                await eventually(lambda: len(watch.waits) > before, "others are answered")  # noqa: B023
    assert watch.grown < 40 * MEGABYTE


@bounded
async def test_clients_that_read_nothing_cost_a_window_each() -> None:
    async with (
        siege("40 channels of a client that reads nothing", *HERE) as (server, watch),
        connect(server.address, Request) as connection,
    ):
        transport = connection._driver.transport
        kept: list[Any] = []
        for _ in range(40):
            sink, source = channel()
            report, outcome = oneshot(str)
            await connection.entrypoint.send(Produce(1_000_000, 10_000, "finish", sink, report))
            kept += [source, outcome]
        await connection.entrypoint.flush()
        transport._stop_reading()
        await asyncio.sleep(2)
        watch.look()
        transport.abandon("the test is over")
        transport.close()
        with pytest.raises(aqueduct.ConnectionLost):
            await kept[0].receive()
        for half in kept:
            half.close()
    assert watch.grown < 100 * MEGABYTE
