"""Attacks below channels: packets, unfinished handshakes, floods of unacknowledged frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from random import Random

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder, QuicPacketBuilderStop
from aioquic.tls import Epoch

from tests.hostile.attackers import HOSTS, Addresses, attack, host_and_port
from tests.hostile.attacks import garbage
from tests.hostile.raw import raw_client, stream_frame

TIMEOUT = 5.0
UNACCEPTED = 100
"""Megabytes that a server may hold for clients that it has not accepted, with a few addresses."""


def configuration() -> QuicConfiguration:
    return QuicConfiguration(
        is_client=True,
        alpn_protocols=["aqueduct"],
        server_name="localhost",
        verify_mode=ssl.CERT_NONE,
        max_datagram_frame_size=65_535,
    )


def udp(random: Random) -> socket.socket:
    """Return a socket with one of the addresses of hostile peers."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((random.choice(HOSTS), 0))
    sock.setblocking(False)
    return sock


class Forger:
    """A client that completes the handshake, then sends any frames and never acknowledges."""

    def __init__(self, sock: socket.socket, where: tuple[str, int]) -> None:
        self.quic = QuicConnection(configuration=configuration())
        self._sock = sock
        self._where = where
        self._loop = asyncio.get_running_loop()

    async def shake_hands(self) -> None:
        """Complete the handshake."""
        quic = self.quic
        quic.connect(self._where, self._loop.time())
        async with asyncio.timeout(TIMEOUT):
            while not quic._handshake_complete:
                self._flush()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        data, where = await self._loop.sock_recvfrom(self._sock, 65_535)
                        quic.receive_datagram(data, where, self._loop.time())
                timer = quic.get_timer()
                if timer is not None and timer <= self._loop.time():
                    quic.handle_timer(self._loop.time())
        self._flush()

    def _flush(self) -> None:
        for data, where in self.quic.datagrams_to_send(self._loop.time()):
            with contextlib.suppress(OSError):
                self._sock.sendto(data, where)

    def move(self, sock: socket.socket) -> None:
        """Send from another socket from now on."""
        self._sock = sock

    @property
    def is_closed(self) -> bool:
        """Whether the server closed the connection; reads what has arrived, and sends no acks."""
        with contextlib.suppress(OSError):
            while True:
                data, where = self._sock.recvfrom(65_535)
                self.quic.receive_datagram(data, where, self._loop.time())
        return self.quic._close_event is not None

    def send(self, count: int, write: Callable[[QuicPacketBuilder], object]) -> None:
        """Send packets of about 1,200 bytes, filled with the frames that a function writes."""
        quic = self.quic
        for _ in range(count):
            builder = QuicPacketBuilder(
                host_cid=quic.host_cid,
                is_client=True,
                max_datagram_size=1_200,
                packet_number=quic._packet_number,
                peer_cid=quic._peer_cid.cid,
                version=quic._version or 1,
            )
            builder.start_packet(QuicPacketType.ONE_RTT, quic._cryptos[Epoch.ONE_RTT])
            with contextlib.suppress(QuicPacketBuilderStop):
                while builder.remaining_buffer_space > 40:
                    write(builder)
            datagrams, _ = builder.flush()
            quic._packet_number = builder.packet_number
            for data in datagrams:
                with contextlib.suppress(OSError):
                    self._sock.sendto(data, self._where)


@contextlib.asynccontextmanager
async def forger(address: str, random: Random) -> AsyncIterator[Forger]:
    with udp(random) as sock:
        rude = Forger(sock, host_and_port(address))
        await rude.shake_hands()
        yield rude


async def pour(
    rude: Forger, random: Random, write: Callable[[QuicPacketBuilder], object], megabytes: float
) -> None:
    """Send up to ``megabytes``, two megabytes a second, until the server closes the connection."""
    for _ in range(int(megabytes * 40)):
        if rude.is_closed:
            return
        rude.send(20, write)
        await asyncio.sleep(0.008 + 0.008 * random.random())


@attack("channels", UNACCEPTED)
async def garbage_packets(addresses: Addresses, random: Random) -> None:
    """Malformed packets of all kinds."""
    packets = garbage(random.randrange(1 << 30))
    with udp(random) as sock:
        for _ in range(200):
            for _ in range(25):
                with contextlib.suppress(OSError):
                    sock.sendto(next(packets), host_and_port(addresses["channels"]))
            await asyncio.sleep(0.01)


def initial(random: Random, where: tuple[str, int], id_length: int) -> bytes:
    """Return the first packet of a client, with a destination connection id of some length."""
    quic = QuicConnection(configuration=configuration())
    quic._peer_cid.cid = random.randbytes(id_length)
    quic.connect(where, 0.0)
    return bytes(quic.datagrams_to_send(0.0)[0][0])


