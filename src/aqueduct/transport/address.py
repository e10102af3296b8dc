"""Parse and resolve addresses of hosts."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from aqueduct.errors import BindError, ConnectError, HostUnreachable

Address = tuple[str, int]
"""A host and a port. Transports without ports use numbers of their own."""

Route = tuple[int, Address]
"""One way to a server: an address family of the socket module and an address."""

SCHEME = "aqueduct://"
QUIC_SCHEME = "aqueduct+quic://"
TCP_SCHEME = "aqueduct+tcp://"
DEFAULT_PORT = 4433

_BIND_HINTS = {
    errno.EADDRINUSE: "choose another port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "choose an address of this host, or 0.0.0.0 for all of them",
    errno.EACCES: "choose a port above 1023, or one that this user may bind",
}
"""What to do about an address that cannot be bound."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[::1]:port``, with one of the schemes or none."""
    text = address
    for scheme in (SCHEME, QUIC_SCHEME, TCP_SCHEME):
        text = text.removeprefix(scheme)
    text = text.rstrip("/")
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
    if "://" in host:
        return host  # of a transport without ports
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(kind: int, family: int, where: Address, address: str) -> socket.socket:
    """Return a socket of this kind that is bound; raise `BindError` if that is impossible."""
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, kind)
        if kind == socket.SOCK_STREAM:  # connections of an earlier server may still be closing
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise BindError(
            f"cannot listen on {address}: {error.strerror}",
            address=address,
            hint=_BIND_HINTS.get(error.errno or 0, ""),
        ) from None
    return sock


def unreachable(peer: Address, error: int) -> HostUnreachable:
    """Return the error for a server to which TCP cannot connect."""
    where, reason = format_address(peer), os.strerror(error)
    if error == errno.ECONNREFUSED:
        return HostUnreachable(
            f"nothing listens at {where} ({reason})", hint="start the server first"
        )
    return HostUnreachable(
        f"cannot reach {where} ({reason})",
        hint="check the address, and that this host has a route to it",
    )
