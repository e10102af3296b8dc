"""Addresses of endpoints."""

import pytest

from aqueduct.errors import ConnectError
from aqueduct.ipc.address import ParsedAddress, parse, unparse


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("udp://127.0.0.1:5000", ParsedAddress("udp", "127.0.0.1", 5000)),
        ("udp://:0", ParsedAddress("udp", "", 0)),
        ("udp://[::1]:5000", ParsedAddress("udp", "::1", 5000)),
        ("tls://example.org:443/", ParsedAddress("tls", "example.org", 443)),
        ("tls://", ParsedAddress("tls", "", 0)),
        ("local://name", ParsedAddress("local", "name", 0)),
        ("local://Name", ParsedAddress("local", "Name", 0)),
    ],
)
def test_an_address_has_parts(address: str, parsed: ParsedAddress) -> None:
    assert parse(address) == parsed


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("127.0.0.1:5000", "udp://host:port"),
        ("", "udp://host:port"),
        ("http://example.org", "tls://host:port"),
        ("udp://host:port", "Port could not be cast"),
        ("udp://host:70000", "Port out of range"),
        ("udp://host:1/path", "nothing follows"),
        ("udp://user@host:1", "nothing follows"),
        ("udp://a host:1", "white space"),
        ("local://name:5", "has no port"),
    ],
)
def test_an_invalid_address_is_rejected_with_advice(address: str, advice: str) -> None:
    with pytest.raises(ConnectError, match=advice):
        parse(address)


@pytest.mark.parametrize("address", ["udp://127.0.0.1:5000", "tls://[::1]:5000"])
def test_an_address_is_built_from_its_parts(address: str) -> None:
    assert unparse(*parse(address)) == address


def test_an_address_that_is_not_a_string_is_rejected() -> None:
    with pytest.raises(TypeError, match="an address is a string"):
        parse(5)  # type: ignore[arg-type]


def test_advice_names_only_the_allowed_schemes() -> None:
    with pytest.raises(ConnectError) as raised:
        parse("local://x", schemes=("udp", "tls"))
    assert str(raised.value).endswith(
        "write udp://host:port for this host, tls://host:port for another"
    )
