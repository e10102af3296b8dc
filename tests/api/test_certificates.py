"""Client certificates (mTLS) over TCP: who gets in, what servers learn of them, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aqueduct
from aqueduct import ClientCertificate, blocking
from aqueduct.security import (
    CERTIFICATE_HINT,
    ServerTLS,
    fingerprint,
    make_authority,
    make_certificate,
    make_client_certificate,
)
from aqueduct.transport.tcp.transport import ALPN
from tests.processes.peers import TIMEOUT, eventually

CLIENTS = make_authority("our clients")
ANN = make_client_certificate("ann", CLIENTS)
HERE = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path / "dev"))


@contextlib.asynccontextmanager
async def serving(address: str = HERE, **options: Any) -> AsyncIterator[aqueduct.Server[bytes]]:
    clients = aqueduct.trust(CLIENTS.certificate)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve(address, tls=aqueduct.dev_tls(), client_trust=clients, **options) as server,
    ):
        yield server


def connect(server: aqueduct.Server[Any], certificate: ServerTLS | None, **options: Any) -> Any:
    return aqueduct.connect(
        server.address, trust=aqueduct.dev_trust(), certificate=certificate, **options
    )


async def test_accept_and_handlers_get_the_verified_certificate() -> None:
    """AQ-TCP-1."""
    seen: list[Any] = []

    async def accept(
        headers: aqueduct.Headers, peer: tuple[str, int], certificate: ClientCertificate
    ) -> aqueduct.Accept:
        seen.append((headers.text("from"), peer[0], certificate))
        return aqueduct.Accept(certificate.name)

    async with (
        serving(accept=accept) as server,
        connect(server, ANN, headers={"from": "here"}) as client,
    ):
        connection = await server.accept()
        certificate = connection.certificate
        assert certificate is not None
        assert seen == [("here", "127.0.0.1", certificate)]
        assert connection.identity == certificate.name == "ann"
        assert certificate.fingerprint == fingerprint(ANN.certificate)
        await client.entrypoint.send(b"hello")
        assert await connection.entrypoint.receive() == b"hello"


async def test_a_server_without_accept_lets_in_clients_with_a_certificate() -> None:
    async with serving() as server, connect(server, ANN):
        connection = await server.accept()
        assert connection.identity is None
        assert connection.certificate is not None
        assert connection.certificate.name == "ann"


@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        (None, "asks for a certificate"),
        (make_client_certificate("eve", make_authority("others")), "UNKNOWN_CA"),
        (make_client_certificate("late", CLIENTS, days=-0.5), "EXPIRED"),
        (make_certificate(["ann"], CLIENTS), "UNSUPPORTED_CERTIFICATE"),
        (make_certificate(["ann"]), "UNKNOWN_CA"),
    ],
    ids=["none", "another authority", "expired", "of a server", "of itself"],
)
async def test_a_client_that_is_not_trusted_is_unauthenticated(
    certificate: ServerTLS | None, why: str
) -> None:
    """AQ-TCP-1. The server reads no headers of such a client, and keeps nothing."""
    asked: list[Any] = []

    def accept(*arguments: Any) -> aqueduct.Accept:
        asked.append(arguments)
        return aqueduct.Accept()

    async with serving(accept=accept) as server:
        for _ in range(5):  # a reset does not overtake the alert
            with pytest.raises(aqueduct.Unauthenticated, match=why) as caught:
                await connect(server, certificate)
        assert caught.value.hint == (CERTIFICATE_HINT if certificate is None else "")
        assert not asked
        listener: Any = server._listener
        await eventually(lambda: not listener._open, "nothing is kept")
        async with connect(server, ANN) as client:
            assert client.is_open
    assert len(asked) == 1


async def test_nothing_of_a_client_is_processed_before_it_is_verified() -> None:
    """AQ-TCP-1: its handshake is complete before, so that it may send at once."""
    context = ssl.create_default_context(cadata=(aqueduct.dev_trust().authorities or b"").decode())
    context.set_alpn_protocols([ALPN])
    async with serving() as server:
        host, port = server.address.removeprefix("aqueduct+tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(bytes(10_000))  # no records
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await reader.read()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
        assert not server._ready


async def test_a_refusal_for_a_certificate_is_like_any_other() -> None:
    def accept(*arguments: Any) -> aqueduct.Accept:
        raise aqueduct.Refuse("not on the list", unauthenticated=True)

    async with serving(accept=accept) as server:
        with pytest.raises(aqueduct.Unauthenticated, match="not on the list"):
            await connect(server, ANN)


async def test_a_server_that_asks_for_no_certificate_ignores_one() -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve(HERE, tls=aqueduct.dev_tls()) as server,
        connect(server, ANN) as client,
    ):
        assert client.is_open
        assert (await server.accept()).certificate is None


async def test_a_server_that_verifies_clients_listens_on_tcp_only() -> None:
    """Over QUIC it could not ask, and would let everybody in."""
    async with serving() as server:
        assert server.address.startswith("aqueduct+tcp://")
        port = int(server.address.rpartition(":")[2])
        async with connect(server, ANN):
            pass
        plain = f"127.0.0.1:{port}"
        trust = aqueduct.dev_trust()
        async with aqueduct.connect(plain, trust=trust, certificate=ANN) as client:
            assert client.is_open
        with pytest.raises(aqueduct.HostUnreachable):
            await aqueduct.connect(f"aqueduct+quic://{plain}", trust=trust, timeout=60)


async def test_another_transport_than_tcp_is_an_error_at_either_side() -> None:
    clients = aqueduct.trust(CLIENTS.certificate)
    for address in ("aqueduct+quic://127.0.0.1:0", "memory://certified"):
        with pytest.raises(
            aqueduct.TLSError, match="no client can present a certificate"
        ) as caught:
            await aqueduct.serve(address, tls=aqueduct.dev_tls(), client_trust=clients)
        assert "aqueduct+tcp://" in caught.value.hint
    with pytest.raises(aqueduct.TLSError, match="no client can present a certificate"):
        await aqueduct.connect(
            "aqueduct+quic://127.0.0.1:1", trust=aqueduct.dev_trust(), certificate=ANN
        )


@pytest.mark.parametrize("clients", [aqueduct.Trust(), aqueduct.pin("ab" * 32)])
async def test_clients_are_verified_by_an_authority_and_by_nothing_else(
    clients: aqueduct.Trust,
) -> None:
    """Every certificate that an authority of the system has signed would be too many."""
    with pytest.raises(aqueduct.TLSError, match="cannot verify its clients by"):
        await aqueduct.serve(HERE, tls=aqueduct.dev_tls(), client_trust=clients)


async def test_a_certificate_whose_key_is_another_one_is_an_error_of_the_caller() -> None:
    pair = ServerTLS(ANN.certificate, make_client_certificate("eve", CLIENTS).key)
    with pytest.raises(aqueduct.TLSError, match="the client's key does not belong"):
        await aqueduct.connect(
            "aqueduct+tcp://127.0.0.1:1", trust=aqueduct.dev_trust(), certificate=pair
        )


def test_an_accept_callback_with_the_wrong_number_of_arguments_is_a_type_error() -> None:
    tls, clients = aqueduct.dev_tls(), aqueduct.trust(CLIENTS.certificate)

    def two(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
        return aqueduct.Accept()

    def three(
        headers: aqueduct.Headers, peer: tuple[str, int], certificate: ClientCertificate
    ) -> aqueduct.Accept:
        return aqueduct.Accept()

    with pytest.raises(TypeError, match="function of headers, peer and certificate: too many"):
        aqueduct.serve(HERE, tls=tls, client_trust=clients, accept=two)
    with pytest.raises(TypeError, match="function of headers and peer: missing"):
        aqueduct.serve(HERE, tls=tls, accept=three)
    with pytest.raises(TypeError, match="function of headers, peer and certificate: too many"):
        blocking.serve(HERE, tls=tls, client_trust=clients, accept=two)


def test_threads_get_the_certificate_as_well() -> None:
    def accept(
        headers: aqueduct.Headers, peer: tuple[str, int], certificate: ClientCertificate
    ) -> aqueduct.Accept:
        return aqueduct.Accept(f"{certificate.name} of {peer[0]}")

    clients = aqueduct.trust(CLIENTS.certificate)
    with (
        blocking.serve(HERE, tls=aqueduct.dev_tls(), client_trust=clients, accept=accept) as server,
        blocking.connect(server.address, trust=aqueduct.dev_trust(), certificate=ANN) as client,
    ):
        connection = server.accept(timeout=TIMEOUT)
        assert connection.identity == "ann of 127.0.0.1"
        assert connection.certificate is not None
        assert connection.certificate.name == "ann"
        client.entrypoint.send(b"hello")
        assert connection.entrypoint.receive(timeout=TIMEOUT) == b"hello"


async def test_a_certificate_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenSSL may accept what our parser does not: nobody gets in without an identity."""
    where = "aqueduct.transport.tls.TlsSession.peer_certificate"
    monkeypatch.setattr(where, property(lambda self: b"\x30\x00"))
    async with serving() as server:
        with pytest.raises(aqueduct.Unauthenticated, match="malformed"):
            await connect(server, ANN)
