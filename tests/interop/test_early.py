"""0-RTT of another QUIC implementation's client, against our server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aioquic.tls import SessionTicket

import aqueduct
from tests.interop.conftest import LIMIT
from tests.interop.frames import finish_sender, message
from tests.interop.peer import ENTRYPOINT, peer_of

Server = aqueduct.Server[bytes]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with (
        asyncio.timeout(LIMIT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), early_data=True) as running,
    ):
        yield running


async def a_ticket(server: Server) -> SessionTicket:
    tickets: list[SessionTicket] = []
    async with peer_of(server.address, on_ticket=tickets.append) as peer:
        peer.greet()
        await server.accept()
        await peer.until(lambda: tickets, "a ticket")
    return tickets[0]


async def say_early(server: Server, ticket: SessionTicket) -> tuple[list[bytes], bool]:
    """Send the handshake and two messages at once; return what arrived, and whether early."""
    async with peer_of(server.address, ticket=ticket) as peer:
        peer.greet()
        peer.on(ENTRYPOINT, message(0, b"one"), message(1, b"two"), finish_sender(2))
        connection = await server.accept()
        assert connection is not None
        got = [payload async for payload in connection.entrypoint]
        await peer.frame("CLOSE_RECEIVER", ENTRYPOINT)
        return got, connection.early_data


async def test_early_data_is_accepted_once_per_ticket(server: Server) -> None:
    """AQ-EARLY-1, AQ-EARLY-2."""
    ticket = await a_ticket(server)
    assert await say_early(server, ticket) == ([b"one", b"two"], True)
    assert await say_early(server, ticket) == ([b"one", b"two"], False)
