"""Connections within one process: the whole library above a transport without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import (
    BindError,
    ConnectError,
    ConnectionLost,
    EndOfChannel,
    Headers,
    Mode,
    Receiver,
    Sender,
    blocking,
    channel,
)
from aqueduct.observe import NullObserver
from aqueduct.transport import memory
from tests.processes.peers import eventually


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


@pytest.fixture(autouse=True)
def no_name_is_left() -> Iterator[None]:
    yield
    assert memory._listeners == {}


class Sums(msgspec.Struct):
    numbers: Receiver[int]
    sums: Sender[int]


def serve(kind: Any = bytes, address: str = "memory://", **options: Any) -> Any:
    return aqueduct.serve(address, kind, tls=aqueduct.dev_tls(), **options)


def connect(address: str, kind: Any = bytes, **options: Any) -> Any:
    return aqueduct.connect(address, kind, trust=aqueduct.dev_trust(), **options)


async def test_messages_and_channels_arrive_in_both_directions() -> None:
    async with asyncio.timeout(20), serve(Sums, "memory://sums") as server:
        assert server.address == "memory://sums"
        async with connect("memory://sums", Sums, headers={"user": "me"}) as client:
            assert repr(client) == "<ClientConnection peer=memory://sums open>"
            accepted = await server.accept()
            assert accepted.headers.text("user") == "me"
            numbers, theirs = channel(int)
            sums, answers = channel(int)
            await client.entrypoint.send(Sums(theirs, sums))
            request = await accepted.entrypoint.receive()
            async with numbers:
                for number in range(1_000):
                    await numbers.send(number)
            total = 0
            async with request.sums:
                async for number in request.numbers:
                    total += number
                    await request.sums.send(total)
            assert [number async for number in answers][-1] == sum(range(1_000))


async def test_a_large_message_waits_for_credit_and_arrives() -> None:
    async with (
        asyncio.timeout(20),
        serve() as server,
        connect(server.address) as client,
    ):
        accepted = await server.accept()
        sending = asyncio.create_task(send_all(client, 40))
        assert [len(await accepted.entrypoint.receive()) for _ in range(40)] == [500_000] * 40
        await sending


async def send_all(client: Any, number: int) -> None:
    for _ in range(number):
        await client.entrypoint.send(bytes(500_000))
    await client.entrypoint.flush()


async def test_datagrams_are_as_large_as_udp_carries() -> None:
    """AQ-SEND-8: no path limits them."""
    sizes: list[int] = []

    class Wire(NullObserver):
        def datagram_written(self, data: bytes) -> None:
            sizes.append(len(data))

    async with (
        aqueduct.serve("memory://", tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(
            server.address, trust=aqueduct.dev_trust(), observers=[lambda _: Wire()]
        ) as client,
    ):
        accepted = await server.accept()
        assert accepted is not None
        client.entrypoint.mode = Mode.UNRELIABLE
        for size in (60_000, memory.LARGEST_DATAGRAM):
            await client.entrypoint.send(bytes(size))
            assert len(await accepted.entrypoint.receive()) == size
        assert len(sizes) == 1  # the second leaves no room for the frame around it
        assert sizes[0] > 60_000


async def test_a_refused_client_gets_the_reason() -> None:
    def refuse(headers: Headers, peer: tuple[str, int]) -> None:
        assert peer[0] == "memory"
        raise aqueduct.Refuse("not today")

    async with asyncio.timeout(20), serve(accept=refuse) as server:
        with pytest.raises(aqueduct.Refused, match="not today"):
            await connect(server.address)


async def test_a_client_that_leaves_ends_the_servers_entrypoint() -> None:
    async with asyncio.timeout(20), serve() as server:
        async with connect(server.address) as client:
            accepted = await server.accept()
            await client.entrypoint.send(b"bye")
        assert await accepted.entrypoint.receive() == b"bye"
        with pytest.raises((EndOfChannel, ConnectionLost)):
            await accepted.entrypoint.receive()
        assert not accepted.is_open
        await eventually(lambda: not server._listener._transports, "the connection is removed")


async def test_a_server_that_closes_notifies_its_clients() -> None:
    async with asyncio.timeout(20):
        async with serve() as server:
            client = await connect(server.address)
            assert await server.accept() is not None
        await client.wait_closed()
        with pytest.raises(ConnectionLost, match="the server stops"):
            await client.entrypoint.send(b"x")
        await client.close()


async def test_connecting_to_an_unused_name_is_an_error_that_names_it() -> None:
    with pytest.raises(ConnectError, match="nothing listens at memory://unused"):
        await connect("memory://unused")


async def test_a_name_is_free_again_after_close() -> None:
    for _ in range(2):
        async with serve(address="memory://once"):
            with pytest.raises(BindError, match="the name is in use"):
                await serve(address="memory://once")


async def test_connecting_from_another_event_loop_is_an_error() -> None:
    async with serve(address="memory://here") as server:
        message = "listens on another event loop"

        def elsewhere() -> None:
            with pytest.raises(ConnectError, match=message):
                blocking.connect(server.address, trust=aqueduct.dev_trust())

        await asyncio.to_thread(elsewhere)


def test_the_blocking_twin_supports_memory_connections() -> None:
    with (
        blocking.serve("memory://threads", tls=aqueduct.dev_tls()) as server,
        blocking.connect("memory://threads", trust=aqueduct.dev_trust()) as client,
    ):
        client.entrypoint.send(b"from a thread")
        accepted = server.accept()
        assert accepted is not None
        assert accepted.entrypoint.receive() == b"from a thread"


async def test_a_trace_of_both_ends_has_one_connection(tmp_path: Path) -> None:
    async with (
        serve(trace=tmp_path / "server") as server,
        connect(server.address, trace=tmp_path / "client") as client,
    ):
        accepted = await server.accept()
        assert client._driver.transport.trace_id == accepted._driver.transport.trace_id
        await client.entrypoint.send(b"x")
        await accepted.entrypoint.receive()
    assert list((tmp_path / "server").iterdir())
    assert list((tmp_path / "client").iterdir())
