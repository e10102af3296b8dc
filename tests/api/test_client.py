"""Clients: what they wait for, and what they free and report on failure."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from qh3.quic.events import HandshakeCompleted

import aqueduct
from aqueduct.transport.quic import connector
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.wire.chanid import Side
from tests.processes.peers import TIMEOUT, eventually
from tests.transport.quic.inside import listener_of, transport_of


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


def connect(address: str, **options: Any) -> Any:
    options.setdefault("timeout", TIMEOUT)
    return aqueduct.connect(address, trust=aqueduct.dev_trust(), **options)


async def test_a_connection_may_be_awaited_and_closed_by_hand() -> None:
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        connection = await connect(server.address)
        assert isinstance(connection, aqueduct.ClientConnection)
        assert isinstance(connection.entrypoint, aqueduct.Sender)
        assert repr(connection) == f"<ClientConnection peer={server.address} open>"
        await connection.close()
        assert repr(connection) == f"<ClientConnection peer={server.address} closed>"
        await connection.close()


@pytest.mark.parametrize("call", ["connect", "serve"])
@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("limits", r"limits is what aqueduct\.Limits\(…\) returns, not 5"),
        ("delivery", r"delivery is what aqueduct\.Delivery\(…\) returns, not 5"),
        ("options", r"options is what aqueduct\.QuicSettings\(…\) returns, not 5"),
        ("security", r"(trust is what aqueduct\.trust|tls is what aqueduct\.tls)\(.*\) returns"),
        ("address", "an address is a string such as 'host:port', not 5"),
    ],
)
def test_an_argument_of_a_wrong_type_is_a_type_error_at_the_call(
    call: str, argument: str, says: str
) -> None:
    security = {"connect": ("trust", aqueduct.dev_trust()), "serve": ("tls", aqueduct.dev_tls())}
    name, given = security[call]
    options: dict[str, Any] = {name: given}
    for wrong in (5, None) if argument == "security" else (5,):
        options[name if argument == "security" else argument] = wrong
        address = options.pop("address", "memory://")
        for place in (aqueduct, aqueduct.blocking):
            with pytest.raises(TypeError, match=says):
                getattr(place, call)(address, **options)


async def test_an_error_in_the_block_closes_the_connection_and_is_not_hidden() -> None:
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        with pytest.raises(ZeroDivisionError):
            async with connect(server.address):
                raise ZeroDivisionError
        await eventually(lambda: not listener_of(server).transports, "the server notices the end")


async def test_a_connect_that_times_out_leaves_no_socket_and_no_warning() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(aqueduct.ConnectTimeout, match="no answer from"):
            await connect(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
    gc.collect()


@pytest.mark.parametrize("side", ["client", "server"])
async def test_connect_retries_after_a_fault_of_quic_before_the_headers(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Bridge._handle_rare
    failed: list[Bridge] = []

    def fail_once(bridge: Bridge, event: Any, now: float) -> None:
        whole(bridge, event, now)
        is_ours = (bridge.core.side == Side.CLIENT) == (side == "client")
        if isinstance(event, HandshakeCompleted) and is_ours and not failed:
            failed.append(bridge)
            bridge._fail(ValueError("a fault"), now)

    monkeypatch.setattr(Bridge, "_handle_rare", fail_once)
    async with (
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
        connect(server.address) as connection,
    ):
        assert connection.is_open
        assert failed


async def test_a_server_is_found_by_its_host_name() -> None:
    async with aqueduct.serve("localhost:0", tls=aqueduct.dev_tls()) as server:
        port = server.address.rpartition(":")[2]
        async with connect(f"localhost:{port}") as connection:
            assert connection.is_open


async def test_connections_are_closed_when_their_server_drains() -> None:
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        async with connect(server.address) as connection:
            accepted = await server.accept()
            assert accepted is not None
            draining = asyncio.create_task(server.drain(0.0))
            async with asyncio.timeout(TIMEOUT):
                await connection.wait_closed()
                await draining
            assert connection._driver.ended.code == aqueduct.CloseCode.GOING_AWAY
        with pytest.raises(aqueduct.EndOfChannel, match="the server was closed"):
            await server.accept()


async def test_an_invalid_message_type_is_rejected_before_a_socket_is_opened() -> None:
    with pytest.raises(TypeError, match="cannot be the type of a channel"):
        aqueduct.connect("localhost:1", list[int] | set[int], trust=aqueduct.dev_trust())


# -- addresses and failures ------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def answer_with(monkeypatch: pytest.MonkeyPatch, *found: tuple[int, tuple[str, int]]) -> None:
    """Have name resolution return these addresses."""

    async def resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
        return list(found)

    monkeypatch.setattr(connector, "resolve", resolve)


async def test_an_address_that_cannot_be_reached_is_named() -> None:
    before = descriptors()
    with pytest.raises(aqueduct.ConnectError, match=r"cannot reach 255\.255\.255\.255:4433"):
        await connect("255.255.255.255:4433")
    assert descriptors() == before


async def test_the_next_address_is_tried_when_one_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        port = int(server.address.rpartition(":")[2])
        broadcast = (socket.AF_INET, ("255.255.255.255", port))
        answer_with(monkeypatch, broadcast, (socket.AF_INET, ("127.0.0.1", port)))
        async with connect(f"localhost:{port}") as client:
            assert client.peer == ("127.0.0.1", port)


async def test_the_next_address_is_tried_when_one_is_about_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-DRAIN-2."""
    tls = aqueduct.dev_tls()
    async with (
        aqueduct.serve("127.0.0.1:0", tls=tls) as old,
        aqueduct.serve("127.0.0.1:0", tls=tls) as new,
    ):
        ports = [int(server.address.rpartition(":")[2]) for server in (old, new)]
        async with connect(old.address) as client:
            accepted = await old.accept()
            assert accepted is not None
            sender, receiver = aqueduct.channel()
            await client.entrypoint.send(b"hold", attach=[sender])
            draining = asyncio.create_task(old.drain(600))
            await client.entrypoint.wait_closed()
            answer_with(monkeypatch, *((socket.AF_INET, ("127.0.0.1", port)) for port in ports))
            async with connect(f"localhost:{ports[0]}") as other:
                assert other.peer == ("127.0.0.1", ports[1])
            receiver.close()
            accepted.entrypoint.close()
        await draining


