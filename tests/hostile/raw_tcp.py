"""A client over TCP that sends any bytes, in records of TLS or not, and reads when it wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from tests.hostile.attackers import HOSTS, host_and_port
from tests.hostile.raw import stream_frame, varint
from tests.interop.frames import connection_headers, version

TIMEOUT = 30.0
ALPN = "aqueduct-qx01"
MAX_INTEGER = (1 << 62) - 1
RECORD = 16_000
"""Bytes of frames in a record."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close sends RST."""


def record(frames: bytes) -> bytes:
    """Return a record with these frames."""
    return varint(len(frames)) + frames


def parameters() -> bytes:
    """Return QX_TRANSPORT_PARAMETERS as honest clients send it."""
    stated = {0x01: 15_000, 0x04: MAX_INTEGER, 0x07: MAX_INTEGER, 0x09: 100_000, 0x20: 65_535}
    contents = b"".join(
        varint(name) + varint(len(varint(value))) + varint(value) for name, value in stated.items()
    )
    return varint(0x3F5153300D0A0D0A) + varint(len(contents)) + contents


def ping(number: int) -> bytes:
    """Return QX_PING, which asks for an answer."""
    return varint(0x348C67529EF8C7BD) + varint(number)


GREETING = record(parameters() + stream_frame(2, version() + connection_headers()))
"""What a client says to be accepted."""


def client_hello() -> bytes:
    """Return the first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    session = _context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    return context


@asynccontextmanager
async def dialled(address: str, random: Random | None = None) -> AsyncIterator[socket.socket]:
    """Connect by TCP, from one of the addresses of hostile peers; a reset is the end."""
    sock = socket.socket()
    try:
        sock.setblocking(False)
        sock.bind(((random or Random(1)).choice(HOSTS), 0))
        async with asyncio.timeout(TIMEOUT):
            await asyncio.get_running_loop().sock_connect(sock, host_and_port(address))
        yield sock
    finally:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()


class RawTcpClient:
    """A TLS session on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.sent = 0
        """Bytes of plaintext that were sent."""
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context().wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._received = b""

    async def shake_hands(self) -> None:
        """Complete the handshake of TLS."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    await self._pass_on()
                    self._incoming.write(await self._recv())
                else:
                    break
            await self._pass_on()

    async def say(self, data: bytes) -> None:
        """Send plaintext; wait while the server does not read."""
        self._tls.write(data)
        self.sent += len(data)
        await self._pass_on()

    async def _pass_on(self) -> None:
        await self._loop.sock_sendall(self.socket, self._outgoing.read())

    async def _recv(self) -> bytes:
        data = await self._loop.sock_recv(self.socket, 65_536)
        if not data:
            raise ConnectionResetError("the server hung up")
        return data

    async def closing(self) -> str:
        """Return the reason with which the server closed: the tail of all that it sent."""
        plain = b""
        async with asyncio.timeout(TIMEOUT):
            with contextlib.suppress(ConnectionError, ssl.SSLZeroReturnError):
                while True:
                    try:
                        data = self._tls.read(65_536)
                    except ssl.SSLWantReadError:
                        self._incoming.write(await self._recv())
                    else:
                        if not data:
                            break
                        plain += data
        return plain[-200:].decode("latin-1")


@asynccontextmanager
async def raw_tcp_client(
    address: str, random: Random | None = None, *, greets: bool = True
) -> AsyncIterator[RawTcpClient]:
    """Connect a client that completes the handshake of TLS, and may ask to be accepted."""
    async with dialled(address, random) as sock:
        client = RawTcpClient(sock)
        await client.shake_hands()
        if greets:
            await client.say(GREETING)
        yield client
