"""A client that sends any frames, acknowledges nothing, and may leave handshakes unfinished."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated

from aqueduct.security import dev_trust

PACKET = 1_350
"""Bytes of frames in one packet."""
TIMEOUT = 30.0


def varint(value: int) -> bytes:
    """Return a varint of QUIC, which differs from Aqueduct's."""
    for prefix, size in enumerate((1, 2, 4, 8)):
        if value < 1 << (8 * size - 2):
            return (value | prefix << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(value)


def path_challenge(number: int) -> bytes:
    """Return PATH_CHALLENGE, whose eight bytes the other side returns."""
    return b"\x1a" + number.to_bytes(8, "big")


def reset_stream(stream: int) -> bytes:
    """Return RESET_STREAM for an unused stream."""
    return b"\x04" + varint(stream) + b"\x00\x00"


def stream_frame(stream: int, data: bytes, *, offset: int = 0, fin: bool = False) -> bytes:
    """Return STREAM with a length."""
    head = bytes([0x0A | (0x04 if offset else 0) | fin]) + varint(stream)
    return head + (varint(offset) if offset else b"") + varint(len(data)) + data


def crypto(offset: int, data: bytes) -> bytes:
    """Return CRYPTO: handshake data, also allowed after the handshake."""
    return b"\x06" + varint(offset) + varint(len(data)) + data


def ack(largest: int) -> bytes:
    """Return ACK for all packets up to the largest number."""
    return b"\x02" + varint(largest) + b"\x00\x00" + varint(largest)


PING = b"\x01"


class RawClient:
    """A QUIC connection of aioquic for the handshake, then hand-made packets."""

    def __init__(self, address: str, own: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self.server = (host, int(port))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((own, 0))
        self.socket.setblocking(False)
        authorities = dev_trust().authorities
        assert authorities is not None
        configuration = QuicConfiguration(
            is_client=True, alpn_protocols=["aqueduct"], max_datagram_frame_size=65_535
        )
        configuration.load_verify_locations(cadata=authorities)
        configuration.server_name = "localhost"
        self.quic: Any = QuicConnection(configuration=configuration)
        self.closed: tuple[int, str] | None = None
        self.sent = 0
        """Bytes sent."""

    async def shake_hands(self) -> None:
        """Complete the handshake, and wait until everything is acknowledged."""
        loop = asyncio.get_running_loop()
        self.quic.connect(self.server, now=loop.time())
        async with asyncio.timeout(TIMEOUT):
            while not self.quic._handshake_confirmed:
                self._flush()
                await self._read(0.2)
        self._flush()

    async def _read(self, seconds: float) -> None:
        """Read packets of the server for some seconds."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                data = await loop.sock_recv(self.socket, 65_535)
                self.quic.receive_datagram(data, self.server, now=loop.time())
        if (timer := self.quic.get_timer()) is not None and timer <= loop.time():
            self.quic.handle_timer(now=loop.time())
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, ConnectionTerminated):
                self.closed = event.error_code, event.reason_phrase
        if (ended := self.quic._close_event) is not None:
            self.closed = ended.error_code, ended.reason_phrase

    def _flush(self) -> None:
        for data, _ in self.quic.datagrams_to_send(now=asyncio.get_running_loop().time()):
            with contextlib.suppress(OSError):
                self.socket.sendto(data, self.server)

    @property
    def received(self) -> int:
        """The largest packet number received from the server."""
        largest: int = self.quic._spaces[tls.Epoch.ONE_RTT].largest_received_packet
        return largest

    def packet(self, frames: bytes) -> bytes:
        """Return a packet with these frames."""
        quic = self.quic
        number = quic._packet_number
        quic._packet_number += 1
        head = b"\x43" + quic._peer_cid.cid + number.to_bytes(4, "big")
        payload = frames + bytes(max(0, 4 - len(frames)))
        sealed: bytes = quic._cryptos[tls.Epoch.ONE_RTT].encrypt_packet(head, payload, number)
        return sealed

    def say(self, frames: bytes) -> None:
        """Send frames in one packet."""
        data = self.packet(frames)
        self.sent += len(data)
        with contextlib.suppress(OSError):
            self.socket.sendto(data, self.server)

    async def flood(self, frames: Iterable[bytes]) -> None:
        """Send frames, many per packet, until the server closes; acknowledge nothing."""
        packed = b""
        packets = 0
        for frame in frames:
            if len(packed) + len(frame) > PACKET:
                self.say(packed)
                packed = b""
                packets += 1
                if packets % 8 == 0:
                    await self.listen()
                    if self.closed is not None:
                        return
            packed += frame
        self.say(packed)
        await self.listen()

    async def listen(self) -> None:
        """Read what the server sent, and answer nothing."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.002)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.closed is None:
                data = self.socket.recv(65_535)
                self.quic.receive_datagram(data, self.server, now=loop.time())
                if (ended := self.quic._close_event) is not None:
                    self.closed = ended.error_code, ended.reason_phrase

    async def closing(self) -> tuple[int, str]:
        """Return the code and reason with which the server closed."""
        async with asyncio.timeout(TIMEOUT):
            while self.closed is None:
                await self.listen()
        return self.closed


@asynccontextmanager
async def raw_client(address: str, own: str = "127.0.0.1") -> AsyncIterator[RawClient]:
    """Connect a client that completes the handshake and sends nothing else."""
    client = RawClient(address, own)
    try:
        await client.shake_hands()
        yield client
    finally:
        client.socket.close()
