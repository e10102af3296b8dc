"""One socket for many connections: routing, Retry, version negotiation, and ignored packets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from qh3._hazmat import pull_quic_header
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError

import aqueduct
from aqueduct import QuicSettings
from aqueduct.transport.address import Address
from aqueduct.transport.admission import Admission
from aqueduct.transport.quic.endpoint import ID_LENGTH, Newcomers, QuicEndpoint, destination_id
from aqueduct.transport.quic.transport import QuicTransport
from tests.interop.peer import peer_of
from tests.processes.peers import TIMEOUT, eventually
from tests.transport.quic.inside import listener_of, transport_of

VERSION_1 = b"\x00\x00\x00\x01"


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


@pytest.fixture
async def server() -> AsyncIterator[aqueduct.Server[bytes]]:
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as running,
    ):
        task = asyncio.ensure_future(running.run(echo))
        yield running
        task.cancel()


async def echo(connection: aqueduct.Connection[bytes]) -> None:
    """Receive everything, and answer nothing."""
    async for _ in connection.entrypoint:
        pass


def connect(server: aqueduct.Server[Any], **options: Any) -> Any:
    return aqueduct.connect(server.address, trust=aqueduct.dev_trust(), timeout=TIMEOUT, **options)


async def works(connection: aqueduct.Connection[bytes]) -> None:
    await connection.entrypoint.send(b"x")
    await connection.entrypoint.flush()


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (b"", b""),
        (b"\x40" + bytes(range(8)) + b"rest", bytes(range(8))),
        (b"\xc0" + VERSION_1 + b"\x03abc" + b"\x00", b"abc"),
        (b"\xc0" + VERSION_1 + b"\x00", b""),
        (b"\xc0", b""),
        (b"\x40\x01", b"\x01"),
    ],
)
def test_the_destination_id_of_a_packet_is_parsed(packet: bytes, expected: bytes) -> None:
    assert destination_id(packet) == expected
    assert destination_id(b"before" + packet, 6) == expected


async def test_connections_share_a_socket_and_are_routed_by_id(
    server: aqueduct.Server[bytes],
) -> None:
    async with connect(server) as one, connect(server) as two, connect(server) as three:
        await asyncio.gather(works(one), works(two), works(three))
        assert len(listener_of(server).transports) == 3
        await two.close()
        await works(one)
        await works(three)


async def test_a_closed_connection_is_removed_from_the_tables(
    server: aqueduct.Server[bytes],
) -> None:
    for _ in range(3):
        async with connect(server) as connection:
            await works(connection)
    endpoint = listener_of(server)
    await eventually(
        lambda: not endpoint.transports and not endpoint._by_id, "the tables are empty"
    )


async def test_a_client_that_changes_its_connection_id_stays_connected(
    server: aqueduct.Server[bytes],
) -> None:
    async with connect(server) as connection:
        await works(connection)
        for _ in range(12):
            transport_of(connection).bridge.quic.change_connection_id()
            transport_of(connection).schedule_flush()
            await works(connection)
        (transport,) = listener_of(server).transports
        assert len(transport.ids) <= 16


async def test_two_clients_behind_one_address_are_kept_apart(
    server: aqueduct.Server[bytes],
) -> None:
    """Routing is by connection id, not by address."""
    from aqueduct.testing.relay import Relay

    async with (
        Relay(server.address) as relay,
        aqueduct.connect(relay.address, trust=aqueduct.dev_trust()) as one,
        aqueduct.connect(relay.address, trust=aqueduct.dev_trust()) as two,
    ):
        first, second = relay._upstream.values()
        relay._upstream.update(zip(relay._upstream, (second, first), strict=True))
        await works(one)
        await works(two)


@pytest.mark.parametrize("threshold", [0, 1])
async def test_under_load_clients_must_validate_their_address(threshold: int) -> None:
    options = QuicSettings(handshakes_before_retry=threshold)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        task = asyncio.ensure_future(server.run(echo))
        connections = await asyncio.gather(*(connect(server) for _ in range(10)))
        await asyncio.gather(*(works(connection) for connection in connections))
        await asyncio.gather(*(connection.close() for connection in connections))
        task.cancel()


async def test_with_retry_a_forged_address_creates_no_connection() -> None:
    options = QuicSettings(handshakes_before_retry=0)
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server:
        host, port = server.address.split(":")
        with udp_client() as sock:
            for _ in range(50):
                sock.sendto(first_packet(), (host, int(port)))
            answers = [await answer(sock) for _ in range(50)]
            assert len(listener_of(server).transports) == 0
        assert all(pull_quic_header(answer, 0, ID_LENGTH)[1] == 3 for answer in answers)


@pytest.mark.parametrize("how", ["flipped", "short", "elsewhere"])
async def test_an_invalid_token_creates_no_connection(how: str) -> None:
    options = QuicSettings(handshakes_before_retry=0)
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server:
        host, port = server.address.split(":")
        with udp_client() as sock, udp_client() as other:
            quic = new_client()
            quic.connect((host, int(port)), 0.0)
            for data, _ in quic.datagrams_to_send(0.0):
                sock.sendto(data, (host, int(port)))
            retry = await answer(sock)
            quic.receive_datagram(retry, (host, int(port)), 0.1)
            packets = [data for data, _ in quic.datagrams_to_send(0.1)]
            assert packets
            if how == "elsewhere":
                for data in packets:
                    other.sendto(data, (host, int(port)))
            else:
                token = bytes(pull_quic_header(packets[0], 0, ID_LENGTH)[5])
                bad = token[:-1] + bytes([token[-1] ^ 1]) if how == "flipped" else token[:4]
                for data in packets:
                    sock.sendto(data.replace(token, bad), (host, int(port)))
            await asyncio.sleep(0.1)
            assert len(listener_of(server).transports) == 0


async def test_an_unknown_version_is_answered_with_version_negotiation(
    server: aqueduct.Server[bytes],
) -> None:
    host, port = server.address.split(":")
    with udp_client() as sock:
        packet = b"\xc0" + b"\x1a\x2a\x3a\x4a" + b"\x08ABCDEFGH" + b"\x03xyz" + bytes(1_200)
        sock.sendto(packet, (host, int(port)))
        reply = await answer(sock)
    assert reply[0] & 0x80
    assert reply[1:5] == bytes(4)
    assert reply[5:9] == b"\x03xyz"
    assert reply[9:18] == b"\x08ABCDEFGH"
    assert VERSION_1 in [reply[at : at + 4] for at in range(18, len(reply), 4)]
    assert len(listener_of(server).transports) == 0


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\x00",
        b"\xff" * 1_200,
        b"\x40" + bytes(1_199),
        b"\xc0" + VERSION_1 + b"\xff" + bytes(1_300),
        b"\xc0" + bytes(4) + b"\x08ABCDEFGH\x08ABCDEFGH" + bytes(1_200),  # version negotiation
        b"\xc0\x1a\x2a\x3a\x4a\x08ABCDEFGH\x03xyz",  # too small to be answered
        b"\xe0" + VERSION_1 + b"\x08ABCDEFGH\x08ABCDEFGH" + bytes(1_200),  # a handshake packet
        os.urandom(1_400),
        os.urandom(60_000),
    ],
)
async def test_malformed_packets_are_ignored(server: aqueduct.Server[bytes], packet: bytes) -> None:
    host, port = server.address.split(":")
    with udp_client() as sock:
        for _ in range(5):
            sock.sendto(packet, (host, int(port)))
        await asyncio.sleep(0.05)
        assert len(listener_of(server).transports) == 0
        answers = received(sock)
        assert sum(map(len, answers)) <= 5 * len(packet)
    async with connect(server) as connection:
        await works(connection)


async def test_a_full_server_accepts_again_when_there_is_room() -> None:
    options = QuicSettings(max_connections=2)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        task = asyncio.ensure_future(server.run(echo))
        async with connect(server) as one:
            async with connect(server):
                with pytest.raises(aqueduct.ConnectError):
                    await aqueduct.connect(server.address, trust=aqueduct.dev_trust(), timeout=0.5)
                await works(one)
            await eventually(lambda: len(listener_of(server).transports) == 1, "there is room")
            async with connect(server) as another:
                await works(another)
        task.cancel()


async def test_one_address_cannot_use_up_the_connections_of_a_server() -> None:
    options = QuicSettings(max_connections=20)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        task = asyncio.ensure_future(server.run(echo))
        endpoint = listener_of(server)
        for _ in range(18):
            await stack.enter_async_context(connect(server))
        with pytest.raises(aqueduct.ConnectError):
            await aqueduct.connect(server.address, trust=aqueduct.dev_trust(), timeout=0.5)
        with udp_client("127.0.0.2") as sock:
            for _ in range(2):
                sock.sendto(first_packet(), endpoint.local_address)
            await eventually(lambda: len(endpoint.transports) == 20, "another address is admitted")
        task.cancel()


async def test_an_unfinished_handshake_is_dropped() -> None:
    options = QuicSettings(handshake_timeout=2.0)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        endpoint = listener_of(server)
        host, port = server.address.split(":")
        with udp_client() as sock:
            for _ in range(20):
                sock.sendto(first_packet(), (host, int(port)))
            await eventually(lambda: len(endpoint._handshakes) == 20, "handshakes begin")
            await eventually(lambda: not endpoint.transports, "the server drops them")
        assert not endpoint._handshakes
        assert not endpoint._by_id
        await eventually(lambda: not server._tasks, "no task waits for their headers")


async def test_a_client_that_sends_no_headers_is_closed() -> None:
    options = QuicSettings(handshake_timeout=2.0)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
        peer_of(server.address) as peer,
    ):
        code, reason = await peer.closing()
        assert (code, reason) == (aqueduct.CloseCode.IDLE, "no connection headers came")


async def test_a_complete_handshake_does_not_count_as_half_open(
    server: aqueduct.Server[bytes],
) -> None:
    async with connect(server) as connection:
        await works(connection)
        assert not listener_of(server)._handshakes
        assert len(listener_of(server).transports) == 1


async def test_an_endpoint_ignores_packets_of_unknown_connections() -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    endpoint = QuicEndpoint(sock, QuicSettings())
    with udp_client() as other:
        other.sendto(b"\x40 unknown", endpoint.local_address)
        await asyncio.sleep(0.05)
        assert received(other) == []
    endpoint.close()
    endpoint.close()


class Listening(QuicEndpoint):
    """An endpoint that records what it reads."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, QuicSettings())
        self.read: list[bytes] = []
        self.errors: list[OSError] = []

    def handle_unknown(self, data: bytes, address: Address) -> None:
        self.read.append(data)

    def handle_network_error(self, error: OSError) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_packets_that_arrived_before_an_icmp_error_are_read(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A server that closes its connections and exits leaves both."""

    async def work() -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        with udp_client() as peer:
            sock.connect(peer.getsockname())
            endpoint = Listening(sock)
            peer.sendto(b"first", endpoint.local_address)
            peer.sendto(b"last", endpoint.local_address)
        for _ in range(2):
            endpoint.send([(b"x", sock.getpeername())])
            await eventually(lambda: len(endpoint.errors) > 0, "the error is handled")
            await eventually(lambda: endpoint.read == [b"first", b"last"], "both are read")
            endpoint.errors.clear()
        endpoint.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())


# -- taking turns -----------------------------------------------------------------------------


class Reading:
    """An endpoint with a fake socket and clock, and transports that only record what they read."""

    def __init__(self) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        self.endpoint = QuicEndpoint(sock, QuicSettings())
        self.endpoint.close()
        self.endpoint._closed = False
        self.endpoint.udp.receive = self.receive  # type: ignore[method-assign]
        self.endpoint.loop = self  # type: ignore[assignment]
        self.endpoint.clock = lambda: self.now
        self.queue: list[tuple[bytes, str]] = []
        self.soon: list[Callable[[], None]] = []
        self.now = 0.0
        self.read: list[tuple[str, bytes]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def receive(self) -> tuple[bytes, int, tuple[str, int]] | None:
        if not self.queue:
            return None
        data, host = self.queue.pop(0)
        return data, len(data), (host, 1)

    def add(self, name: str, cost: float) -> None:
        """Add a connection that takes ``cost`` seconds to read a packet."""
        self.endpoint._by_id[name.encode().ljust(ID_LENGTH)] = FakeTransport(self, name, cost)  # type: ignore[assignment]

    def send(self, name: str, data: bytes = b"", host: str = "192.0.2.1") -> None:
        self.queue.append((b"\x40" + name.encode().ljust(ID_LENGTH) + data, host))

    def greet(self, cost: float) -> None:
        """Have a packet of an unknown connection take ``cost`` seconds to read."""

        def unknown(data: bytes, address: tuple[str, int]) -> None:
            self.now += cost
            self.read.append((address[0], data))

        self.endpoint.handle_unknown = unknown  # type: ignore[method-assign]

    def turn(self) -> list[str]:
        """Run one turn of the loop with a readable socket; return the readers in order."""
        self.read.clear()
        due, self.soon = self.soon, []
        self.endpoint._readable()
        for callback in due:
            callback()
        return [name for name, _ in self.read]


class FakeTransport:
    def __init__(self, reading: Reading, name: str, cost: float) -> None:
        self._reading, self._name, self._cost = reading, name, cost

    def receive(self, data: bytes, segment: int, address: tuple[str, int]) -> None:
        self._reading.now += self._cost
        self._reading.read.append((self._name, data))


async def test_a_turn_of_reading_ends_and_a_flood_waits_behind_other_connections() -> None:
    reading = Reading()
    reading.add("flood", 0.02)
    reading.add("good", 0.0)
    for _ in range(30):
        reading.send("flood")
    assert reading.turn() == ["flood"]
    assert not reading.queue, "the socket is drained for other connections"
    for _ in range(5):
        reading.send("good")
        assert reading.turn() == ["good", "flood"]


async def test_waiting_connections_take_turns_in_order() -> None:
    reading = Reading()
    reading.add("one", 0.003)
    reading.add("two", 0.003)
    for number in range(6):
        reading.send("one", b"%d" % number)
        reading.send("two", b"%d" % number)
    everything: list[tuple[str, bytes]] = []
    while reading.queue or reading.soon or not everything:
        reading.turn()
        everything += reading.read
    names = [name for name, _ in everything]
    assert names == ["one", "two"] * 6
    assert [data[-1:] for name, data in everything if name == "two"] == [
        b"%d" % number for number in range(6)
    ]
    assert reading.endpoint._waiting == 0
    assert not reading.endpoint._inboxes


async def test_a_single_connection_is_read_directly() -> None:
    reading = Reading()
    reading.add("fast", 0.00001)
    for _ in range(60):
        reading.send("fast")
    assert len(reading.turn()) == 60
    assert not reading.soon


async def test_packets_queued_for_one_connection_are_bounded() -> None:
    reading = Reading()
    reading.add("flood", 0.02)
    sent = 0
    for _ in range(20):
        for _ in range(60):
            reading.send("flood", bytes(60_000))
            sent += 1
        reading.turn()
    assert reading.endpoint._waiting <= 16 * 1024 * 1024
    while reading.soon:
        reading.turn()
    assert reading.endpoint._waiting == 0


async def test_handshakes_of_one_address_delay_no_other_address() -> None:
    reading = Reading()
    reading.greet(0.003)
    reading.add("good", 0.0)
    for number in range(30):
        reading.send(f"new {number}", host="192.0.2.66")
    assert reading.turn() == ["192.0.2.66"] * 2
    assert not reading.queue, "the socket is drained for other connections"
    reading.send("hello", host="192.0.2.2")
    reading.send("good")
    assert reading.turn() == ["192.0.2.2", "good", "192.0.2.66", "192.0.2.66"]
    assert reading.turn() == ["192.0.2.66"] * 2


async def test_queued_handshakes_are_bounded_per_address() -> None:
    reading = Reading()
    reading.greet(0.02)
    for _ in range(60):
        for number in range(60):
            reading.send(f"new {number}", bytes(1_200), host="192.0.2.66")
        reading.turn()
    assert 100_000 < reading.endpoint._waiting <= 256 * 1024
    reading.endpoint._closed = True
    reading.turn()
    assert not reading.soon, "nothing is read for a closed endpoint"


async def test_packets_queued_for_an_ended_connection_are_dropped() -> None:
    reading = Reading()
    reading.add("flood", 0.02)
    for _ in range(30):
        reading.send("flood")
    reading.turn()
    (transport,) = reading.endpoint._inboxes
    assert not isinstance(transport, Newcomers)
    transport.stop = transport.deliver_events = lambda: None  # type: ignore[method-assign]
    transport.ids = set()
    reading.endpoint.forget(transport)
    assert reading.endpoint._waiting == 0
    assert reading.turn() == []


# -- a raw client ---------------------------------------------------------------------------------


def udp_client(host: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, 0))
    sock.setblocking(False)
    return sock


async def answer(sock: socket.socket) -> bytes:
    """Return the next packet that arrives."""
    async with asyncio.timeout(TIMEOUT):
        return await asyncio.get_running_loop().sock_recv(sock, 65_535)


def received(sock: socket.socket) -> list[bytes]:
    packets = []
    while True:
        try:
            packets.append(sock.recv(65_535))
        except BlockingIOError:
            return packets


def new_client() -> QuicConnection:
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["aqueduct"], server_name="localhost"
    )
    return QuicConnection(configuration=configuration)


def first_packet() -> bytes:
    quic = new_client()
    quic.connect(("127.0.0.1", 1), 0.0)
    return bytes(quic.datagrams_to_send(0.0)[0][0])


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"idle_timeout": 0}, "give seconds, more than 0"),
        ({"idle_timeout": float("inf")}, "at most 31,536,000"),
        ({"idle_timeout": float("nan")}, "give seconds"),
        ({"idle_timeout": None}, "give seconds"),
        ({"keep_alive": -1.0}, "or None for never"),
        ({"handshake_timeout": "10"}, "give seconds"),
        ({"max_packet": 1_199}, "from 1,200 to 65,527"),
        ({"max_packet": 65_528}, "from 1,200 to 65,527"),
        ({"max_packet": 1_400.0}, "give a whole number"),
        ({"handshakes_before_retry": -1}, "0 or more"),
        ({"max_connections": 0}, "1 or more"),
        ({"max_half_open": 0}, "1 or more"),
    ],
)
def test_invalid_settings_are_rejected_with_a_hint(options: dict[str, Any], advice: str) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"QuicSettings\({name}=.*{advice}"):
        QuicSettings(**options)


def test_the_extreme_settings_are_valid() -> None:
    QuicSettings(max_packet=1_200, keep_alive=None, handshakes_before_retry=0, max_connections=1)
    QuicSettings(max_packet=65_527, idle_timeout=1, handshake_timeout=0.001)


async def test_a_connection_that_quic_closed_ends_at_the_next_keep_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing would wake it again, and its users would hang."""

    def refuse(_: int) -> None:
        raise QuicConnectionError(1, None, "connection is closed")

    options = QuicSettings(keep_alive=0.05)
    async with aqueduct.serve("127.0.0.1:0", bytes, tls=aqueduct.dev_tls()) as server:
        trust = aqueduct.dev_trust()
        async with aqueduct.connect(server.address, bytes, trust=trust, options=options) as client:
            monkeypatch.setattr(transport_of(client).bridge.quic, "send_ping", refuse)
            async with asyncio.timeout(TIMEOUT):
                await client.wait_closed()
            with pytest.raises(aqueduct.ConnectionLost, match="connection is closed"):
                await client.entrypoint.send(b"x")


# -- half-open connections ------------------------------------------------------------------------

LONG_TIMEOUTS: dict[str, Any] = {
    "handshakes_before_retry": 10_000,
    "handshake_timeout": 600.0,
    "idle_timeout": 600.0,
}
"""A half-open connection is dropped only in favour of others."""


@pytest.mark.parametrize(
    ("limits", "taken"), [({"max_connections": 30}, 27), ({"max_half_open": 30}, 30)]
)
async def test_half_open_connections_are_dropped_for_another_address(
    limits: dict[str, Any], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected: list[str] = []
    make_room = Admission.make_room

    def observed(admission: Admission[QuicTransport], name: str, now: float) -> bool:
        room = make_room(admission, name, now)
        if not room:
            rejected.append(name)
        return room

    monkeypatch.setattr(Admission, "make_room", observed)
    # A slow machine must not make the connections old enough to displace each other.
    monkeypatch.setattr("aqueduct.transport.admission._MIN_HALF_OPEN_AGE", 600.0)
    options = QuicSettings(**LONG_TIMEOUTS, **limits)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        endpoint = listener_of(server)
        port = endpoint.local_address[1]
        with udp_client("127.0.0.2") as sock:
            for _ in range(60):
                sock.sendto(first_packet(), ("127.0.0.1", port))
            await eventually(lambda: len(rejected) == 60 - taken, "no more are accepted")
            assert len(endpoint.transports) == taken
            newcomers = await asyncio.gather(
                *(
                    aqueduct.connect(f"127.0.0.1:{port}", trust=aqueduct.dev_trust(), timeout=60)
                    for _ in range(10)
                )
            )
        assert len(endpoint.transports) <= 30
        assert all(connection.is_open for connection in newcomers)
        await asyncio.gather(*(connection.close() for connection in newcomers))
        await eventually(lambda: len(server._tasks) <= 20, "no task waits for dropped connections")


async def test_a_dropped_half_open_connection_leaves_no_reference_cycle() -> None:
    """Otherwise the garbage collector frees a flood of them at once, while all clients wait."""
    options = QuicSettings(**LONG_TIMEOUTS)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        endpoint = listener_of(server)
        with udp_client() as sock:
            for _ in range(20):
                sock.sendto(first_packet(), endpoint.local_address)
            await eventually(lambda: len(endpoint.transports) == 20, "all of them are half open")
        gc.collect()
        gc.disable()
        try:
            for transport in list(endpoint.transports):
                endpoint._give_up(transport)
            del transport
            await eventually(lambda: not server._tasks, "no task waits for them")
            assert gc.collect() < 20
        finally:
            gc.enable()


async def test_half_open_connections_are_dropped_for_their_own_address_after_min_age() -> None:
    options = QuicSettings(**LONG_TIMEOUTS, max_half_open=20)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        endpoint = listener_of(server)
        host, port = server.address.split(":")
        with udp_client() as sock:
            for _ in range(20):
                sock.sendto(first_packet(), (host, int(port)))
            await eventually(lambda: len(endpoint.transports) == 20, "all of them are half open")
        async with connect(server) as connection:
            assert connection.is_open


async def test_an_address_with_many_half_open_connections_must_validate_sooner() -> None:
    options = QuicSettings(handshakes_before_retry=80)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        endpoint = listener_of(server)
        port = endpoint.local_address[1]
        with udp_client("127.0.0.2") as greedy, udp_client("127.0.0.3") as other:
            for _ in range(60):
                greedy.sendto(first_packet(), ("127.0.0.1", port))
            await eventually(lambda: endpoint.udp.waiting == 0, "all of them are answered")
            other.sendto(first_packet(), ("127.0.0.1", port))
            await eventually(
                lambda: len(endpoint.transports) == 21, "another address need not validate"
            )
            await asyncio.sleep(0.1)
            assert len(endpoint.transports) == 21


async def test_a_connection_is_half_open_until_it_is_accepted() -> None:
    decided = asyncio.Event()

    async def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
        await decided.wait()
        return aqueduct.Accept()

    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), accept=accept) as server,
    ):
        endpoint = listener_of(server)
        connecting = asyncio.ensure_future(connect(server).__aenter__())
        await eventually(lambda: bool(server._tasks), "the client connects")
        await eventually(lambda: not endpoint._handshakes, "the handshake is complete")
        assert len(endpoint._admission.half_open) == 1
        decided.set()
        connection = await connecting
        assert len(endpoint._admission.half_open) == 0
        await connection.close()
        await eventually(lambda: not endpoint._admission._addresses, "the tables are empty")
        assert not endpoint._admission._accounts._accounts


@pytest.mark.parametrize("length", [0, 1, 7])
async def test_a_first_packet_with_a_short_destination_id_is_dropped(
    length: int, server: aqueduct.Server[bytes]
) -> None:
    """RFC 9000, 7.2: a client chooses eight bytes or more."""
    host, port = server.address.split(":")
    quic = new_client()
    quic._original_destination_connection_id = os.urandom(length)
    quic.connect((host, int(port)), 0.0)
    with udp_client() as sock:
        for data, _ in quic.datagrams_to_send(0.0):
            assert destination_id(data) == quic._original_destination_connection_id
            sock.sendto(data, (host, int(port)))
        sock.sendto(first_packet(), (host, int(port)))  # behind it
        await answer(sock)
        assert len(listener_of(server).transports) == 1
