"""A server under peers that make it hold many times the bytes that they send."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aqueduct
from aqueduct.protocol.config import Config
from aqueduct.protocol.modes import Mode
from tests.hostile.attacks import MEGABYTE, siege
from tests.hostile.raw import (
    PING,
    ack,
    crypto,
    path_challenge,
    raw_client,
    reset_stream,
    stream_frame,
)
from tests.interop.frames import connection_headers, message, route_to, version
from tests.processes.peers import bounded, eventually
from tests.transport.quic.inside import listener_of

LIMIT_EXCEEDED = aqueduct.CloseCode.LIMIT_EXCEEDED
FIRST = 6
"""The client's second stream: the first is for its headers."""

Attack = Callable[[], Iterator[bytes]]


def streams(make: Callable[[int], bytes]) -> Attack:
    """Return an endless attack with one frame per stream."""
    return lambda: (make(number) for number in itertools.count(FIRST, 4))


def nothing_among_data() -> Iterator[bytes]:
    """Yield empty streams after frames that raise an event for a byte each."""
    data = version() + route_to(0) + message(0, bytes(2_000))
    carriers = range(FIRST, FIRST + 4 * 250, 4)
    empty = itertools.count(carriers.stop, 4)
    for at in range(len(data)):
        for carrier in carriers:
            yield stream_frame(carrier, data[at : at + 1], offset=at)
            yield stream_frame(next(empty), b"")
            yield stream_frame(next(empty), b"")


ATTACKS: dict[str, Attack] = {
    "streams of a byte": streams(lambda n: stream_frame(n, b"\xef")),
    "streams that wait": streams(
        lambda n: stream_frame(n, version() + route_to(0) + message(n, b"")[:-1])
    ),
    "streams that ended and wait": streams(
        lambda n: stream_frame(n, version() + route_to(0) + message(n, b""), fin=True)
    ),
    "streams of nothing": streams(lambda n: stream_frame(n, b"")),
    "streams with a hole": streams(lambda n: stream_frame(n, b"x", offset=1)),
    "streams of nothing among data": lambda: nothing_among_data(),
    "a stream of holes": lambda: (
        stream_frame(FIRST, b"x", offset=at) for at in itertools.count(1, 2)
    ),
    "streams that are reset": streams(reset_stream),
    "streams that end": streams(lambda n: stream_frame(n, version(), fin=True)),
    "challenges": lambda: map(path_challenge, itertools.count()),
    "handshake data with a hole": lambda: (crypto(at, bytes(1_000)) for at in itertools.count(1)),
}
MOST = 120_000
"""Frames of an attack: the least of them took 10 MB when nothing bounded them."""


def patient_server() -> Any:
    """Serve with time for the attack before the handshake times out, also on a busy machine."""
    options = aqueduct.QuicSettings(handshake_timeout=120)
    return aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options)


@bounded
async def test_objects_are_bounded_before_acceptance() -> None:
    """AQ-COST-1, AQ-COST-2 and AQ-COST-3: with no header sent, and nothing acknowledged."""
    async with siege("objects before acceptance", "--handshake", "120") as (server, watch):
        for name, attack in ATTACKS.items():
            async with raw_client(server.address) as rude:
                await rude.flood(itertools.islice(attack(), MOST))
                code, reason = await rude.closing()
                assert (code, reason[:8]) == (LIMIT_EXCEEDED, "AQ-COST-"), (name, reason)
                assert rude.sent < MEGABYTE, name
                watch.look()
    assert watch.grown < 80 * MEGABYTE


@bounded
@pytest.mark.parametrize("name", ATTACKS)
async def test_objects_are_bounded_while_the_client_acknowledges_nothing(name: str) -> None:
    """AQ-COST-2 and AQ-COST-3: QUIC's events then wait for a window that never opens."""
    async with (
        patient_server() as server,
        raw_client(server.address) as rude,
    ):
        (transport,) = listener_of(server).transports
        # The client never acknowledges, so the server probes.
        rude.say(stream_frame(2, version(), fin=True) + path_challenge(0))
        await eventually(lambda: transport.bridge.quic.has_lost, "the server probes")
        await rude.flood(itertools.islice(ATTACKS[name](), MOST))
        code, reason = await rude.closing()
        assert (code, reason[:8]) == (LIMIT_EXCEEDED, "AQ-COST-"), reason
        assert rude.sent < MEGABYTE


@bounded
async def test_streams_in_separate_packets_are_bounded() -> None:
    """AQ-COST-3: the uncounted bytes of a packet cannot hold a stream."""
    async with (
        patient_server() as server,
        raw_client(server.address) as rude,
    ):
        numbers = itertools.count(FIRST, 4)
        for packet in range(20_000):
            rude.say(b"".join(stream_frame(next(numbers), b"") for _ in range(2)))
            if packet % 64 == 0:
                await rude.listen()
                rude.say(ack(rude.received))
                if rude.closed is not None:
                    break
        code, reason = await rude.closing()
        assert (code, reason[:9]) == (LIMIT_EXCEEDED, "AQ-COST-3"), reason


