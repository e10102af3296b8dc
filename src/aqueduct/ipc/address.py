"""Addresses of endpoints: ``udp://host:port``, ``tls://host:port`` and ``local://name``."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from aqueduct.errors import ConnectError

SCHEMES = ("udp", "tls", "local")


class Place(NamedTuple):
    """An address in its parts; a local one has its name as the host."""

    scheme: str
    host: str
    port: int


def parse(address: str) -> Place:
    """The parts of an address; raises `ConnectError` with what is wrong."""
    try:
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError as error:
        raise ConnectError(f"not an address: {address!r}: {error}") from None
    if parts.scheme not in SCHEMES:
        raise ConnectError(
            f"not an address: {address!r}; write udp://host:port for this host, "
            "tls://host:port for another, local://name for this process"
        )
    if any(character.isspace() for character in address):
        raise ConnectError(f"not an address: {address!r}; there is white space in it")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ConnectError(f"not an address: {address!r}; nothing follows host and port")
    return Place(parts.scheme, parts.hostname or "", port)


def unparse(scheme: str, host: str, port: int) -> str:
    """The address of a host and port."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
