"""Parse and resolve addresses of hosts."""

from __future__ import annotations

import asyncio
import socket

from aqueduct.errors import ConnectError

Address = tuple[str, int]
"""A host and a port. Transports without ports use numbers of their own."""

Route = tuple[int, Address]
"""One way to a server: an address family of the socket module and an address."""

SCHEME = "aqueduct://"
DEFAULT_PORT = 4433


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[::1]:port`` or ``aqueduct://host:port``."""
    text = address.removeprefix(SCHEME).rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        advice = "host:port" if "/" in host else "an IPv6 address in brackets: [::1]:4433"
        raise ConnectError(f"not an address: {address!r}; write {advice}")
    number = int(port) if port.isascii() and port.isdigit() else -1
    if not 0 <= number <= 65_535 or not set(host).isdisjoint("/[] "):
        raise ConnectError(f"not an address: {address!r}; write host:port")
    return host, number


async def resolve(host: str, port: int) -> list[Route]:
    """Return the addresses of a host, each with its family; raise `ConnectError` for none."""
    loop = asyncio.get_running_loop()
    try:
        try:
            numeric = socket.AI_NUMERICHOST
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=numeric)
        except socket.gaierror:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise ConnectError(f"cannot find {host!r}: {error.strerror}") from None
    return [(family, (str(where[0]), int(where[1]))) for family, _, _, _, where in found]


def format_address(address: Address) -> str:
    """Return an address as users write it, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
