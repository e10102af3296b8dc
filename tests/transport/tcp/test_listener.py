"""TCP servers on real sockets: clients that are slow, silent, hostile or not ours."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aqueduct
from aqueduct import QuicSettings
from aqueduct.protocol.events import ConnectionEnded
from aqueduct.transport.tcp.engine import FRAMES
from aqueduct.transport.tcp.listener import TcpListener
from aqueduct.transport.tcp.records import (
    MAX_INTEGER,
    MAX_RECORD,
    Close,
    Frame,
    Parameters,
    StreamData,
    StreamLimit,
    encode_frame,
    encode_integer,
)
from aqueduct.transport.tcp.transport import ALPN
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import ConnectionHeaders, MessageFrame, RouteTo, Version
from tests.processes.peers import TIMEOUT, eventually

HERE = "aqueduct+tcp://127.0.0.1:0"


@pytest.fixture(autouse=True)
def own_certificates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path_factory.mktemp("dev")))


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[aqueduct.Server[bytes]]:
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve(HERE, tls=aqueduct.dev_tls(), options=QuicSettings(**options)) as server,
    ):
        yield server


def listener_of(server: aqueduct.Server[Any]) -> TcpListener:
    listener = server._listener
    assert isinstance(listener, TcpListener)
    return listener


def address_of(server: aqueduct.Server[Any]) -> tuple[str, int]:
    host, port = server.address.removeprefix("aqueduct+tcp://").split(":")
    return host, int(port)


def dial(server: aqueduct.Server[Any], source: str = "127.0.0.1") -> socket.socket:
    """Return a bare TCP connection to a server."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    assert sock.connect_ex(address_of(server)) in (0, errno.EINPROGRESS)
    return sock


