"""0-RTT between two processes: a round trip saved, replays, restarts, loss and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

import aqueduct
from aqueduct import Refused, Unauthenticated, channel, oneshot
from aqueduct.testing.relay import Direction, Impairments, Relay
from aqueduct.transport.udp import Packet, UdpSocket
from tests.ports import free_port
from tests.processes.lab import PASSWORD, Ask, Collect, Produce, Report, Request, numbered
from tests.processes.peers import TIMEOUT, Peer, bounded, connect, lab

DELAY = 0.05
RTT = 2 * DELAY
SMALL = aqueduct.QuicSettings(max_packet=1_200)


async def ask(connection: Any, text: str = "hi") -> Any:
    return await connection.entrypoint.call(Ask, text=text, timeout=TIMEOUT)


async def visit(address: str, **options: Any) -> None:
    """Connect once, so that the next connection has a ticket."""
    async with connect(address, Request, early_data=True, **options) as connection:
        assert await ask(connection) == "HI"


async def earliness(server: Peer) -> bool:
    """Return whether the next connection that the server reports used early data."""
    early: bool = (await server.wait_for("connection"))["early"]
    return early


@bounded
async def test_the_answer_arrives_after_one_round_trip() -> None:
    async with (
        lab("--early-data", "--max-packet", "1200") as server,
        Relay(server.address, Impairments(delay=DELAY)) as relay,
    ):
        took = []
        for _ in range(4):
            start = time.monotonic()
            connecting = connect(relay.address, Request, early_data=True, options=SMALL)
            async with connecting as connection:
                assert await ask(connection) == "HI"
                took.append(time.monotonic() - start)
                early = await earliness(server)
                assert connection.early_data == early == (len(took) > 1)
        assert took[0] >= 3 * RTT  # the handshake, the headers, the question
        assert RTT <= min(took[1:]) < 2 * RTT  # the best of them: the machine may be busy


@bounded
@pytest.mark.parametrize("client", [True, False])
async def test_both_sides_must_enable_early_data(client: bool) -> None:
    async with lab(*(() if client else ("--early-data",))) as server:
        for _ in range(3):
            async with connect(server.address, Request, early_data=client) as connection:
                assert await ask(connection) == "HI"
                assert not connection.early_data
                assert not await earliness(server)


# -- replays ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def recording() -> Iterator[list[bytes]]:
    """Record all packets that this process sends."""
    packets: list[bytes] = []
    send = UdpSocket.send

    def record(self: UdpSocket, queue: Any) -> bool:
        fresh: list[Packet] = list(queue)
        packets.extend(data for data, _ in fresh)
        return send(self, fresh)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UdpSocket, "send", record)
        yield packets


async def replay(address: str, packets: list[bytes]) -> None:
    """Send recorded packets from another socket."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
        for data in packets:
            thief.sendto(data, (host, int(port)))
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.2)


@bounded
@pytest.mark.parametrize("alive", [True, False])
async def test_a_replayed_first_flight_is_ignored(alive: bool) -> None:
    """AQ-EARLY-1: during the connection, and after its end."""
    async with lab("--early-data") as server:
        await visit(server.address)
        with recording() as packets:
            async with connect(server.address, Request, early_data=True) as connection:
                # The server would report this request, whose answer cannot be sent.
                sink, gone = channel(bytes)
                gone.close()
                report, answer = oneshot(str)
                await connection.entrypoint.send(Produce(1, 10, "finish", sink, report))
                await answer.receive()
                assert connection.early_data
                if alive:
                    await replay(server.address, packets)
        if not alive:
            await replay(server.address, packets)
            await replay(server.address, packets)
        await visit(server.address)
        await server.stop()
        seen = [event["early"] for event in server.events if event["event"] == "connection"]
        assert seen == [False, True, True]


# -- a server that does not know the ticket --------------------------------------------------------


