"""A connection: its statistics, its end, and the notification of tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import aqueduct
from aqueduct import CloseCode, ConnectionLost, EndOfChannel
from aqueduct.runtime import closing
from aqueduct.runtime.closing import close_all
from aqueduct.testing.relay import Direction, Impairments, Relay
from tests.api.joined import SECONDS, GiveReceiver, joined
from tests.processes.peers import eventually
from tests.transport.quic.inside import transport_of


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


@asynccontextmanager
async def served() -> AsyncIterator[tuple[aqueduct.Server[bytes], Relay]]:
    """Start a server behind a lossy relay."""
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
        Relay(server.address, Impairments(), seed=1) as relay,
    ):
        yield server, relay


async def connect(address: str) -> aqueduct.ClientConnection[bytes]:
    return await aqueduct.connect(address, trust=aqueduct.dev_trust(), timeout=SECONDS)


# -- statistics ------------------------------------------------------------------------------------


async def test_statistics_have_round_trips_bytes_packets_losses_and_channels() -> None:
    async with joined() as (client, server):
        before = client.statistics()
        assert before["packets_sent"] >= 1
        assert before["bytes_sent"] >= 1_200  # the first packet is padded
        for _ in range(100):
            await client.entrypoint.send(bytes(1_000))
        await client.entrypoint.flush()
        numbers, theirs = client.statistics(), server.statistics()
        assert 0 < numbers["rtt"] < 10
        assert 100_000 <= numbers["bytes_sent"] - before["bytes_sent"] < 200_000
        assert 1 <= numbers["packets_sent"] - before["packets_sent"] <= 200
        assert before["packets_received"] < numbers["packets_received"]
        assert before["bytes_received"] < numbers["bytes_received"] < 50_000
        assert numbers["lost_packets"] >= 0
        assert numbers["channels"] == theirs["channels"] == 1
        # Each side received what the other sent: nothing is lost on loopback.
        assert 100_000 <= theirs["bytes_received"] <= client.statistics()["bytes_sent"]
        assert theirs["packets_received"] <= client.statistics()["packets_sent"]


async def test_both_sides_count_the_same_packets_when_idle() -> None:
    async with joined() as (client, server):
        for _ in range(50):
            await client.entrypoint.send(bytes(10_000))
        await client.entrypoint.flush()

        def agree() -> bool:
            ours, theirs = client.statistics(), server.statistics()
            return all(
                one[f"{what}_sent"] == other[f"{what}_received"]
                for one, other in ((ours, theirs), (theirs, ours))
                for what in ("bytes", "packets")
            )

        await eventually(agree, "all packets arrived")


async def test_statistics_count_open_channels_and_queued_bytes() -> None:
    async with joined(GiveReceiver[bytes]) as (client, server):
        sender, receiver = aqueduct.channel()
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        await sender.send(bytes(1_000))
        await sender.flush()
        assert client.statistics()["channels"] == server.statistics()["channels"] == 2
        assert server.statistics()["held_bytes"] >= 1_000
        sender.finish()
        assert len([payload async for payload in theirs]) == 1
        await eventually(lambda: client.statistics()["channels"] == 1, "the channel has ended")
        assert server.statistics()["held_bytes"] == 0


async def test_statistics_work_after_the_end() -> None:
    async with joined() as (client, _):
        await client.close()
        assert client.statistics()["channels"] == 0
        assert client.statistics()["packets_sent"] > 0


# -- ends ------------------------------------------------------------------------------------------


async def test_close_delivers_what_was_sent_before_it() -> None:
    async with joined() as (client, server):
        sent = [b"%03d" % number + bytes(10_000) for number in range(50)]
        for payload in sent:
            await client.entrypoint.send(payload)
        await client.close()
        assert not client.is_open
        assert [await server.entrypoint.receive() for _ in sent] == sent
        with pytest.raises(ConnectionLost):
            await server.entrypoint.receive()


@pytest.mark.parametrize("finish", [False, True])
async def test_close_waits_for_retransmissions(finish: bool) -> None:
    async with served() as (server, relay):
        client = await connect(relay.address)
        accepted = await server.accept()
        assert accepted is not None
        await client.entrypoint.send(b"first")
        await client.entrypoint.flush()
        relay.drop_next(2)
        await client.entrypoint.send(b"second")
        if finish:
            client.entrypoint.finish()
        await client.close()
        assert await accepted.entrypoint.receive() == b"first"
        assert await accepted.entrypoint.receive() == b"second"
        with pytest.raises(EndOfChannel if finish else ConnectionLost):
            await accepted.entrypoint.receive()


async def test_a_client_whose_entrypoint_has_ended_leaves_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "LINGER", 10 * SECONDS)
    async with joined(address="memory://leaving") as (client, server):
        await client.entrypoint.send(b"last")
        client.entrypoint.finish()
        assert [payload async for payload in server.entrypoint] == [b"last"]
        await eventually(lambda: client.statistics()["channels"] == 0, "the entrypoint has ended")
        await asyncio.sleep(0.1)  # until nothing is due


async def test_close_does_not_poll_while_the_peer_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "LINGER", 0.5)
    async with served() as (_, relay):
        client = await connect(relay.address)
        relay.blackout()
        for _ in range(15):
            await client.entrypoint.send(bytes(60_000))
        turns = 0
        turn = transport_of(client)._turn

        def counted() -> None:
            nonlocal turns
            turns += 1
            turn()

        monkeypatch.setattr(transport_of(client), "_turn", counted)
        before = time.perf_counter()
        await client.close()
        assert 0.4 < time.perf_counter() - before < 60
        assert turns < 100
        relay.end_blackout()


async def test_a_cancelled_close_frees_the_socket_and_notifies_the_peer() -> None:
    async with served() as (server, relay):
        client = await connect(relay.address)
        accepted = await server.accept()
        assert accepted is not None
        relay.blackout(directions=(Direction.DOWN,))
        await client.entrypoint.send(b"not acked")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.close()
        assert transport_of(client).endpoint.udp.socket.fileno() == -1
        assert not client.is_open
        await accepted.wait_closed()


async def test_close_does_not_wait_for_a_peer_that_keeps_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "LINGER", 120.0)
    async with joined(aqueduct.Sender[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(bytes, capacity=10)
        await client.entrypoint.send(sender)

        async def pour() -> None:
            async with await server.entrypoint.receive() as theirs:
                while True:
                    await theirs.send(bytes(10_000))

        async def swallow() -> None:
            async for _ in receiver:
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(pour()), asyncio.create_task(swallow())]
        await asyncio.sleep(0.1)
        before = time.perf_counter()
        await client.close()
        assert time.perf_counter() - before < 60
        for task in tasks:
            with pytest.raises(ConnectionLost):
                await task
        receiver.close()


async def test_both_sides_get_the_code_the_reason_and_which_side_closed() -> None:
    async with joined() as (client, server):
        waiting = asyncio.create_task(server.entrypoint.receive())
        closed = asyncio.create_task(server.wait_closed())
        await asyncio.sleep(0)
        assert not closed.done()
        await client.close(CloseCode.INTERNAL, "broken")
        with pytest.raises(ConnectionLost, match=r"the peer closed .* broken") as caught:
            await waiting
        assert (caught.value.code, caught.value.by_peer) == (CloseCode.INTERNAL, True)
        await closed
        await client.wait_closed()
        with pytest.raises(ConnectionLost, match="this side closed") as caught:
            await client.entrypoint.send(b"x")
        assert not caught.value.by_peer


async def test_a_cancelled_wait_closed_leaves_the_connection_open() -> None:
    async with joined() as (client, server):
        waiting = asyncio.create_task(client.wait_closed())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.entrypoint.send(b"x")
        assert await server.entrypoint.receive() == b"x"
        later = asyncio.create_task(client.wait_closed())
        await server.close()
        await later


async def test_drain_waits_for_channels_and_then_closes() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = aqueduct.channel(int)
        await client.entrypoint.send(GiveReceiver(receiver))
        client.entrypoint.finish()
        theirs = (await server.entrypoint.receive()).half
        with pytest.raises(EndOfChannel):
            await server.entrypoint.receive()
        draining = asyncio.create_task(client.drain(300))
        await sender.send(1)
        await asyncio.sleep(0.05)
        assert not draining.done()
        assert client.is_open
        sender.finish()
        assert [number async for number in theirs] == [1]
        began = time.monotonic()
        await draining
        assert time.monotonic() - began < 150
        await server.wait_closed()
        ended = server._driver.ended
        assert ended is not None
        assert (ended.code, ended.reason) == (CloseCode.GOING_AWAY, "drained")


async def test_drain_closes_after_the_grace_period() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = aqueduct.channel(int)
        await client.entrypoint.send(GiveReceiver(receiver))
        began = time.monotonic()
        await client.drain(0.05)
        sender.cancel()
        assert 0.05 <= time.monotonic() - began < 60
        await server.wait_closed()


async def test_drain_ends_when_the_peer_closes() -> None:
    async with joined() as (client, server):
        draining = asyncio.create_task(client.drain(600))
        await asyncio.sleep(0)
        await server.close()
        await draining


async def test_drain_ends_when_the_socket_is_closed() -> None:
    async with joined() as (_, server):
        draining = asyncio.create_task(server.drain(60))
        await asyncio.sleep(0)
        transport_of(server).endpoint.close()
        async with asyncio.timeout(10):
            await draining


async def test_a_connection_has_the_address_and_headers_of_its_peer() -> None:
    async with joined(headers={"user": "me"}) as (client, server):
        assert server.headers.text("user") == "me"
        assert list(client.headers) == []
        assert server.peer[0] == client.peer[0] == "127.0.0.1"
        assert client.is_ready
        assert not client.early_data
        await client.wait_ready()


async def test_all_connections_of_a_loop_can_be_closed_at_once() -> None:
    async with joined() as (one, _), joined() as (two, _):
        await close_all()
        assert not one.is_open
        assert not two.is_open


# -- the public surface ----------------------------------------------------------------------------


async def test_a_connection_shows_only_what_users_may_call() -> None:
    async with joined() as ends:
        for connection, more in (
            (ends.client, set()),
            (ends.server, {"certificate", "identity", "serve"}),
        ):
            assert {name for name in dir(connection) if not name.startswith("_")} - more == {
                "close",
                "drain",
                "early_data",
                "entrypoint",
                "headers",
                "is_open",
                "is_ready",
                "peer",
                "statistics",
                "wait_closed",
                "wait_ready",
            }


async def test_a_connection_names_its_peer_its_side_and_its_state() -> None:
    async with joined() as (client, server):
        host, port = client.peer
        assert repr(client) == f"<ClientConnection peer={host}:{port} open>"
        host, port = server.peer
        assert repr(server) == f"<ServerConnection peer={host}:{port} open>"
        await client.close()
        await server.wait_closed()
        assert repr(client).endswith(" closed>")
        assert repr(server).endswith(" closed>")


async def test_a_connection_that_was_awaited_may_be_entered_and_closes_at_the_end() -> None:
    trust = aqueduct.dev_trust()
    async with await aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        async with await aqueduct.connect(server.address, trust=trust) as client:
            states = [client.is_open]
        states.append(client.is_open)
        other = await aqueduct.connect(server.address, trust=trust)
        with pytest.raises(ZeroDivisionError):
            async with other:
                raise ZeroDivisionError
        assert [*states, other.is_open] == [True, False, False]
        assert repr(server) == f"<Server {server.address} open>"
    assert repr(server) == f"<Server {server.address} closed>"


ADVICE = (
    r"connect\(...\) opens nothing by itself; write "
    r"`async with connect\(...\) as it:` or `it = await connect\(...\)`"
)


def test_a_connect_that_is_not_awaited_says_what_to_write() -> None:
    connecting: Any = aqueduct.connect("localhost:1", trust=aqueduct.dev_trust())
    with pytest.raises(AttributeError, match=f"'entrypoint' is missing: {ADVICE}"):
        _ = connecting.entrypoint
    with pytest.raises(TypeError, match=ADVICE), connecting:
        pass


def test_a_serve_that_is_not_awaited_says_what_to_write() -> None:
    serving: Any = aqueduct.serve("localhost:0", tls=aqueduct.dev_tls())
    with pytest.raises(AttributeError, match=r"'address' is missing: serve\(...\) opens nothing"):
        _ = serving.address


def test_a_connect_that_is_never_used_warns() -> None:
    connecting = [aqueduct.connect("localhost:1", trust=aqueduct.dev_trust())]
    with pytest.warns(RuntimeWarning, match=f"never opened: {ADVICE}"):
        connecting.clear()
