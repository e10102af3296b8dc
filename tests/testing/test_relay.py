"""The relay impairs packets as configured, deterministically for one seed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from aqueduct.testing.relay import Direction, Impairments, Relay, main, split_address

TIMEOUT = 5.0


class Echo(asyncio.DatagramProtocol):
    """A server that echoes each packet, and records the source addresses."""

    def __init__(self) -> None:
        self.senders: list[tuple[str, int]] = []
        self.packets: list[bytes] = []
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.senders.append(addr)
        self.packets.append(data)
        assert self.transport is not None
        self.transport.sendto(data, addr)


class Client(asyncio.DatagramProtocol):
    """Collects the packets that arrive."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.came = asyncio.Event()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.packets.append(data)
        self.came.set()


@asynccontextmanager
async def scene(
    impairments: Impairments | None = None, seed: int = 0
) -> AsyncIterator[tuple[Relay, Echo, Client, asyncio.DatagramTransport]]:
    loop = asyncio.get_running_loop()
    server, echo = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    address = server.get_extra_info("sockname")
    async with Relay(f"{address[0]}:{address[1]}", impairments, seed=seed) as relay:
        transport, client = await loop.create_datagram_endpoint(
            Client, remote_addr=split_address(relay.address)
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                yield relay, echo, client, transport
        finally:
            transport.close()
            server.close()
            await asyncio.sleep(0)


async def until_quiet(client: Client, seconds: float = 0.1) -> None:
    """Wait until no more packets arrive."""
    before = -1
    while before != len(client.packets):
        before = len(client.packets)
        await asyncio.sleep(seconds)


async def test_without_impairments_everything_passes_in_order() -> None:
    async with scene() as (relay, echo, client, transport):
        sent = [b"%d" % number for number in range(100)]
        for packet in sent:
            transport.sendto(packet)
        await until_quiet(client)
        assert client.packets == echo.packets == sent
        assert relay.counts[Direction.UP].passed == relay.counts[Direction.DOWN].passed == 100
        assert relay.clients == 1


async def test_large_packets_are_not_truncated() -> None:
    async with scene() as (_, _, client, transport):
        packet = os.urandom(16_000)
        transport.sendto(packet)
        await until_quiet(client)
        assert client.packets == [packet]


async def survivors(seed: int) -> list[bytes]:
    async with scene(Impairments(loss=0.3), seed) as (relay, _, client, transport):
        for number in range(100):
            transport.sendto(b"%d" % number)
            await asyncio.sleep(0)
        await until_quiet(client)
        assert relay.counts[Direction.UP].lost > 10
        assert relay.counts[Direction.DOWN].lost > 10
        return client.packets


async def test_the_configured_share_of_the_packets_is_lost() -> None:
    async with scene(Impairments(loss=0.1), seed=1) as (relay, _, client, transport):
        for number in range(2_000):
            transport.sendto(b"%d" % number)
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        await until_quiet(client)
        counts = relay.counts[Direction.UP]
        assert counts.passed + counts.lost == 2_000
        assert 0.07 < counts.lost / 2_000 < 0.13


async def test_losses_depend_only_on_the_seed() -> None:
    first = await survivors(1)
    assert first == await survivors(1)
    assert first != await survivors(2)
    assert 20 < len(first) < 80


async def test_delay_applies_in_both_directions() -> None:
    async with scene(Impairments(delay=0.05)) as (_, _, client, transport):
        loop = asyncio.get_running_loop()
        before = loop.time()
        transport.sendto(b"x")
        await client.came.wait()
        assert 0.09 < loop.time() - before < 60


@pytest.mark.parametrize("impairments", [Impairments(jitter=0.05), Impairments(reorder=0.3)])
async def test_jitter_and_reordering_let_packets_overtake(impairments: Impairments) -> None:
    async with scene(impairments, seed=4) as (_, _, client, transport):
        sent = [b"%d" % number for number in range(50)]
        for packet in sent:
            transport.sendto(packet)
        await until_quiet(client)
        assert client.packets != sent
        assert sorted(client.packets) == sorted(sent)


async def test_duplicates_arrive_twice() -> None:
    async with scene(Impairments(duplicate=1.0)) as (relay, echo, client, transport):
        transport.sendto(b"x")
        await until_quiet(client)
        assert echo.packets == [b"x"] * 2
        assert client.packets == [b"x"] * 4
        assert relay.counts[Direction.UP].duplicated == 1


async def test_a_blackout_drops_everything_until_it_ends() -> None:
    async with scene() as (relay, echo, client, transport):
        relay.blackout()
        transport.sendto(b"lost")
        await until_quiet(client)
        relay.end_blackout()
        transport.sendto(b"found")
        await until_quiet(client)
        relay.blackout(0.05)
        transport.sendto(b"lost too")
        await asyncio.sleep(0.1)
        transport.sendto(b"after the blackout")
        await until_quiet(client)
        assert client.packets == echo.packets == [b"found", b"after the blackout"]


async def test_a_blackout_can_have_one_direction() -> None:
    async with scene() as (relay, echo, client, transport):
        relay.blackout(directions=(Direction.DOWN,))
        transport.sendto(b"x")
        await until_quiet(client)
        assert (echo.packets, client.packets) == ([b"x"], [])


async def test_the_next_packets_can_be_dropped_by_count() -> None:
    async with scene() as (relay, _, client, transport):
        relay.drop_next(2)
        for packet in (b"1", b"2", b"3"):
            transport.sendto(packet)
        await until_quiet(client)
        assert client.packets == [b"3"]


async def test_a_change_of_address_gives_clients_a_new_source_address() -> None:
    async with scene() as (relay, echo, client, transport):
        transport.sendto(b"1")
        await until_quiet(client)
        relay.change_address()
        transport.sendto(b"2")
        await until_quiet(client)
        assert client.packets == [b"1", b"2"]
        assert len(set(echo.senders)) == 2


async def test_each_client_gets_its_own_replies() -> None:
    async with scene() as (relay, echo, client, transport):
        loop = asyncio.get_running_loop()
        other_transport, other = await loop.create_datagram_endpoint(
            Client, remote_addr=split_address(relay.address)
        )
        transport.sendto(b"one")
        other_transport.sendto(b"two")
        await until_quiet(client)
        assert (client.packets, other.packets) == ([b"one"], [b"two"])
        assert len(set(echo.senders)) == relay.clients == 2
        other_transport.close()


async def test_a_server_that_does_not_listen_causes_no_answer() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    async with Relay(f"127.0.0.1:{port}") as relay:
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_datagram_endpoint(
            Client, remote_addr=split_address(relay.address)
        )
        for _ in range(3):
            transport.sendto(b"hello?")
            await asyncio.sleep(0.01)
        await until_quiet(client)
        assert client.packets == []
        transport.close()


@pytest.mark.parametrize(
    "impairments",
    [{"loss": 1.5}, {"duplicate": -0.1}, {"reorder": 2}, {"delay": -1.0}, {"jitter": -0.1}],
)
def test_invalid_impairments_are_rejected(impairments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"probability|negative"):
        Impairments(**impairments)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:65536"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


def test_an_address_of_another_scheme_is_rejected() -> None:
    with pytest.raises(ValueError, match="scheme"):
        split_address("https://host:1")


def test_addresses_of_both_families_are_parsed() -> None:
    assert split_address("127.0.0.1:1") == ("127.0.0.1", 1)
    assert split_address("[::1]:2") == ("::1", 2)
    assert split_address("aqueduct://localhost:3") == ("localhost", 3)
    assert split_address("aqueduct+tcp://[::1]:4") == ("::1", 4)


async def test_the_command_prints_its_address_and_finally_its_counts() -> None:
    loop = asyncio.get_running_loop()
    server, _echo = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    host, port = server.get_extra_info("sockname")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "aqueduct.testing.relay",
        "--to",
        f"{host}:{port}",
        "--duplicate",
        "1",
        "--json",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT):
            address = json.loads(await process.stdout.readline())["address"]
            transport, client = await loop.create_datagram_endpoint(
                Client, remote_addr=split_address(address)
            )
            transport.sendto(b"x")
            await until_quiet(client)
            transport.close()
            assert client.packets == [b"x"] * 4
            process.send_signal(signal.SIGINT)
            counts = json.loads(await process.stdout.readline())
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        server.close()
    assert counts["up"] == {"passed": 1, "lost": 0, "duplicated": 1, "delayed": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to", "nowhere"],
        ["--to", "127.0.0.1:1", "--loss", "2"],
        ["--to", "127.0.0.1:1", "--blackout", "soon"],
    ],
)
def test_the_command_rejects_invalid_arguments(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_command_reports_that_it_cannot_listen(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        taken = f"127.0.0.1:{sock.getsockname()[1]}"
        assert main(["--to", "127.0.0.1:1", "--listen", taken]) == 1
    assert "cannot listen" in capsys.readouterr().err