@bounded
async def test_a_restarted_server_gets_every_message_once_and_in_order() -> None:
    """AQ-EARLY-2."""
    address = f"127.0.0.1:{free_port()}"
    async with lab("--early-data", "--listen", address) as first:
        await visit(address)
        await first.stop()
    async with lab("--early-data", "--listen", address) as second:
        async with connect(address, Request, early_data=True, options=SMALL) as connection:
            sender, receiver = channel()
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Collect(receiver, report))
            async with sender:
                for number in range(500):
                    await sender.send(numbered(number, 100))
            result = await answer.receive()
            assert (result.count, result.in_order, result.ended) == (500, True, "EndOfChannel")
            assert not connection.early_data
            assert not await earliness(second)
        await visit(address)
        assert await earliness(second)


@bounded
async def test_what_was_sent_before_a_close_reaches_a_restarted_server() -> None:
    """AQ-EARLY-5."""
    address = f"127.0.0.1:{free_port()}"
    async with lab("--early-data", "--listen", address) as first:
        await visit(address)
        await first.stop()
    async with lab("--early-data", "--listen", address) as second:
        connection = await connect(address, Request, early_data=True)
        assert not connection.is_ready
        sink, mine = channel(bytes)
        report, answer = oneshot(str)
        # Enough that the server is still receiving when the connection ends.
        await connection.entrypoint.send(Produce(10_000, 10_000, "finish", sink, report))
        await connection.close()
        assert not await earliness(second)
        mine.close()
        answer.close()
        failed = await second.wait_for("failed")
        assert failed["request"] == "do_produce"


# -- loss ------------------------------------------------------------------------------------------


@bounded
@pytest.mark.parametrize("way", list(Direction))
@pytest.mark.parametrize("lost", [1, 2, 4])
async def test_the_first_packets_may_be_lost(way: Direction, lost: int) -> None:
    async with (
        lab("--early-data", "--max-packet", "1200") as server,
        Relay(server.address, Impairments(delay=0.002)) as relay,
    ):
        await visit(relay.address, options=SMALL)
        relay.drop_next(lost, way)
        async with connect(relay.address, Request, early_data=True, options=SMALL) as connection:
            sender, receiver = channel()
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Collect(receiver, report))
            async with sender:
                for number in range(50):
                    await sender.send(numbered(number, 100))
            result = await answer.receive()
            assert (result.count, result.in_order) == (50, True)


# -- refusals --------------------------------------------------------------------------------------


@bounded
async def test_every_call_raises_the_same_refusal() -> None:
    async with lab("--early-data", "--accept", "password") as server:

        async def come_in() -> None:
            await visit(server.address, headers={"password": PASSWORD})

        def come_back(**headers: Any) -> Any:
            return connect(server.address, Request, early_data=True, headers=headers)

        await come_in()
        with pytest.raises(Unauthenticated, match="the password is wrong"):
            async with come_back(password="wrong") as connection:
                await ask(connection)
        await come_in()
        with pytest.raises(Refused, match="you are banned"):
            async with come_back(banned="yes"):
                pass
        await come_in()
        async with come_back(password="wrong") as connection:
            with pytest.raises(Unauthenticated):
                await connection.wait_ready()
            with pytest.raises(Unauthenticated):
                await ask(connection)
        await come_in()
        with pytest.raises(ZeroDivisionError):
            async with come_back(banned="yes"):
                1 / 0  # noqa: B018
        await come_in()
        async with come_back(password=PASSWORD) as connection:
            assert await ask(connection) == "HI"
            assert connection.early_data
            assert connection.headers.get("greeting")


@bounded
async def test_connecting_to_a_stopped_server_fails_at_once() -> None:
    async with lab("--early-data") as server:
        await visit(server.address)
        await server.stop()
    with pytest.raises(aqueduct.ConnectError, match="nothing listens"):
        async with connect(server.address, Request, early_data=True) as connection:
            await ask(connection)


@bounded
async def test_a_silent_server_is_a_timeout() -> None:
    async with lab("--early-data") as server, Relay(server.address) as relay:
        await visit(relay.address)
        relay.blackout()
        start = time.monotonic()
        with pytest.raises(aqueduct.ConnectTimeout, match=r"within 0\.5 s"):
            async with connect(relay.address, Request, early_data=True, timeout=0.5) as connection:
                await ask(connection)
        assert 0.4 < time.monotonic() - start < 60
