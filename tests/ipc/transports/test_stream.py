"""One connection: what closes it, and back pressure of peers that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial

import pytest

from aqueduct.ipc.core.framing import frame_head
from aqueduct.ipc.core.pdu import Code, Header
from aqueduct.ipc.transports import tcp
from aqueduct.ipc.transports.stream import FULL
from aqueduct.ipc.transports.tcp import TcpLimits
from tests.ipc.tls_peers import HERE, Start, by_hand, dial, peers, until

QUESTION = Header(b"m" * 16, b"d" * 16, 0).encode()
"""Return a PDU that is answered with the owner id, and advances no message."""


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with peers() as begin:
        yield begin


async def test_half_a_frame_does_not_keep_a_connection_open(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start(HERE, limits=TcpLimits(idle_timeout=0.3))
    with await dial(server.address, by_hand()) as raw_client:
        raw_client.sendall(b"\x01\x00\x00\x01\x00")
        await until(lambda: server.accepted)
        with contextlib.suppress(OSError):
            for _ in range(100):
                raw_client.sendall(b"x")
                await asyncio.sleep(0.01)
                if not server.accepted:
                    break
        assert not server.accepted
    assert server.calls == []


@pytest.mark.parametrize(
    ("sent", "rule"),
    [(b"\x01\x7f\xff\xff\xff" + bytes(100), "IPC-TCP-3"), (b"\x02\x00\x00\x00\x00", "IPC-TCP-2")],
    ids=["an oversized frame", "a frame of another type"],
)
async def test_an_invalid_frame_ends_the_connection(start: Start, sent: bytes, rule: str) -> None:
    server = await start(HERE)
    with await dial(server.address, by_hand()) as raw_client:
        raw_client.sendall(frame_head(len(QUESTION)) + QUESTION + sent)
        assert await asyncio.to_thread(raw_client.recv, 100)  # the answer to the question
        assert await asyncio.to_thread(raw_client.recv, 1) == b""
        await until(lambda: not server.accepted)
    assert server.calls == [1]
    assert rule in server.transient_errors[0][1]


async def test_a_malformed_pdu_ends_the_connection(start: Start) -> None:
    """IPC-TCP-2: the PDUs before it are processed."""
    server = await start(HERE)
    with await dial(server.address, by_hand()) as raw_client:
        raw_client.sendall(frame_head(len(QUESTION)) + QUESTION + frame_head(1) + b"\xff")
        assert await asyncio.to_thread(raw_client.recv, 100)  # the answer to the question
        assert await asyncio.to_thread(raw_client.recv, 1) == b""
        await until(lambda: not server.accepted)
    assert "IPC-TCP-2" in server.transient_errors[0][1]


async def test_useless_pdus_do_not_keep_a_connection_open(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start(HERE, limits=TcpLimits(idle_timeout=0.3))
    with await dial(server.address, by_hand()) as raw_client:
        await until(lambda: server.accepted)
        with contextlib.suppress(OSError):
            for _ in range(500):
                raw_client.sendall(frame_head(len(QUESTION)) + QUESTION)
                await asyncio.sleep(0.01)
                if not server.accepted:
                    break
        assert not server.accepted


async def test_incomplete_pdus_share_one_bounded_buffer(start: Start) -> None:
    """IPC-TCP-10: above it, the connections that were useful least recently are closed."""
    server = await start(HERE, limits=TcpLimits(max_partial=1024 * 1024))
    client = await start()
    assert (await client.send(server.address, b"x")).code == Code.SUCCESS
    raw_clients = [await dial(server.address, by_hand()) for _ in range(4)]

    def has_read(left: int) -> bool:
        """Return whether all of the last PDU is held, and the peer before it is disconnected."""
        held = server.transport._partial
        return server.accepted == left and 800_000 <= held <= 1024 * 1024

    for left, raw_client in zip((5, 4, 3, 2), raw_clients, strict=True):
        await asyncio.to_thread(raw_client.sendall, frame_head(900_000) + bytes(800_000))
        await until(partial(has_read, left))
    assert (await client.send(server.address, bytes(2_000_000))).code == Code.SUCCESS
    for raw_client in raw_clients:
        raw_client.close()
    await until(lambda: server.accepted == 1)
    assert server.transport._partial == 0


async def test_a_peer_that_does_not_read_costs_a_bounded_buffer(start: Start) -> None:
    limits = TcpLimits(idle_timeout=1.0)
    server = await start(HERE, ack_timeout=0.3, receive_timeout=0.3, limits=limits)
    with await dial(server.address, by_hand()) as raw_client:
        raw_client.sendall(frame_head(len(QUESTION)) + QUESTION)
        await until(lambda: server.remotes)
        (remote,) = server.remotes
        (connection,) = server.transport._up.values()
        ends = [server.start(remote, bytes(250_000)) for _ in range(100)]
        await until(lambda: connection.is_busy)
        assert not all(end.done() for end in ends)
        codes = {end.code for end in await asyncio.gather(*ends)}
        assert codes <= {Code.SEND_TIMEOUT}
        stream = connection._transport
        assert stream is None or stream.get_write_buffer_size() < FULL + 4 * 1024 * 1024
        await until(lambda: not server.accepted)
    assert server.exchange.leftovers() == {}


async def test_peers_that_do_not_read_share_one_bounded_buffer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPC-TCP-9: above it acks are dropped for peers that do not read, and only for those."""
    most = 500_000
    monkeypatch.setattr(tcp, "_MAX_UNSENT", most)
    server, client = await start(HERE), await start()
    questions = (frame_head(len(QUESTION)) + QUESTION) * 5_000

    def ask(raw_client: socket.socket) -> None:
        raw_client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw_client.settimeout(1)
        with contextlib.suppress(OSError):
            for _ in range(25):
                raw_client.sendall(questions)

    raw_clients = [await dial(server.address, by_hand()) for _ in range(2)]
    for raw_client in raw_clients:
        await asyncio.to_thread(ask, raw_client)
    assert most < server.transport._unsent < 2 * most
    assert (await client.send(server.address, b"hello")).code == Code.SUCCESS
    for raw_client in raw_clients:
        raw_client.close()
    await until(lambda: server.accepted == 1)
    assert server.transport._unsent == 0


