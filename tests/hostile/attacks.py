"""Parts of attacks: raw packets, raw streams, and a well-behaved client to compare with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection

import aqueduct
from tests.processes.lab import Ask, Request
from tests.processes.peers import Peer, connect, eventually, lab
from tests.transport.quic.inside import transport_of

MEGABYTE = 1_000_000
SLOWEST = 60.0
"""Timeout of the well-behaved client in seconds, enough for a busy machine."""
_PACE = 4_096
"""Bytes that a flood of streams keeps queued."""


class Watch:
    """A client that repeats a request and samples the server's memory."""

    def __init__(self, server: Peer) -> None:
        self.server = server
        self.waits: list[float] = []
        self.first = asyncio.Event()
        self.start = resident(server.pid)
        self.most = self.start

    async def run(self) -> None:
        """Repeat requests until cancelled; a missing answer is an error."""
        async with connect(self.server.address, Request) as connection:
            while True:
                before = time.perf_counter()
                answer = await connection.entrypoint.call(Ask, text="ok?", timeout=SLOWEST)
                assert answer == "OK?"
                self.waits.append(time.perf_counter() - before)
                self.first.set()
                self.look()
                await asyncio.sleep(0.02)

    def look(self) -> None:
        """Sample the server's memory."""
        self.most = max(self.most, resident(self.server.pid))

    @property
    def grown(self) -> int:
        """The largest growth of the server's memory, in bytes."""
        return self.most - self.start

    def report(self, what: str) -> None:
        """Print the measurements."""
        waits = sorted(self.waits)
        middle = waits[len(waits) // 2] * 1_000
        print(
            f"\n{what}: the server grew by {self.grown / MEGABYTE:.1f} MB from "
            f"{self.start / MEGABYTE:.0f} MB; {len(waits)} answers, median {middle:.1f} ms, "
            f"slowest {waits[-1] * 1_000:.0f} ms"
        )


@asynccontextmanager
async def siege(what: str, *arguments: str) -> AsyncIterator[tuple[Peer, Watch]]:
    """Run a server with a well-behaved client, which must get all its answers."""
    async with lab(*arguments) as server:
        watch = Watch(server)
        asking = asyncio.create_task(watch.run())
        async with asyncio.timeout(SLOWEST):
            await watch.first.wait()
        yield server, watch
        # A new client is accepted afterwards.
        async with connect(server.address, Request, timeout=SLOWEST) as connection:
            assert await connection.entrypoint.call(Ask, text="new", timeout=SLOWEST) == "NEW"
        watch.look()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        watch.report(what)


def resident(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# -- packets ------------------------------------------------------------------------------------


def garbage(seed: int) -> Iterator[bytes]:
    """Yield malformed packets of all kinds, endlessly."""
    rng = random.Random(seed)
    good = first_packet()
    while True:
        kind = rng.randrange(4)
        if kind == 0:
            yield rng.randbytes(rng.randrange(1, 1_500))
        elif kind == 1:  # a long header, then random bytes
            yield bytes([0xC0 | rng.randrange(64)]) + rng.randbytes(rng.randrange(1_400))
        elif kind == 2:  # a short header
            yield bytes([0x40 | rng.randrange(64)]) + rng.randbytes(rng.randrange(100))
        else:  # a malformed Initial packet
            damaged = bytearray(good)
            for _ in range(rng.randrange(1, 10)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            yield bytes(damaged)


def first_packet() -> bytes:
    """Return the first packet of a client."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["aqueduct"], server_name="localhost"
    )
    quic = QuicConnection(configuration=configuration)
    quic.connect(("127.0.0.1", 1), 0.0)
    return bytes(quic.datagrams_to_send(0.0)[0][0])


async def shoot(address: str, packets: Iterator[bytes], count: int, sockets: int = 1) -> None:
    """Send packets to a server as fast as the loop allows."""
    host, _, port = address.rpartition(":")
    guns = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(sockets)]
    for gun in guns:
        gun.bind(("127.0.0.1", 0))
        gun.setblocking(False)
    for number in range(count):
        with contextlib.suppress(OSError):
            guns[number % sockets].sendto(next(packets), (host, int(port)))
        if number % 50 == 0:
            await asyncio.sleep(0.001)
    for gun in guns:
        gun.close()


# -- streams ------------------------------------------------------------------------------------


class Attacker:
    """A connection that sends raw streams and datagrams."""

    def __init__(self, connection: aqueduct.Connection[Any]) -> None:
        self.connection = connection
        self._quic = transport_of(connection).bridge.quic

    def stream(self, data: bytes, *, fin: bool = False) -> int:
        """Open a stream with some bytes."""
        number: int = self._quic.get_next_available_stream_id(is_unidirectional=True)
        self.write(number, data, fin=fin)
        return number

    def write(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        """Write more bytes to a stream."""
        if self.connection.is_open:
            self._quic.send_stream_data(stream, data, fin)
            self._send()

    def datagram(self, data: bytes) -> None:
        """Send a datagram."""
        if self.connection.is_open:
            self._quic.send_datagram_frame(data)
            self._send()

    async def pace(self) -> None:
        """Wait while much is queued: a probe of QUIC walks all queued streams for each packet.

        Without this, a client that lost a few packets on a busy machine would need minutes.
        """
        await asyncio.sleep(0.001)
        while self.connection.statistics()["send_buffer"] > _PACE:
            if not self.connection.is_open:
                break
            await asyncio.sleep(0.001)

    async def settle(self) -> None:
        """Wait until the server has acknowledged everything, or has closed the connection."""

        def is_settled() -> bool:
            if not self.connection.is_open:
                return True
            numbers = self.connection.statistics()
            return not numbers["send_buffer"] and not numbers["bytes_in_flight"]

        await eventually(is_settled, "the server takes what was sent")

    def _send(self) -> None:
        transport_of(self.connection).bridge.request_poll()
        transport_of(self.connection).schedule_flush()

    def vanish(self) -> None:
        """Close the socket without closing the connection."""
        transport = transport_of(self.connection)
        transport.endpoint.close()
        transport.core.handle_connection_lost(0, "vanished", False, transport.now())
        transport.deliver_events()


@asynccontextmanager
async def attacker(address: str) -> AsyncIterator[Attacker]:
    """Connect an attacker."""
    rude = Attacker(await connect(address, Request))
    try:
        yield rude
    finally:
        rude.vanish()