async def ends(sock: socket.socket) -> bool:
    """Return whether the peer ends a connection, whatever it sends before."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while await loop.sock_recv(sock, 65_536):
            pass
    sock.close()
    return True


def connect(server: aqueduct.Server[Any], **options: Any) -> Any:
    return aqueduct.connect(server.address, trust=aqueduct.dev_trust(), **options)


@pytest.mark.parametrize(
    "first", [b"", b"\x16\x03", b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" * 2, bytes(1_000)]
)
async def test_a_client_that_does_not_begin_with_tls_is_dropped(first: bytes) -> None:
    """AQ-TCP-1: at once if that is certain, else when the time for the handshake is over."""
    async with serving(handshake_timeout=0.3) as server:
        sock = dial(server)
        await asyncio.sleep(0.05)
        sock.send(first)
        assert await ends(sock)
        await eventually(lambda: not listener_of(server)._open, "nothing is kept")
        async with connect(server) as connection:
            assert connection.is_open


async def test_silent_connections_are_displaced_by_clients_of_other_addresses() -> None:
    async with serving(max_half_open=20, handshake_timeout=600.0) as server:
        silent = [dial(server, "127.0.0.2") for _ in range(60)]
        listener = listener_of(server)
        await eventually(lambda: len(listener._open) == 20, "no more are kept")
        async with connect(server) as connection:
            assert connection.is_open
        for sock in silent:
            sock.close()
        await eventually(lambda: not listener._open, "they are gone")
        assert not listener._admission._accounts._accounts


async def test_one_address_cannot_use_up_all_connections() -> None:
    async with serving(max_connections=20) as server:
        many = [await connect(server) for _ in range(18)]
        assert len(many) == 18
        with pytest.raises(aqueduct.ConnectError):
            await connect(server, timeout=0.3)
        assert len(listener_of(server)._open) == 18
        sock = dial(server, "127.0.0.2")
        await eventually(lambda: len(listener_of(server)._open) == 19, "another address gets in")
        sock.close()
        for connection in many:
            await connection.close()


async def test_a_connection_is_half_open_until_it_is_accepted() -> None:
    decided = asyncio.Event()

    async def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
        await decided.wait()
        return aqueduct.Accept()

    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve(HERE, tls=aqueduct.dev_tls(), accept=accept) as server,
    ):
        listener = listener_of(server)
        connecting = asyncio.ensure_future(connect(server).__aenter__())
        await eventually(lambda: bool(server._tasks), "the client connects")
        assert len(listener._admission.half_open) == 1
        decided.set()
        connection = await connecting
        assert len(listener._admission.half_open) == 0
        assert all(timer is None for timer in listener._open.values())
        await connection.close()
        await eventually(lambda: not listener._open, "the tables are empty")


@pytest.mark.parametrize("protocols", [["h2"], ["aqueduct"], []])
async def test_a_client_of_another_protocol_is_dropped(protocols: list[str]) -> None:
    """AQ-TCP-2."""
    context = ssl.create_default_context(cadata=_authority())
    if protocols:
        context.set_alpn_protocols(protocols)
    async with serving() as server:
        host, port = address_of(server)
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        assert await reader.read() == b""
        writer.close()
        await eventually(lambda: not listener_of(server)._open, "nothing is kept")


async def test_a_client_with_an_older_tls_is_refused() -> None:
    """AQ-TCP-1."""
    context = ssl.create_default_context(cadata=_authority())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving() as server:
        host, port = address_of(server)
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(host, port, ssl=context)


async def test_a_client_that_breaks_a_rule_of_records_gets_the_rule() -> None:
    """AQ-TCP-4."""
    async with serving() as server:
        reader, writer = await asyncio.open_connection(*address_of(server), ssl=_context())
        writer.write(b"\x01\x00")
        assert b"AQ-TCP-4" in await reader.read()
        writer.close()


async def test_a_client_that_reads_nothing_is_bounded_and_ends_when_it_is_silent() -> None:
    """What a server writes waits in its core, where the windows bound it."""
    async with serving(idle_timeout=1.0, keep_alive=0.3) as server, connect(server) as client:
        connection = await server.accept()
        transport: Any = client._driver.transport
        transport._stop_reading()
        sender, receiver = aqueduct.channel()
        await client.entrypoint.send(b"", attach=[sender])
        (theirs,) = (await connection.entrypoint.receive_message()).attachments

        async def flood() -> None:
            while True:
                await theirs.send(bytes(100_000))

        with pytest.raises(aqueduct.ConnectionLost):
            await flood()
        assert connection.statistics()["send_buffer"] < 2 * 1024 * 1024
        del receiver
        transport.abandon("the test is over")
        transport.close()


async def test_a_client_with_tiny_frames_gets_turns_like_others_and_none_is_lost() -> None:
    """Its input waits between its turns, also the end of it."""
    turns = 0
    async with serving() as server:
        _, writer = await asyncio.open_connection(*address_of(server), ssl=_context())
        headers = Version().encode() + ConnectionHeaders(()).encode()
        hello = StreamData(2, 0, headers, fin=False)
        writer.write(_record(Parameters(0, MAX_INTEGER, MAX_INTEGER, 1_000, 65_535), hello))
        connection = await server.accept()
        transport: Any = connection._driver.transport
        resume = transport._resume

        def count(now: float) -> None:
            nonlocal turns
            turns += 1
            resume(now)

        transport._resume = count
        text = Version().encode() + RouteTo(ENTRYPOINT).encode()
        message = StreamData(6, 0, text + MessageFrame(0, (), (), b"last").encode(), fin=False)
        many = _record(*[StreamLimit(0)] * (MAX_RECORD // 2))
        writer.write(many * 8 + _record(message))
        assert await connection.entrypoint.receive() == b"last"
        assert turns >= 8 * MAX_RECORD // 2 // FRAMES - 8
        writer.write(many + _record(Close(aqueduct.CloseCode.NO_ERROR, "enough")))
        writer.close()
        await connection.wait_closed()
        expected = ConnectionEnded(aqueduct.CloseCode.NO_ERROR, "enough", True)
        assert connection._driver.ended == expected


async def test_what_was_sent_before_a_close_arrives_although_the_closing_side_has_unread_data() -> (
    None
):
    """AQ-TCP-11: a socket that is closed before it was read to its end resets the connection."""
    for _ in range(5):
        async with serving() as server:
            client = await connect(server)
            connection = await server.accept()
            transport: Any = connection._driver.transport
            transport._stop_reading()
            for _ in range(50):
                await client.entrypoint.send(bytes(5_000))
            await asyncio.sleep(0.02)
            transport.core.close_connection(aqueduct.CloseCode.REFUSED, "enough", transport.now())
            transport.flush()
            transport.close()
            await client.wait_closed()
            expected = ConnectionEnded(aqueduct.CloseCode.REFUSED, "enough", True)
            assert client._driver.ended == expected
            await client.close()


async def test_tasks_of_the_same_turn_see_a_connection_that_a_timer_has_ended_as_lost() -> None:
    async with serving() as server, connect(server) as client:
        transport: Any = client._driver.transport
        transport._close_by = 0.0
        transport._wake()
        with pytest.raises(aqueduct.ConnectionLost):
            client.entrypoint.send_nowait(b"")


async def test_a_listener_that_stopped_accepting_frees_its_port() -> None:
    async with serving() as server:
        listener_of(server).stop_accepting()
        with pytest.raises(aqueduct.HostUnreachable, match="nothing listens"):
            await connect(server)


async def test_a_process_without_file_descriptors_accepts_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aqueduct.transport.tcp.listener._PAUSE", 0.05)
    async with serving() as server:
        listener = listener_of(server)
        real = listener._socket

        class Exhausted:
            """A socket whose process has no descriptor left for a while."""

            failures = 3

            def accept(self) -> Any:
                if self.failures:
                    self.failures -= 1
                    raise OSError(errno.EMFILE, "too many open files")
                return real.accept()

            def fileno(self) -> int:
                return real.fileno()

            def close(self) -> None:
                real.close()

        listener._socket = Exhausted()  # type: ignore[assignment]
        async with connect(server) as connection:
            assert connection.is_open
        assert Exhausted.failures == 3


def _authority() -> str:
    authorities = aqueduct.dev_trust().authorities
    assert authorities is not None
    return authorities.decode()


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=_authority())
    context.set_alpn_protocols([ALPN])
    return context


def _record(*frames: Frame) -> bytes:
    contents = b"".join(map(encode_frame, frames))
    return encode_integer(len(contents)) + contents
