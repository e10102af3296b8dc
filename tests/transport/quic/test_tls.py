"""What a client says of a server with another certificate, or with another protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.asyncio.server import serve as serve_quic
from qh3.quic.configuration import QuicConfiguration

import aqueduct
from aqueduct import ConnectError, HandshakeFailed, HostUnreachable, TLSError
from aqueduct.security import make_authority, make_certificate
from tests.processes.peers import TIMEOUT


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


@contextlib.asynccontextmanager
async def foreign_server(alpn: list[str] | None) -> AsyncIterator[str]:
    """A QUIC server with a trusted certificate that offers these protocols."""
    settings = QuicConfiguration(is_client=False, alpn_protocols=alpn)
    pair = aqueduct.dev_tls()
    settings.load_cert_chain(pair.certificate, pair.key)
    server: Any = await serve_quic(
        "127.0.0.1", 0, configuration=settings, create_protocol=QuicConnectionProtocol
    )
    transport = server._transport
    try:
        host, port = transport.get_extra_info("sockname")
        yield f"{host}:{port}"
    finally:
        server.close()
        transport.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("alpn", [["h3"], None], ids=["another protocol", "none"])
async def test_a_quic_server_of_another_protocol_is_told_from_a_certificate_problem(
    alpn: list[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(TIMEOUT), foreign_server(alpn) as address:
        with pytest.raises(ConnectError) as caught:
            await aqueduct.connect(address, trust=aqueduct.dev_trust(), timeout=TIMEOUT)
    assert f"{address} is not a server of Aqueduct" in str(caught.value)
    assert not isinstance(caught.value, TLSError | HandshakeFailed)
    assert [one.name for one in caplog.records if one.name.startswith("quic")] == []


async def test_a_certificate_for_another_name_is_shown_with_its_names() -> None:
    authority = make_authority("ours")
    tls = make_certificate(["elsewhere.test", "192.0.2.7"], authority)
    trust = aqueduct.trust(authority.certificate)
    async with asyncio.timeout(TIMEOUT), aqueduct.serve("127.0.0.1:0", tls=tls) as server:
        wanted = r"is for elsewhere\.test, 192\.0\.2\.7, and not for 127\.0\.0\.1; check the server"
        with pytest.raises(TLSError, match=wanted):
            await aqueduct.connect(server.address, trust=trust)


async def test_a_pin_of_another_certificate_is_shown_with_both_fingerprints() -> None:
    other = make_certificate(["localhost"])
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        with pytest.raises(TLSError, match=f"and {other.fingerprint} is pinned") as caught:
            await aqueduct.connect(server.address, trust=aqueduct.pin(other.fingerprint))
        assert aqueduct.dev_tls().fingerprint in str(caught.value)


async def test_an_ipv6_address_is_written_in_brackets() -> None:
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(HostUnreachable, match=r"nothing listens at \[::1\]:9 "):
            await aqueduct.connect("[::1]:9", trust=aqueduct.dev_trust())
        async with (
            aqueduct.serve("[::1]:0", tls=aqueduct.dev_tls()) as server,
            aqueduct.connect(server.address, trust=aqueduct.dev_trust()) as connection,
        ):
            assert f"peer={server.address} " in repr(connection)
            assert server.address.startswith("[::1]:")


@pytest.mark.parametrize(
    ("address", "missing"), [("", "host"), (":4433", "host"), ("localhost:0", "port")]
)
async def test_an_address_without_host_or_port_is_rejected_at_once(
    address: str, missing: str
) -> None:
    with pytest.raises(ConnectError, match=f"the {missing} is missing"):
        await aqueduct.connect(address, trust=aqueduct.dev_trust())
