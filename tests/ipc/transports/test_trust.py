"""Verification of certificates, and the errors for untrusted ones."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aqueduct.errors import TLSError
from aqueduct.ipc.core.pdu import Code
from aqueduct.security import ServerTLS, Trust, make_authority, make_certificate, pin
from aqueduct.transport.tls import client_context, server_context
from tests.ipc.tls_peers import AUTHORITY, HERE, PAIR, TRUST, Start, by_hand, dial, peers, until


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with peers() as begin:
        yield begin


async def refused(start: Start, server: ServerTLS, trust: Trust, host: str = "127.0.0.1") -> str:
    """Return the error of a client that rejects a server (IPC-TCP-4)."""
    listening = await start(HERE, tls=server)
    client = await start(trust=trust)
    port = listening.address.rpartition(":")[2]
    ended = await client.send(f"tls://{host}:{port}", b"secret payload")
    assert ended.code == Code.APPLICATION
    assert not ended.exposed
    assert listening.calls == []
    ((_, error),) = client.errors
    assert isinstance(error, TLSError)
    assert ended.reason == str(error)
    await until(lambda: not listening.accepted)
    assert (await client.send(f"tls://{host}:{port}", b"again")).code == Code.APPLICATION
    return str(error)


async def test_a_certificate_of_another_authority_is_not_trusted(start: Start) -> None:
    other = Trust(authorities=make_authority("another").certificate)
    why = await refused(start, PAIR, other)
    assert "trust the authority that signed it, or its fingerprint" in why


async def test_the_system_store_does_not_trust_a_private_authority(start: Start) -> None:
    assert "not trusted" in await refused(start, PAIR, Trust())


async def test_a_certificate_for_another_name_is_not_trusted(start: Start) -> None:
    pair = make_certificate(["elsewhere.example"], AUTHORITY)
    why = await refused(start, pair, TRUST)
    assert "Use a name that it holds" in why
    assert "mismatch" in why
    assert "mismatch" in await refused(start, pair, TRUST, "localhost")


async def test_an_expired_certificate_is_not_trusted(start: Start) -> None:
    why = await refused(start, make_certificate(["127.0.0.1"], AUTHORITY, days=-0.5), TRUST)
    assert "expired; the server needs a new one" in why


async def test_a_certificate_with_another_fingerprint_is_not_trusted(start: Start) -> None:
    why = await refused(start, PAIR, pin("ab" * 32))
    assert f"has the fingerprint {PAIR.fingerprint} and not the pinned one" in why


async def test_a_pinned_certificate_is_trusted_whatever_its_name(start: Start) -> None:
    pair = make_certificate(["elsewhere.example"])
    server = await start(HERE, tls=pair)
    client = await start(trust=pin(pair.fingerprint))
    assert (await client.send(server.address, b"x")).code == Code.SUCCESS


async def test_a_server_without_tls_1_3_is_refused(start: Start) -> None:
    """IPC-TCP-4."""
    server, client = await start(HERE), await start()
    context = server.transport._server_context
    assert context is not None
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    ended = await client.send(server.address, b"x")
    assert ended.code == Code.APPLICATION
    assert "does not speak TLS 1.3" in ended.reason


async def test_a_client_without_tls_1_3_is_refused(start: Start) -> None:
    """IPC-TCP-4."""
    server = await start(HERE)
    context = by_hand()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await dial(server.address, context)
    await until(lambda: not server.accepted)


async def test_a_server_that_does_not_speak_tls_is_refused(start: Start) -> None:
    client = await start()

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ready\r\n" * 10)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ended = await client.send(f"tls://127.0.0.1:{port}", b"x")
    assert ended.code == Code.APPLICATION
    assert "is it an endpoint with a tls:// address?" in ended.reason


async def test_secrets_do_not_appear_in_logs_or_reprs(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await refused(start, PAIR, pin("ab" * 32))
    server, client = await start(HERE), await start()
    await client.send(server.address, b"the payload")
    transport = server.transport
    shown = " ".join([repr(transport), repr(vars(transport)), caplog.text])
    secret = PAIR.key.split(b"\n")[1].decode()
    assert secret not in shown
    assert "the payload" not in shown


def test_without_memfd_a_key_is_on_disk_only_while_openssl_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, path: str) -> None:
        assert Path(path).parent == tmp_path
        modes.append(stat.S_IMODE(Path(path).stat().st_mode))
        load(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    assert server_context(PAIR).minimum_version is ssl.TLSVersion.TLSv1_3
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []


def test_an_authority_that_is_not_pem_is_rejected() -> None:
    with pytest.raises(TLSError, match="not PEM"):
        client_context(Trust(authorities=b"not PEM"))


def test_there_is_no_context_that_verifies_nothing() -> None:
    for trust in (Trust(), TRUST):
        context = client_context(trust)
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
