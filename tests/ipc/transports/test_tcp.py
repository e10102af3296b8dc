"""PDUs over TCP with TLS, on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from aqueduct.errors import BindError, ConnectError, TLSError
from aqueduct.ipc.core.framing import frame_head
from aqueduct.ipc.core.pdu import Code, Header
from aqueduct.ipc.transports.tcp import TcpLimits, open_tls
from aqueduct.security import ServerTLS
from tests.ipc.tls_peers import (
    AUTHORITY,
    HERE,
    PAIR,
    TRUST,
    Peer,
    Start,
    by_hand,
    dial,
    peers,
    until,
)
from tests.ports import closed_port, free_port


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with peers() as begin:
        yield begin


# Messages


async def test_a_message_arrives_and_is_acknowledged(start: Start) -> None:
    server, client = await start(HERE), await start()
    ended = await client.send(server.address, b"hello")
    assert ended.code == Code.SUCCESS
    assert (await server.arrived.get()).payload == b"hello"
    assert client.transient_errors == server.transient_errors == []


async def test_many_messages_share_one_connection_and_arrive_in_batches(start: Start) -> None:
    """IPC-TCP-7."""
    server, client = await start(HERE), await start()
    remote = await client.transport.locate(server.address)
    ends = await asyncio.gather(*(client.start(remote, b"%d" % n) for n in range(500)))
    assert {end.code for end in ends} == {Code.SUCCESS}
    assert server.arrived.qsize() == 500
    assert server.accepted == client.opened == 1
    assert max(server.calls) > 50
    assert client.exchange.leftovers() == {}


async def test_replies_use_the_accepted_connection(start: Start) -> None:
    """IPC-TCP-5."""
    server, client = await start(HERE), await start()
    assert client.address == "tls://"
    await client.send(server.address, b"question")
    remote = (await server.arrived.get()).remote
    name = server.transport.name(remote)
    assert await server.transport.locate(name) == remote
    assert (await server.send(name, b"answer")).code == Code.SUCCESS
    assert (await client.arrived.get()).payload == b"answer"
    assert server.opened == client.accepted == 0


async def test_an_accepted_connection_is_not_reached_by_its_ip_address(start: Start) -> None:
    server, client = await start(HERE), await start()
    await client.send(server.address, b"question")
    remote = (await server.arrived.get()).remote
    address = server.transport.name(remote).partition("#")[0]
    assert await server.transport.locate(address) != remote


async def test_two_listening_endpoints_send_to_each_other(start: Start) -> None:
    one, two = await start(HERE), await start(HERE)
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


async def test_a_large_message_arrives_intact(start: Start) -> None:
    server, client = await start(HERE), await start()
    payload = bytes(range(256)) * 62_500
    assert (await client.send(server.address, payload)).code == Code.SUCCESS
    assert (await server.arrived.get()).payload == payload


async def test_a_smaller_max_pdu_of_the_receiver_is_used_without_a_disconnect(start: Start) -> None:
    """IPC-RECV-5."""
    server, client = await start(HERE, max_pdu=512), await start()
    payload = bytes(range(250)) * 80
    assert (await client.send(server.address, payload)).code == Code.SUCCESS
    assert (await server.arrived.get()).payload == payload
    assert client.transient_errors == []


async def test_it_works_the_same_on_uvloop() -> None:
    def run() -> list[int]:
        import uvloop

        async def talk() -> list[int]:
            server = await Peer().open(HERE, tls=PAIR, trust=TRUST)
            client = await Peer().open(trust=TRUST)
            remote = await client.transport.locate(server.address)
            ends = await asyncio.gather(*(client.start(remote, bytes(99_999)) for _ in range(100)))
            await client.close()
            await server.close()
            return [end.code for end in ends]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(talk())

    assert await asyncio.to_thread(run) == [Code.SUCCESS] * 100


# Reconnecting


async def test_a_connection_is_opened_again_after_the_server_restarted(start: Start) -> None:
    """IPC-TCP-8."""
    port = free_port()
    address = f"tls://127.0.0.1:{port}"
    first, client = await start(address), await start()
    await client.send(address, b"one")
    await first.close()
    await until(lambda: client.transient_errors)
    second = await start(address)
    assert (await client.send(address, b"two")).code == Code.SUCCESS
    assert (await second.arrived.get()).payload == b"two"
    assert "lost" in client.transient_errors[0][1]


async def test_a_server_may_start_late(start: Start) -> None:
    port = free_port()
    client = await start()
    sending = asyncio.ensure_future(client.send(f"tls://127.0.0.1:{port}", b"early"))
    await until(lambda: len(client.transient_errors) > 1)
    server = await start(f"tls://127.0.0.1:{port}")
    assert (await sending).code == Code.SUCCESS
    assert (await server.arrived.get()).payload == b"early"
    assert "refused" in client.transient_errors[0][1]
    assert client.errors == []


async def test_many_messages_to_an_unreachable_remote_cause_few_connection_attempts(
    start: Start,
) -> None:
    client = await start(ack_timeout=1.0)
    with closed_port() as port:
        remote = await client.transport.locate(f"tls://127.0.0.1:{port}")
        ends = await asyncio.gather(*(client.start(remote, b"x") for _ in range(300)))
    assert {end.code for end in ends} == {Code.SEND_TIMEOUT}
    assert {end.exposed for end in ends} == {False}
    assert all("cannot reach" in end.reason for end in ends)
    assert 2 <= len(client.transient_errors) <= 45


async def test_an_unresolvable_host_is_reported_as_a_transient_error(start: Start) -> None:
    client = await start(ack_timeout=0.5)
    ended = await client.send("tls://no-such-host.invalid:5000", b"x")
    assert ended.code == Code.SEND_TIMEOUT
    assert "cannot find tls://no-such-host.invalid:5000" in ended.reason


async def test_a_closed_accepted_connection_is_retried_until_the_timeout(start: Start) -> None:
    """IPC-TCP-5: only that peer can connect again, under another name."""
    server, client = await start(HERE, ack_timeout=0.3), await start()
    await client.send(server.address, b"x")
    remote = (await server.arrived.get()).remote
    await client.close()
    await until(lambda: not server.accepted)
    ended = await asyncio.wait_for(server.send(remote, b"hello?"), 10)
    assert ended.code == Code.SEND_TIMEOUT
    assert not ended.exposed
    assert "it disconnected, and may have connected again" in ended.reason
    assert server.exchange.statistics.retries > 0
    assert server.opened == 0


async def test_an_idle_connection_is_closed_and_opened_when_it_is_needed(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start(HERE)
    client = await start(limits=TcpLimits(idle_timeout=0.2))
    await client.send(server.address, b"one")
    await until(lambda: not client.opened and not server.accepted)
    assert any("idle" in why for _, why in client.transient_errors)
    assert (await client.send(server.address, b"two")).code == Code.SUCCESS


async def test_the_connection_idle_for_longest_is_replaced(start: Start) -> None:
    """IPC-TCP-6."""
    servers = [await start(HERE) for _ in range(3)]
    client = await start(limits=TcpLimits(max_connections=2))
    for server in [*servers, servers[0]]:
        assert (await client.send(server.address, b"x")).code == Code.SUCCESS
        assert client.opened <= 2
        await asyncio.sleep(0.01)
    await until(lambda: not servers[1].accepted)
    assert servers[0].accepted == servers[2].accepted == 1


async def test_connections_over_the_limit_are_closed_at_once_while_all_are_in_use(
    start: Start,
) -> None:
    """IPC-TCP-6."""
    server = await start(HERE, limits=TcpLimits(max_connections=2, idle_grace=100.0))
    clients = [await start(ack_timeout=0.5) for _ in range(3)]
    for client in clients[:2]:
        assert (await client.send(server.address, b"x")).code == Code.SUCCESS
    ended = await clients[2].send(server.address, b"x")
    assert ended.code == Code.SEND_TIMEOUT
    assert "during the handshake" in ended.reason
    assert server.accepted == 2
    await clients[0].close()
    assert (await clients[2].send(server.address, b"x")).code == Code.SUCCESS


async def test_an_idle_accepted_connection_is_replaced(start: Start) -> None:
    """IPC-TCP-6: the side that lost it opens it again."""
    server = await start(HERE, limits=TcpLimits(max_connections=2, idle_grace=0.01))
    clients = [await start() for _ in range(4)]
    for client in [*clients, *clients]:
        assert (await client.send(server.address, b"x")).code == Code.SUCCESS
        assert server.accepted <= 2
        await asyncio.sleep(0.02)
    assert server.transport._per_address == {"127.0.0.1": 2}


async def test_useless_connections_do_not_lock_others_out(start: Start) -> None:
    """IPC-TCP-6: silent ones, and those that ask and never send."""
    server = await start(HERE, limits=TcpLimits(max_connections=8, idle_grace=100.0))
    client = await start()
    assert (await client.send(server.address, b"x")).code == Code.SUCCESS
    question = Header(b"m" * 16, b"d" * 16, 0).encode()
    strangers = [await dial(server.address) for _ in range(10)]
    for _ in range(10):
        stranger = await dial(server.address, by_hand())
        stranger.sendall(frame_head(len(question)) + question)
        strangers.append(stranger)
    newcomer = await start()
    assert (await newcomer.send(server.address, b"x")).code == Code.SUCCESS
    assert (await client.send(server.address, b"x")).code == Code.SUCCESS
    assert client.transient_errors == newcomer.transient_errors == []
    assert server.accepted == 8
    for stranger in strangers:
        stranger.close()


async def test_a_connection_of_the_busiest_address_is_replaced(start: Start) -> None:
    """IPC-TCP-6: even if all of them are in use."""
    limits = TcpLimits(max_connections=3, idle_grace=100.0)
    server = await start("tls://0.0.0.0:0", limits=limits)
    address = server.address.replace("0.0.0.0", "127.0.0.1")
    for _ in range(3):
        assert (await (await start()).send(address, b"x")).code == Code.SUCCESS
    other = socket.socket()
    other.bind(("127.0.0.2", 0))
    await asyncio.to_thread(other.connect, ("127.0.0.1", int(address.rpartition(":")[2])))
    await until(lambda: "127.0.0.2" in server.transport._per_address)
    assert server.transport._per_address == {"127.0.0.1": 2, "127.0.0.2": 1}
    other.close()


# Invalid peers


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x40\x00" + bytes(20_000), bytes(500)],
    ids=["plain text", "half of a hello", "zeros"],
)
async def test_garbage_instead_of_tls_affects_no_other_connection(
    start: Start, sent: bytes
) -> None:
    limits = TcpLimits(handshake_timeout=0.5)
    server, client = await start(HERE, limits=limits), await start()
    with await dial(server.address) as stranger:
        stranger.sendall(sent)
        assert (await client.send(server.address, b"x")).code == Code.SUCCESS
        await until(lambda: server.accepted == 1)
    assert server.transient_errors == []


async def test_a_client_that_never_starts_tls_is_disconnected(start: Start) -> None:
    """IPC-TCP-6."""
    server = await start(HERE, limits=TcpLimits(handshake_timeout=0.2))
    with await dial(server.address):
        await until(lambda: server.accepted)
        await until(lambda: not server.accepted)


async def test_connecting_to_a_server_that_never_starts_tls_times_out(start: Start) -> None:
    client = await start(limits=TcpLimits(handshake_timeout=0.2), ack_timeout=0.6)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        ended = await client.send(f"tls://127.0.0.1:{sock.getsockname()[1]}", b"x")
    assert ended.code == Code.SEND_TIMEOUT
    assert "did not answer within 0.2 s" in ended.reason


# Opening and closing


async def test_closing_sends_buffered_data(start: Start) -> None:
    server, client = await start(HERE), await start()
    await client.send(server.address, b"first")
    remote = await client.transport.locate(server.address)
    for _ in range(30):
        client.start(remote, bytes(100_000))
    await client.close()
    await until(lambda: server.arrived.qsize() >= 3)


async def test_closing_waits_at_most_a_second(start: Start) -> None:
    server, client = await start(HERE), await start()
    unreachable = await client.transport.locate("tls://127.0.0.1:9")
    await client.send(server.address, b"first")
    (accepted,) = server.transport._up.values()
    assert accepted._transport is not None
    accepted._transport.pause_reading()
    remote = await client.transport.locate(server.address)
    for _ in range(100):
        client.start(remote, bytes(200_000))
    client.start(unreachable, b"x")
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
    assert client.transient_errors == []


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
async def test_an_address_without_a_remote_is_rejected(start: Start, address: str) -> None:
    client = await start()
    with pytest.raises(ConnectError, match="not a"):
        await client.transport.locate(address)


@pytest.mark.parametrize("address", ["tls://0.0.0.0:5000", "tls://[::]:5000"])
async def test_an_unspecified_address_is_no_destination(start: Start, address: str) -> None:
    client = await start()
    with pytest.raises(ConnectError, match="send to one of them"):
        await client.transport.locate(address)


async def test_addresses_are_named_as_they_are_written(start: Start) -> None:
    transport = (await start()).transport
    for address in ("tls://example.org:5000", "tls://[::1]:5000", "tls://10.0.0.1:7#12"):
        assert transport.name(await transport.locate(address)) == address


async def test_a_port_in_use_is_reported(start: Start) -> None:
    server = await start(HERE)
    with pytest.raises(BindError, match="cannot listen at tls://127"):
        await start(server.address)


async def test_a_key_of_another_certificate_is_rejected(start: Start) -> None:
    wrong = ServerTLS(PAIR.certificate, AUTHORITY.key)
    with pytest.raises(TLSError, match="does not belong"):
        await open_tls(HERE, Peer(), tls=wrong)


def test_invalid_limits_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"TcpLimits\(idle_timeout=0\): give seconds, more than 0"):
        TcpLimits(idle_timeout=0)
