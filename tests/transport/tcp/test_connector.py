"""TCP clients on real sockets: servers that are missing, silent or not ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import aqueduct
from aqueduct.security import make_certificate
from aqueduct.transport.tls import server_context

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a server that is not ours."""
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            await handler(reader, writer)

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"aqueduct+tcp://127.0.0.1:{port}"
    finally:
        listening.close()
        for writer in writers:
            writer.close()


async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    writer.close()


async def test_nothing_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"aqueduct+tcp://127.0.0.1:{sock.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(aqueduct.HostUnreachable, match="nothing listens at 127") as caught:
            await aqueduct.connect(address, trust=aqueduct.Trust(), timeout=120)
        assert caught.value.hint == "start the server first"
        assert time.monotonic() - began < 60.0


async def test_a_silent_server_is_a_timeout() -> None:
    async with server(be_silent) as address:
        with pytest.raises(aqueduct.ConnectTimeout, match="running, and TCP allowed on the path"):
            await aqueduct.connect(address, trust=aqueduct.Trust(), timeout=0.2)


async def test_a_server_that_hangs_up_is_tried_again_until_the_timeout() -> None:
    async with server(hang_up) as address:
        with pytest.raises(aqueduct.HandshakeFailed, match="disconnected without a close"):
            await aqueduct.connect(address, trust=aqueduct.Trust(), timeout=2)


async def test_a_server_of_another_protocol_is_a_connect_error() -> None:
    async with server(speak_http) as address:
        with pytest.raises(aqueduct.ConnectError, match="is not a server of Aqueduct"):
            await aqueduct.connect(address, trust=aqueduct.Trust())


@pytest.mark.parametrize("protocol", ["h2", ""])
async def test_a_tls_server_of_another_protocol_is_a_connect_error(protocol: str) -> None:
    """AQ-TCP-2."""
    pair = make_certificate(["127.0.0.1"])
    context = server_context(pair, protocol)
    async with server(be_silent, context) as address:
        with pytest.raises(aqueduct.ConnectError, match="is not a server of Aqueduct"):
            await aqueduct.connect(address, trust=aqueduct.pin(pair.fingerprint))


async def test_an_older_tls_is_a_connect_error(tmp_path: Path) -> None:
    """AQ-TCP-1."""
    pair = make_certificate(["127.0.0.1"])
    (tmp_path / "pair.pem").write_bytes(pair.key + pair.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with server(be_silent, context) as address:
        with pytest.raises(aqueduct.ConnectError):
            await aqueduct.connect(address, trust=aqueduct.pin(pair.fingerprint), timeout=0.3)


@pytest.mark.parametrize("address", ["aqueduct+tcp://:4433", "aqueduct+tcp://localhost:0"])
async def test_an_address_without_a_host_or_port_is_a_connect_error(address: str) -> None:
    with pytest.raises(aqueduct.ConnectError, match="is missing"):
        await aqueduct.connect(address, trust=aqueduct.Trust())
