"""PDUs over TCP with TLS, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from aqueduct.errors import ConnectError, TLSError
from aqueduct.ipc.pdu import Code
from aqueduct.ipc.stream import FULL
from aqueduct.ipc.tcp import TcpLimits, open_tls
from aqueduct.quic.tls import ServerTLS, Trust, make_authority, make_certificate, pin
from tests.ipc.peers import Peer

AUTHORITY = make_authority("tests")
PAIR = make_certificate(["localhost", "127.0.0.1"], AUTHORITY)
TRUST = Trust(authorities=AUTHORITY.certificate)

Start = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Opens endpoints, and sees that nothing is left of them."""
    peers: list[Peer] = []

    async def begin(address: str = "tls://", **options: object) -> Peer:
        peer = Peer()
        options.setdefault("trust", TRUST)
        if address != "tls://":
            options.setdefault("tls", PAIR)
        await peer.open(address, **options)  # type: ignore[arg-type]
        peers.append(peer)
        return peer

    yield begin
    for peer in peers:
        await peer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for belongs to the transport
            await asyncio.sleep(0.005)


async def dial(address: str, context: ssl.SSLContext | None = None) -> socket.socket:
    """A blocking socket that speaks to an endpoint by hand."""
    host, _, port = address.removeprefix("tls://").rpartition(":")

    def connect() -> socket.socket:
        plain = socket.create_connection((host, int(port)), 5)
        return plain if context is None else context.wrap_socket(plain, server_hostname=host)

    return await asyncio.to_thread(connect)


def by_hand() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.certificate.decode())
    return context


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# Messages