async def test_a_silent_address_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        port = int(server.address.rpartition(":")[2])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            family = socket.AF_INET
            good = ("127.0.0.1", port)
            answer_with(monkeypatch, (family, silent.getsockname()), (family, good))
            async with connect(f"localhost:{port}", timeout=8) as client:
                assert client.peer == good


async def test_the_timeout_covers_name_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
        await asyncio.sleep(TIMEOUT)
        return []

    monkeypatch.setattr(connector, "resolve", resolve)
    with pytest.raises(aqueduct.ConnectTimeout, match=r"cannot find 'slow\.example'"):
        await connect("slow.example:4433", timeout=0.1)


async def test_no_failure_leaves_a_socket_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (OSError, {"trace": tmp_path / "file" / "trace"}),
        (aqueduct.AqueductError, {"headers": {"long": "x" * 20_000}}),
    ]
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        before = descriptors()
        for error, options in wrong:
            with pytest.raises(error):
                await connect(server.address, **options)
            assert descriptors() == before, options


async def test_the_stream_limit_follows_the_channel_limit() -> None:
    many = aqueduct.Limits(max_channels=200_000)
    async with (
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), limits=many) as server,
        aqueduct.connect(server.address, trust=aqueduct.dev_trust(), limits=many) as connection,
    ):
        (accepted,) = [await server.accept()]
        assert accepted is not None
        for side in (connection, accepted):
            assert transport_of(side).bridge.quic.max_concurrent_uni_streams >= 2 * 200_000
