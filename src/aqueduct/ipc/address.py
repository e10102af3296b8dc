"""Addresses of endpoints: ``udp://host:port``, ``tls://host:port`` and ``local://name``."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import urlsplit

from aqueduct.errors import ConnectError

SCHEMES = {
    "udp": "udp://host:port for this host",
    "tls": "tls://host:port for another",
    "local": "local://name for this process",
}
"""The schemes of an address, with the advice that error messages give."""


class ParsedAddress(NamedTuple):
    """The parts of an address; the host of a local address is its name."""

    scheme: str
    host: str
    port: int


def parse(address: str, schemes: Collection[str] = tuple(SCHEMES)) -> ParsedAddress:
    """Return the parts of an address; raise `ConnectError` if it is invalid."""
    if not isinstance(address, str):
        raise TypeError(f"an address is a string such as 'udp://host:port', not {address!r}")
    try:
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError as error:
        raise ConnectError(f"not an address: {address!r}: {error}") from None
    if parts.scheme not in schemes:
        advice = ", ".join(SCHEMES[scheme] for scheme in schemes)
        raise ConnectError(f"not an address: {address!r}; write {advice}")
    if any(character.isspace() for character in address):
        raise ConnectError(f"not an address: {address!r}; there is white space in it")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ConnectError(f"not an address: {address!r}; nothing follows host and port")
    if parts.scheme == "local":
        if ":" in parts.netloc:
            raise ConnectError(f"not an address: {address!r}; a local name has no port")
        return ParsedAddress("local", parts.netloc, 0)  # the hostname of a URL loses its case
    return ParsedAddress(parts.scheme, parts.hostname or "", port)


def unparse(scheme: str, host: str, port: int) -> str:
    """Return the address of a host and port."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
