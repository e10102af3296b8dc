"""Parsing and resolving of addresses."""

import socket

import pytest

from aqueduct.errors import ConnectError
from aqueduct.transport.address import format_address, resolve, split_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:4433", ("localhost", 4433)),
        ("localhost", ("localhost", 4433)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 4433)),
        ("aqueduct://example.test:5/", ("example.test", 5)),
        ("aqueduct://example.test", ("example.test", 4433)),
        (":4433", ("", 4433)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    "text", ["host:port", "host:65536", "host:-1", "host:", "http://host:1", "host/path:1"]
)
def test_a_malformed_port_is_an_error_that_names_the_address(text: str) -> None:
    with pytest.raises(ConnectError, match=f"not an address: '{text}'"):
        split_address(text)


@pytest.mark.parametrize("text", ["::1", "::1:9", "fe80::1", ":::::x"])
def test_an_ipv6_address_needs_brackets(text: str) -> None:
    with pytest.raises(ConnectError, match=r"in brackets: \[::1\]:4433"):
        split_address(text)


def test_a_shown_address_can_be_parsed_again() -> None:
    assert format_address(("::1", 9)) == "[::1]:9"
    assert format_address(("host", 9)) == "host:9"
    assert format_address(("memory://name", 0)) == "memory://name"
    assert split_address(format_address(("::1", 9))) == ("::1", 9)


async def test_a_resolved_address_has_its_family() -> None:
    assert await resolve("127.0.0.1", 7) == [(socket.AF_INET, ("127.0.0.1", 7))]
    assert (socket.AF_INET6, ("::1", 7)) in await resolve("::1", 7)


async def test_an_unknown_host_is_an_error_that_names_it() -> None:
    with pytest.raises(ConnectError, match=r"cannot find 'no-such-host\.invalid'"):
        await resolve("no-such-host.invalid", 1)