@bounded
async def test_the_connections_of_one_address_share_a_bound_before_acceptance() -> None:
    """AQ-COST-3: each is within its own limits; the one with the most is closed."""
    async with (
        siege("hidden state of one address", "--handshake", "120") as (server, watch),
        contextlib.AsyncExitStack() as stack,
    ):
        modest = await stack.enter_async_context(raw_client(server.address))
        await modest.flood(itertools.islice(ATTACKS["streams of nothing"](), 200))
        greedy = []
        for _ in range(25):
            rude = await stack.enter_async_context(raw_client(server.address))
            await rude.flood(itertools.islice(ATTACKS["streams of nothing"](), 9_000))
            greedy.append(rude)
            watch.look()
        for rude in (modest, *greedy):
            await rude.listen()
        closed = [rude.closed for rude in greedy if rude.closed is not None]
        assert len(closed) > len(greedy) // 2
        assert {(code, reason[:9]) for code, reason in closed} == {(LIMIT_EXCEEDED, "AQ-COST-3")}
        assert modest.closed is None
    assert watch.grown < 120 * MEGABYTE


@bounded
async def test_packets_that_only_provoke_acks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-COST-2: QUIC keeps an ack until it is acknowledged."""
    use(monkeypatch, max_early_unacknowledged=1_000)
    async with (
        patient_server() as server,
        raw_client(server.address) as rude,
    ):
        (transport,) = listener_of(server).transports
        for number in range(20_000):
            rude.say(PING)
            await asyncio.sleep(0)  # so that each is read separately
            await asyncio.sleep(0)
            if number % 64 == 0:
                await rude.listen()
            if transport.core.has_ended:
                break
        code, reason = await rude.closing()
        assert (code, reason[:9]) == (LIMIT_EXCEEDED, "AQ-COST-2"), reason


def use(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    """Make servers use these limits."""

    def small(*_: object) -> Config:
        return Config(**limits)

    # Not by its dotted name: `aqueduct.channel` is also a function.
    monkeypatch.setattr(importlib.import_module("aqueduct.api.server"), "config_of", small)


@bounded
@pytest.mark.parametrize("name", ["challenges", "streams that are reset"])
async def test_unacknowledged_packets_are_bounded_after_acceptance(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AQ-COST-2."""
    use(monkeypatch, max_unacknowledged=6_000)
    async with (
        patient_server() as server,
        raw_client(server.address) as rude,
    ):
        rude.say(stream_frame(2, version() + connection_headers([]), fin=True))
        assert await server.accept() is not None
        await rude.flood(itertools.islice(ATTACKS[name](), 60_000))
        code, reason = await rude.closing()
        assert (code, reason[:9]) == (LIMIT_EXCEEDED, "AQ-COST-2"), reason


@bounded
async def test_a_client_that_acknowledges_is_not_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-COST-2: only held packets count."""
    use(monkeypatch, max_unacknowledged=2_000)
    async with (
        patient_server() as server,
        aqueduct.connect(server.address, trust=aqueduct.dev_trust()) as client,
    ):
        connection = await server.accept()
        assert connection is not None
        client.entrypoint.mode = Mode.UNORDERED
        for number in range(10_000):  # each a stream that ends
            await client.entrypoint.send(b"%d" % number)
        for _ in range(10_000):
            await connection.entrypoint.receive()
        assert client.is_open


@bounded
async def test_the_connections_of_one_address_share_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-COST-4: each is within its own limits."""
    use(monkeypatch, max_address_bytes=1_000 * 1_536, address_allowance=100 * 1_536)
    async with patient_server() as server:
        clients = [raw_client(server.address) for _ in range(4)]
        closed = 0
        async with clients[0] as a, clients[1] as b, clients[2] as c, clients[3] as d:
            for rude in (a, b, c, d):
                rude.say(stream_frame(2, version() + connection_headers([]), fin=True))
                await asyncio.wait_for(server.accept(), 30)
                many = streams(lambda n: stream_frame(n, version() + route_to(0)))
                await rude.flood(itertools.islice(many(), 400))
                await asyncio.sleep(0.1)
                await rude.listen()
                if rude.closed is not None:
                    code, reason = rude.closed
                    assert (code, reason[:9]) == (LIMIT_EXCEEDED, "AQ-COST-4"), reason
                    closed += 1
        assert closed == 1
        # Their end makes room again.
        async with aqueduct.connect(server.address, trust=aqueduct.dev_trust()) as honest:
            assert honest.is_open