async def test_a_message_arrives_and_the_sender_knows(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0"), await start()
    ended = await client.send(server.address, b"hello")
    assert ended.code == Code.SUCCESS
    assert (await server.arrived.get()).payload == b"hello"
    assert client.troubles == server.troubles == []


async def test_many_messages_share_one_connection_and_arrive_in_batches(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0"), await start()
    remote = await client.transport.locate(server.address)
    ends = await asyncio.gather(*(client.start(remote, b"%d" % n) for n in range(500)))
    assert {end.code for end in ends} == {Code.SUCCESS}
    assert server.arrived.qsize() == 500
    assert server.transport.accepted == client.transport.opened == 1
    assert max(server.calls) > 50
    assert client.exchange.leftovers() == {}


async def test_whoever_connected_is_sent_to_over_its_connection(start: Start) -> None:
    """IPC-TCP-5."""
    server, client = await start("tls://127.0.0.1:0"), await start()
    assert client.address == "tls://"
    await client.send(server.address, b"question")
    remote = (await server.arrived.get()).remote
    name = server.transport.name(remote)
    assert await server.transport.locate(name) == remote
    assert (await server.send(name, b"answer")).code == Code.SUCCESS
    assert (await client.arrived.get()).payload == b"answer"
    assert server.transport.opened == client.transport.accepted == 0


async def test_what_connected_is_never_taken_for_an_address(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0"), await start()
    await client.send(server.address, b"question")
    remote = (await server.arrived.get()).remote
    address = server.transport.name(remote).partition("#")[0]
    assert await server.transport.locate(address) != remote


async def test_two_that_listen_send_to_each_other(start: Start) -> None:
    one, two = await start("tls://127.0.0.1:0"), await start("tls://127.0.0.1:0")
    ends = await asyncio.gather(
        *(one.send(two.address, bytes(n)) for n in range(50)),
        *(two.send(one.address, bytes(n)) for n in range(50)),
    )
    assert {end.code for end in ends} == {Code.SUCCESS}
    assert one.arrived.qsize() == two.arrived.qsize() == 50


async def test_a_name_with_two_addresses_listens_at_one_port(start: Start) -> None:
    server, client = await start("tls://localhost:0"), await start()
    assert server.address.startswith("tls://localhost:")
    assert (await client.send(server.address, b"x")).code == Code.SUCCESS


async def test_a_huge_message_arrives_whole(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0"), await start()
    payload = bytes(range(256)) * 62_500
    assert (await client.send(server.address, payload)).code == Code.SUCCESS
    assert (await server.arrived.get()).payload == payload


async def test_a_receiver_with_smaller_pdus_is_obeyed_and_not_cut_off(start: Start) -> None:
    """IPC-RECV-5."""
    server, client = await start("tls://127.0.0.1:0", max_pdu=512), await start()
    payload = bytes(range(250)) * 80
    assert (await client.send(server.address, payload)).code == Code.SUCCESS
    assert (await server.arrived.get()).payload == payload
    assert client.troubles == []


async def test_it_works_the_same_on_uvloop() -> None:
    def run() -> list[int]:
        import uvloop

        async def talk() -> list[int]:
            server = await Peer().open("tls://127.0.0.1:0", tls=PAIR, trust=TRUST)
            client = await Peer().open(trust=TRUST)
            remote = await client.transport.locate(server.address)
            ends = await asyncio.gather(*(client.start(remote, bytes(99_999)) for _ in range(100)))
            await client.close()
            await server.close()
            return [end.code for end in ends]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(talk())

    assert await asyncio.to_thread(run) == [Code.SUCCESS] * 100


# Connections that come and go


async def test_a_connection_is_opened_again_after_the_server_restarted(start: Start) -> None:
    port = free_port()
    address = f"tls://127.0.0.1:{port}"
    first, client = await start(address), await start()
    await client.send(address, b"one")
    await first.close()
    await until(lambda: client.troubles)
    second = await start(address)
    assert (await client.send(address, b"two")).code == Code.SUCCESS
    assert (await second.arrived.get()).payload == b"two"
    assert "lost" in client.troubles[0][1]


async def test_a_server_may_start_late(start: Start) -> None:
    port = free_port()
    client = await start()
    sending = asyncio.ensure_future(client.send(f"tls://127.0.0.1:{port}", b"early"))
    await until(lambda: len(client.troubles) > 1)
    server = await start(f"tls://127.0.0.1:{port}")
    assert (await sending).code == Code.SUCCESS
    assert (await server.arrived.get()).payload == b"early"
    assert "refused" in client.troubles[0][1]
    assert client.errors == []


async def test_many_messages_for_a_remote_that_is_not_there_make_few_attempts(start: Start) -> None:
    client = await start(ack_timeout=1.0)
    remote = await client.transport.locate(f"tls://127.0.0.1:{free_port()}")
    ends = await asyncio.gather(*(client.start(remote, b"x") for _ in range(300)))
    assert {end.code for end in ends} == {Code.SEND_TIMEOUT}
    assert {end.exposed for end in ends} == {False}
    assert all("cannot reach" in end.reason for end in ends)
    assert 2 <= len(client.troubles) <= 45


async def test_a_host_that_cannot_be_found_is_trouble(start: Start) -> None:
    client = await start(ack_timeout=0.5)
    ended = await client.send("tls://no-such-host.invalid:5000", b"x")
    assert ended.code == Code.SEND_TIMEOUT
    assert "cannot find tls://no-such-host.invalid:5000" in ended.reason


async def test_whoever_connected_and_is_gone_cannot_be_sent_to(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0", ack_timeout=0.3), await start()
    await client.send(server.address, b"x")
    remote = (await server.arrived.get()).remote
    await client.close()
    await until(lambda: not server.transport.accepted)
    ended = await server.send(remote, b"are you there?")
    assert ended.code == Code.SEND_TIMEOUT
    assert "the connection it came over is gone" in ended.reason
    assert server.transport.opened == 0


async def test_an_idle_connection_is_closed_and_opened_when_it_is_needed(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start("tls://127.0.0.1:0")
    client = await start(limits=TcpLimits(idle_timeout=0.2))
    await client.send(server.address, b"one")
    await until(lambda: not client.transport.opened and not server.transport.accepted)
    assert any("idle" in why for _, why in client.troubles)
    assert (await client.send(server.address, b"two")).code == Code.SUCCESS


async def test_the_connection_idle_for_longest_makes_room(start: Start) -> None:
    """IPC-TCP-6."""
    servers = [await start("tls://127.0.0.1:0") for _ in range(3)]
    client = await start(limits=TcpLimits(max_connections=2))
    for server in [*servers, servers[0]]:
        assert (await client.send(server.address, b"x")).code == Code.SUCCESS
        assert client.transport.opened <= 2
        await asyncio.sleep(0.01)
    await until(lambda: not servers[1].transport.accepted)
    assert servers[0].transport.accepted == servers[2].transport.accepted == 1


async def test_connections_over_the_limit_are_closed_at_once(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start("tls://127.0.0.1:0", limits=TcpLimits(max_connections=2))
    clients = [await start(ack_timeout=0.5) for _ in range(3)]
    for client in clients[:2]:
        assert (await client.send(server.address, b"x")).code == Code.SUCCESS
    ended = await clients[2].send(server.address, b"x")
    assert ended.code == Code.SEND_TIMEOUT
    assert "before it was up" in ended.reason
    assert server.transport.accepted == 2
    await clients[0].close()
    assert (await clients[2].send(server.address, b"x")).code == Code.SUCCESS


# Whom to believe


async def refused(start: Start, server: ServerTLS, trust: Trust, host: str = "127.0.0.1") -> str:
    """What a client says that does not believe a server (IPC-TCP-4)."""
    listening = await start("tls://127.0.0.1:0", tls=server)
    client = await start(trust=trust)
    port = listening.address.rpartition(":")[2]
    ended = await client.send(f"tls://{host}:{port}", b"for nobody else")
    assert ended.code == Code.APPLICATION
    assert not ended.exposed
    assert listening.calls == []
    ((_, error),) = client.errors
    assert isinstance(error, TLSError)
    assert ended.reason == str(error)
    await until(lambda: not listening.transport.accepted)
    assert (await client.send(f"tls://{host}:{port}", b"again")).code == Code.APPLICATION
    return str(error)


async def test_a_certificate_of_another_authority_is_not_trusted(start: Start) -> None:
    other = Trust(authorities=make_authority("another").certificate)
    why = await refused(start, PAIR, other)
    assert "trust the authority that signed it, or its fingerprint" in why


async def test_the_system_does_not_trust_an_authority_of_ones_own(start: Start) -> None:
    assert "not trusted" in await refused(start, PAIR, Trust())


async def test_a_certificate_for_another_name_is_not_trusted(start: Start) -> None:
    pair = make_certificate(["elsewhere.example"], AUTHORITY)
    why = await refused(start, pair, TRUST)
    assert "Use a name that it holds" in why
    assert "mismatch" in why
    assert "mismatch" in await refused(start, pair, TRUST, "localhost")


async def test_a_certificate_that_is_over_is_not_trusted(start: Start) -> None:
    why = await refused(start, make_certificate(["127.0.0.1"], AUTHORITY, days=-0.5), TRUST)
    assert "expired; the server needs a new one" in why


async def test_a_certificate_with_another_fingerprint_is_not_trusted(start: Start) -> None:
    why = await refused(start, PAIR, pin("ab" * 32))
    assert f"has the fingerprint {PAIR.fingerprint} and not the pinned one" in why


async def test_a_pinned_certificate_is_trusted_whatever_its_name(start: Start) -> None:
    pair = make_certificate(["elsewhere.example"])
    server = await start("tls://127.0.0.1:0", tls=pair)
    client = await start(trust=pin(pair.fingerprint))
    assert (await client.send(server.address, b"x")).code == Code.SUCCESS


async def test_a_server_without_tls_1_3_is_refused(start: Start) -> None:
    """IPC-TCP-4."""
    server, client = await start("tls://127.0.0.1:0"), await start()
    context = server.transport._server_context
    assert context is not None
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    ended = await client.send(server.address, b"x")
    assert ended.code == Code.APPLICATION
    assert "does not speak TLS 1.3" in ended.reason


async def test_a_client_without_tls_1_3_is_refused(start: Start) -> None:
    """IPC-TCP-4."""
    server = await start("tls://127.0.0.1:0")
    context = by_hand()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await dial(server.address, context)
    await until(lambda: not server.transport.accepted)


async def test_a_server_that_does_not_speak_tls_is_refused(start: Start) -> None:
    client = await start()

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ready\r\n" * 10)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ended = await client.send(f"tls://127.0.0.1:{port}", b"x")
    assert ended.code == Code.APPLICATION
    assert "is it an endpoint with a tls:// address?" in ended.reason


async def test_secrets_show_up_nowhere(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await refused(start, PAIR, pin("ab" * 32))
    server, client = await start("tls://127.0.0.1:0"), await start()
    await client.send(server.address, b"the payload")
    transport = server.transport
    shown = " ".join([repr(transport), repr(vars(transport)), caplog.text])
    secret = PAIR.key.split(b"\n")[1].decode()
    assert secret not in shown
    assert "the payload" not in shown


# Strangers


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x40\x00" + bytes(20_000), bytes(500)],
    ids=["plain text", "half of a hello", "zeros"],
)
async def test_garbage_instead_of_tls_harms_nobody(start: Start, sent: bytes) -> None:
    limits = TcpLimits(handshake_timeout=0.5)
    server, client = await start("tls://127.0.0.1:0", limits=limits), await start()
    with await dial(server.address) as stranger:
        stranger.sendall(sent)
        assert (await client.send(server.address, b"x")).code == Code.SUCCESS
        await until(lambda: server.transport.accepted == 1)
    assert server.troubles == []


async def test_a_client_that_never_begins_tls_is_given_up(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start("tls://127.0.0.1:0", limits=TcpLimits(handshake_timeout=0.2))
    with await dial(server.address):
        await until(lambda: server.transport.accepted)
        await until(lambda: not server.transport.accepted)


async def test_a_server_that_never_begins_tls_is_given_up(start: Start) -> None:
    client = await start(limits=TcpLimits(handshake_timeout=0.2), ack_timeout=0.6)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        ended = await client.send(f"tls://127.0.0.1:{sock.getsockname()[1]}", b"x")
    assert ended.code == Code.SEND_TIMEOUT
    assert "did not answer within 0.2 s" in ended.reason


async def test_half_a_frame_does_not_keep_a_connection(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start("tls://127.0.0.1:0", limits=TcpLimits(idle_timeout=0.3))
    with await dial(server.address, by_hand()) as stranger:
        stranger.sendall(b"\x01\x00\x00\x01\x00")
        await until(lambda: server.transport.accepted)
        with contextlib.suppress(OSError):
            for _ in range(100):
                stranger.sendall(b"x")
                await asyncio.sleep(0.01)
                if not server.transport.accepted:
                    break
        assert not server.transport.accepted
    assert server.calls == []


@pytest.mark.parametrize(
    ("sent", "rule"),
    [(b"\x01\x7f\xff\xff\xff" + bytes(100), "IPC-TCP-3"), (b"\x02\x00\x00\x00\x00", "IPC-TCP-2")],
    ids=["an oversized frame", "a frame of another type"],
)
async def test_a_frame_against_the_rules_ends_the_connection(
    start: Start, sent: bytes, rule: str
) -> None:
    server = await start("tls://127.0.0.1:0")
    with await dial(server.address, by_hand()) as stranger:
        stranger.sendall(b"\x01\x00\x00\x00\x03abc" + sent)
        assert await asyncio.to_thread(stranger.recv, 1) == b""
        await until(lambda: not server.transport.accepted)
    assert server.calls == [1]
    assert rule in server.troubles[0][1]


async def test_a_peer_that_does_not_read_costs_a_bounded_buffer(start: Start) -> None:
    limits = TcpLimits(idle_timeout=1.0)
    server = await start("tls://127.0.0.1:0", ack_timeout=0.3, receive_timeout=0.3, limits=limits)
    with await dial(server.address, by_hand()) as stranger:
        stranger.sendall(b"\x01\x00\x00\x00\x03abc")
        await until(lambda: server.remotes)
        (remote,) = server.remotes
        (connection,) = server.transport._up.values()
        ends = [server.start(remote, bytes(250_000)) for _ in range(100)]
        await until(lambda: connection.is_busy)
        assert not all(end.done() for end in ends)
        codes = {end.code for end in await asyncio.gather(*ends)}
        assert codes <= {Code.SEND_TIMEOUT}
        stream = connection._transport
        assert stream is None or stream.get_write_buffer_size() < FULL + 4 * 1024 * 1024
        await until(lambda: not server.transport.accepted)
    assert server.exchange.leftovers() == {}


async def test_a_slow_reader_gets_everything(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0"), await start()
    await client.send(server.address, b"first")
    (accepted,) = server.transport._up.values()
    assert accepted._transport is not None
    accepted._transport.pause_reading()
    remote = await client.transport.locate(server.address)
    ends = [client.start(remote, bytes(200_000)) for _ in range(100)]
    (connection,) = client.transport._up.values()
    await until(lambda: connection.is_busy, 1.0)
    accepted._transport.resume_reading()
    assert {end.code for end in await asyncio.gather(*ends)} == {Code.SUCCESS}


# Opening and closing


async def test_closing_lets_what_was_sent_go_out(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0"), await start()
    await client.send(server.address, b"first")
    remote = await client.transport.locate(server.address)
    for _ in range(30):
        client.start(remote, bytes(100_000))
    await client.close()
    await until(lambda: server.arrived.qsize() >= 3)


async def test_closing_waits_for_nobody_for_long(start: Start) -> None:
    server, client = await start("tls://127.0.0.1:0"), await start()
    unborn = await client.transport.locate("tls://127.0.0.1:9")
    await client.send(server.address, b"first")
    (accepted,) = server.transport._up.values()
    assert accepted._transport is not None
    accepted._transport.pause_reading()
    remote = await client.transport.locate(server.address)
    for _ in range(100):
        client.start(remote, bytes(200_000))
    client.start(unborn, b"x")
    begun = asyncio.get_running_loop().time()
    await client.close()
    assert asyncio.get_running_loop().time() - begun < 2
    accepted._transport.resume_reading()


async def test_closing_ends_an_attempt_to_connect(start: Start) -> None:
    client = await start()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        remote = await client.transport.locate(f"tls://127.0.0.1:{sock.getsockname()[1]}")
        client.start(remote, b"x")
        await asyncio.sleep(0.05)
        await client.close()
    assert client.troubles == []


@pytest.mark.parametrize(
    "address",
    [
        "tls://",
        "tls://host",
        "tls://host:",
        "tls://:1",
        "tls://host:0",
        "tls://host:99999",
        "tls://host:1#x",
        "tls://host:1/path",
        "tls://a host:1",
        "tls://::1:1",
        "udp://host:1",
        "host:1",
    ],
)
async def test_an_address_that_means_nobody_is_refused(start: Start, address: str) -> None:
    client = await start()
    with pytest.raises(ConnectError, match="not a"):
        await client.transport.locate(address)


async def test_addresses_are_named_as_they_are_written(start: Start) -> None:
    transport = (await start()).transport
    for address in ("tls://example.org:5000", "tls://[::1]:5000", "tls://10.0.0.1:7#12"):
        assert transport.name(await transport.locate(address)) == address


async def test_a_port_in_use_is_told(start: Start) -> None:
    server = await start("tls://127.0.0.1:0")
    with pytest.raises(ConnectError, match="cannot listen on tls://127"):
        await start(server.address)


async def test_a_key_that_is_not_the_certificates_is_told(start: Start) -> None:
    wrong = ServerTLS(PAIR.certificate, AUTHORITY.key)
    with pytest.raises(TLSError, match="does not belong"):
        await open_tls("tls://127.0.0.1:0", Peer(), tls=wrong)


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot work"):
        TcpLimits(idle_timeout=0)