async def test_a_slow_reader_gets_everything(start: Start) -> None:
    server, client = await start(HERE), await start()
    await client.send(server.address, b"first")
    (accepted,) = server.transport._up.values()
    assert accepted._transport is not None
    accepted._transport.pause_reading()
    remote = await client.transport.locate(server.address)
    ends = [client.start(remote, bytes(200_000)) for _ in range(100)]
    (connection,) = client.transport._up.values()
    await until(lambda: connection.is_busy, 1.0)
    accepted._transport.resume_reading()
    assert {end.code for end in await asyncio.gather(*ends)} == {Code.SUCCESS}


async def test_a_pdu_counts_as_sent_only_when_the_buffer_has_room(start: Start) -> None:
    """IPC-TCP-9."""
    server, client = await start(HERE), await start()
    await client.send(server.address, b"first")
    (accepted,) = server.transport._up.values()
    (connection,) = client.transport._up.values()
    assert accepted._transport is not None
    accepted._transport.pause_reading()
    remote = await client.transport.locate(server.address)
    ends = [client.start(remote, bytes(200_000)) for _ in range(100)]
    await until(lambda: connection.is_busy)
    held = list(connection._transfers)
    attempts = [sending.attempts for sending in held]
    assert held
    await asyncio.sleep(0.4)  # twice the longest backoff
    assert [sending.attempts for sending in held] == attempts
    assert connection._transfers[: len(held)] == held
    accepted._transport.resume_reading()
    assert {end.code for end in await asyncio.gather(*ends)} == {Code.SUCCESS}
    assert connection._transfers == []


async def test_a_connection_disables_nagle_and_detects_dead_peers(start: Start) -> None:
    server, client = await start(HERE), await start()
    await client.send(server.address, b"x")
    for peer in (server, client):
        (connection,) = peer.transport._up.values()
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        dead_after = getattr(socket, "TCP_USER_TIMEOUT", None)
        assert dead_after is None or sock.getsockopt(socket.IPPROTO_TCP, dead_after) == 2_500