@attack("channels", UNACCEPTED)
async def half_open(addresses: Addresses, random: Random) -> None:
    """Unfinished handshakes from many ports."""
    where = host_and_port(addresses["channels"])
    socks = [udp(random) for _ in range(8)]
    try:
        for number in range(400):
            with contextlib.suppress(OSError):
                socks[number % 8].sendto(initial(random, where, 8), where)
            await asyncio.sleep(0.003)
    finally:
        for sock in socks:
            sock.close()


@attack("channels", UNACCEPTED)
async def half_open_retried(addresses: Addresses, random: Random) -> None:
    """Unfinished handshakes that answer Retry, and so validate their address."""
    where = host_and_port(addresses["channels"])
    loop = asyncio.get_running_loop()

    async def begin() -> None:
        with udp(random) as sock:
            quic = QuicConnection(configuration=configuration())
            quic.connect(where, loop.time())
            sock.sendto(quic.datagrams_to_send(loop.time())[0][0], where)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    data = await loop.sock_recv(sock, 65_535)
                    if data[0] & 0xF0 == 0xF0:  # Retry
                        quic.receive_datagram(data, where, loop.time())
                        for packet, _ in quic.datagrams_to_send(loop.time()):
                            sock.sendto(packet, where)

    for _ in range(50):
        await asyncio.gather(*(begin() for _ in range(10)))
        await asyncio.sleep(0.01)


@attack("channels", UNACCEPTED)
async def short_ids(addresses: Addresses, random: Random) -> None:
    """Initial packets with destination connection ids of less than 8 bytes."""
    where = host_and_port(addresses["channels"])
    with udp(random) as sock:
        for _ in range(200):
            with contextlib.suppress(OSError):
                sock.sendto(initial(random, where, random.randrange(1, 8)), where)
            await asyncio.sleep(0.005)


@attack("channels", UNACCEPTED)
async def path_challenges(addresses: Addresses, random: Random) -> None:
    """PATH_CHALLENGE frames by a client that never acknowledges."""

    def write(builder: QuicPacketBuilder) -> object:
        buffer = builder.start_frame(QuicFrameType.PATH_CHALLENGE, capacity=9)
        buffer.push_bytes(random.randbytes(8))
        return buffer

    async with forger(addresses["channels"], random) as rude:
        await pour(rude, random, write, 4)


@attack("channels", UNACCEPTED)
async def reset_streams(addresses: Addresses, random: Random) -> None:
    """RESET_STREAM for unused streams, by a client that never acknowledges."""
    stream = 2

    def write(builder: QuicPacketBuilder) -> object:
        nonlocal stream
        buffer = builder.start_frame(QuicFrameType.RESET_STREAM, capacity=25)
        buffer.push_uint_var(stream)
        buffer.push_uint_var(0)
        buffer.push_uint_var(0)
        stream += 4
        return buffer

    async with forger(addresses["channels"], random) as rude:
        await pour(rude, random, write, 4)


@attack("channels", UNACCEPTED)
async def tiny_streams(addresses: Addresses, random: Random) -> None:
    """Streams of one byte before acceptance, by a client that never acknowledges."""
    stream = 2

    def write(builder: QuicPacketBuilder) -> object:
        nonlocal stream
        # With a length and without an end: the stream stays open.
        buffer = builder.start_frame(QuicFrameType.STREAM_BASE | 2, capacity=12)
        buffer.push_uint_var(stream)
        buffer.push_uint16(1 | 0x4000)
        buffer.push_bytes(b"\xef")
        stream += 4
        return buffer

    async with forger(addresses["channels"], random) as rude:
        await pour(rude, random, write, 9)


@attack("channels", UNACCEPTED)
async def silent_clients(addresses: Addresses, random: Random) -> None:
    """Clients that complete the handshake, send no headers and disappear."""
    for _ in range(20):
        async with forger(addresses["channels"], random) as rude:
            rude.send(1, lambda builder: builder.start_frame(QuicFrameType.PING))
        await asyncio.sleep(0.02)


@attack("channels")
async def empty_streams(addresses: Addresses, random: Random) -> None:
    """Streams without a byte on many connections of one address, each within its own bounds."""
    async with contextlib.AsyncExitStack() as stack:
        host = random.choice(HOSTS)
        for _ in range(40):
            rude = await stack.enter_async_context(raw_client(addresses["channels"], host))
            numbers = range(6, 6 + 4 * random.randrange(2_000, 9_000), 4)
            await rude.flood(stream_frame(number, b"") for number in numbers)


@attack("channels", UNACCEPTED)
async def address_changes(addresses: Addresses, random: Random) -> None:
    """Clients that send every packet from another port, and often from another host."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(udp(random)) for _ in range(40)]
        rude = Forger(socks[0], host_and_port(addresses["channels"]))
        await rude.shake_hands()
        for _ in range(400):
            rude.move(random.choice(socks))
            if rude.is_closed:
                return
            rude.send(1, lambda builder: builder.start_frame(QuicFrameType.PING))
            await asyncio.sleep(0.005)
