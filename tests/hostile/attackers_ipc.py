"""Attacks on ScalableIPC: announced and never sent messages, and useless connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from random import Random

from aqueduct.errors import RemoteProtocolError
from aqueduct.ipc.core.framing import frame_head
from aqueduct.ipc.core.pdu import ID_SIZE, Data, Header, HeaderAck, decode, decode_owner
from tests.hostile.attackers import HOSTS, Addresses, attack, host_and_port

LARGEST = 16 * 1024 * 1024
CONNECTIONS = 400
"""More than the endpoint accepts: see `tests.hostile.target`."""


class Hoard:
    """Begins messages from a socket of its own, and continues them one byte at a time."""

    def __init__(self, where: tuple[str, int], random: Random) -> None:
        self._where = where
        self._random = random
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind((random.choice(HOSTS), 0))
        self._sock.setblocking(False)
        self._owner = random.randbytes(ID_SIZE)
        self._messages: dict[bytes, int] = {}

    def close(self) -> None:
        self._sock.close()

    def announce(self, payload: bytes = b"x") -> None:
        """Begin a message of the largest size."""
        message = self._random.randbytes(ID_SIZE)
        self._messages[message] = 1
        self._send(Header(message, self._owner, LARGEST, payload).encode())

    def drip(self) -> None:
        """Send a byte of each message."""
        for message, number in list(self._messages.items()):
            self._messages[message] = number + 1
            self._send(Data(message, self._owner, number, b"x").encode())

    def listen(self) -> None:
        """Learn the owner id."""
        with contextlib.suppress(OSError, RemoteProtocolError):
            while True:
                ack = decode(self._sock.recv(65_535))
                if isinstance(ack, HeaderAck) and (owner := decode_owner(ack.payload)):
                    self._owner = owner

    def _send(self, pdu: bytes) -> None:
        with contextlib.suppress(OSError):
            self._sock.sendto(pdu, self._where)


@attack("ipc")
async def ipc_announced_lengths(addresses: Addresses, random: Random) -> None:
    """Messages of the largest size, announced from many ports and sent one byte at a time."""
    hoards = [Hoard(host_and_port(addresses["ipc_udp"]), random) for _ in range(30)]
    try:
        for hoard in hoards:
            hoard.announce()
        for _ in range(10):
            await asyncio.sleep(0.3)
            for hoard in hoards:
                hoard.listen()
                hoard.announce()
                hoard.drip()
    finally:
        for hoard in hoards:
            hoard.close()


@attack("ipc")
async def ipc_full_announcements(addresses: Addresses, random: Random) -> None:
    """Messages of the largest size, announced with a full first PDU and not continued."""
    hoards = [Hoard(host_and_port(addresses["ipc_udp"]), random) for _ in range(10)]
    try:
        for _ in range(20):
            for hoard in hoards:
                hoard.listen()
                for _ in range(5):
                    hoard.announce(bytes(50_000))
            await asyncio.sleep(0.1)
    finally:
        for hoard in hoards:
            hoard.close()


@attack("ipc")
async def ipc_garbage(addresses: Addresses, random: Random) -> None:
    """Malformed datagrams."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((random.choice(HOSTS), 0))
        sock.setblocking(False)
        for _ in range(300):
            for _ in range(20):
                data = random.randbytes(random.randrange(1, 200))
                if random.random() < 0.5:
                    data = bytes([random.randrange(5), 0x10]) + data
                with contextlib.suppress(OSError):
                    sock.sendto(data, host_and_port(addresses["ipc_udp"]))
            await asyncio.sleep(0.01)


async def connections(
    addresses: Addresses, random: Random, count: int, secure: bool
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open connections, up to ``count`` or as many as the server accepts."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, port = host_and_port(addresses["ipc_tls"])
    opened = []
    for _ in range(count):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                opened.append(
                    await asyncio.open_connection(
                        host,
                        port,
                        ssl=context if secure else None,
                        local_addr=(random.choice(HOSTS), 0),
                    )
                )
        if not secure and len(opened) % 20 == 0:
            await asyncio.sleep(0.005)
    return opened


def drop(opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    for _, writer in opened:
        writer.transport.abort()


@attack("ipc")
async def ipc_silent_connections(addresses: Addresses, random: Random) -> None:
    """More TCP connections than the endpoint accepts, which never start TLS."""
    opened = await connections(addresses, random, CONNECTIONS, secure=False)
    await asyncio.sleep(2)
    drop(opened)


async def _say(addresses: Addresses, random: Random, data: bytes) -> None:
    """Open TLS connections, and repeatedly send the same bytes on all of them."""
    opened = []
    for _ in range(40):
        opened += await connections(addresses, random, 10, secure=True)
        for _, writer in opened:
            if not writer.is_closing():
                writer.write(data)
        await asyncio.sleep(0.02)
    await asyncio.sleep(1)
    drop(opened)


@attack("ipc")
async def ipc_malformed_bytes(addresses: Addresses, random: Random) -> None:
    """TLS connections that repeatedly send one malformed byte each."""
    await _say(addresses, random, frame_head(1) + b"\xff")


@attack("ipc")
async def ipc_useless_questions(addresses: Addresses, random: Random) -> None:
    """TLS connections that repeatedly request the owner id, and send no message."""
    question = Header(random.randbytes(ID_SIZE), random.randbytes(ID_SIZE), 1).encode()
    await _say(addresses, random, frame_head(len(question)) + question)


@attack("ipc")
async def ipc_partial_frames(addresses: Addresses, random: Random) -> None:
    """TLS connections that send all but the end of a large PDU."""
    opened = []
    for _ in range(20):
        opened += await connections(addresses, random, 5, secure=True)
        for _, writer in opened[-5:]:
            writer.write(frame_head(1_000_000) + bytes(999_000))
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    drop(opened)
