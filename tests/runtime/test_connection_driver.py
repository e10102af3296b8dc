"""What the ports of a connection share: the halves in messages, turns, and ends."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import (
    CallError,
    ChannelCancelled,
    ConnectionLost,
    DecodeError,
    Receiver,
    ReceiverClosed,
    Sender,
    blocking,
    channel,
    oneshot,
)
from tests.api.joined import GiveReceiver, GiveSender, joined
from tests.processes.peers import eventually


class Pair(msgspec.Struct):
    one: Sender[int]
    other: Sender[int] | None = None


class ForThreads(msgspec.Struct):
    half: blocking.Sender[int]


class Link(msgspec.Struct):
    next: Receiver[Link]


class Nothing(msgspec.Struct):
    """Ignores the fields that it does not know."""


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


# -- halves in messages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (Pair, {"other": 0}, "one attachment cannot be two channels"),
        (Pair, {"other": 1}, "there is no attachment 1"),
        (Pair, {"other": -1}, "there is no attachment -1"),
        (Pair, {"other": "x"}, "Expected `Sender`|a channel is written as the index"),
        (GiveReceiver[int], {}, "the attachment is no Receiver, but the other half"),
        (ForThreads, {}, r"is for threads; asynchronous code declares aqueduct\.Sender"),
    ],
)
async def test_a_message_with_invalid_attachment_indexes_ends_its_halves(
    kind: Any, payload: dict[str, Any], words: str
) -> None:
    async with joined(Any, kind) as (client, server):
        sender, receiver = channel(int)
        await client.entrypoint.send({"half": sender} if not payload else {"one": sender} | payload)
        with pytest.raises(DecodeError, match=words):
            await server.entrypoint.receive()
        with pytest.raises((ChannelCancelled, CallError)):  # a request may be told why
            await receiver.receive()
        gc.collect()
        await eventually(lambda: server.statistics()["channels"] == 1, "the channel is removed")
        assert not server._driver._unclaimed


async def test_halves_that_the_type_does_not_declare_are_ended() -> None:
    async with joined(Any, Nothing) as (client, server):
        sender, stays = channel(int)
        kept, receiver = channel(int)
        await client.entrypoint.send({"a": sender, "b": receiver})
        assert await server.entrypoint.receive() == Nothing()
        with pytest.raises(ChannelCancelled):
            await stays.receive()
        await eventually(lambda: not kept._port.is_open(), "the sender gets the end")
        with pytest.raises(ReceiverClosed):
            await kept.send(1)
        assert not server._driver._unclaimed


async def test_halves_in_untaken_messages_are_ended_with_the_receiver() -> None:
    async with joined(GiveSender[int]) as (client, server):
        receivers = []
        for _ in range(3):
            sender, receiver = channel(int)
            await client.entrypoint.send(GiveSender(sender))
            receivers.append(receiver)
        await client.entrypoint.flush()
        first = (await server.entrypoint.receive()).half  # the others were taken with it
        assert server.entrypoint.statistics()["queued"] == 2
        server.entrypoint.close()
        for receiver in receivers[1:]:
            with pytest.raises(ChannelCancelled):
                await receiver.receive()
        async with first:
            await first.send(1)
        assert await receivers[0].receive() == 1
        assert not server._driver._unclaimed


async def test_a_half_can_be_used_as_soon_as_its_message_was_taken() -> None:
    """Messages sent on it before its carrier was taken are available at once."""
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveReceiver(receiver))
        for number in range(3):
            await sender.send(number)
        sender.finish()
        await asyncio.sleep(0.05)
        theirs = (await server.entrypoint.receive()).half
        assert [number async for number in theirs] == [0, 1, 2]


def chain(length: int) -> Receiver[Link]:
    """Return a receiver of a receiver of a receiver…, each in a finished channel."""
    sender, outermost = channel(Link)
    for _ in range(length):
        next_sender, receiver = channel(Link)
        sender.send_nowait(Link(receiver))
        sender.finish()
        sender = next_sender
    sender.finish()
    return outermost


LONG = 1_500
"""Channels in channels: more than frames that Python's stack has."""


async def test_a_long_chain_of_channels_in_channels_is_sent_without_recursion() -> None:
    async with joined(Receiver[Link]) as (client, server):
        await client.entrypoint.send(chain(LONG))
        received = await server.entrypoint.receive()
        for _ in range(LONG):
            (received,) = [link.next async for link in received]
        assert [link async for link in received] == []


async def test_a_long_chain_of_a_lost_connection_is_closed_without_recursion() -> None:
    """AQ-CLOSE-4: halves in messages that are not received are ended, at any depth."""
    async with joined(Receiver[Link]) as (client, server):
        await client.entrypoint.send(chain(LONG))
        received = await server.entrypoint.receive()
        await eventually(lambda: server.statistics()["channels"] > LONG, "all channels arrived")
        await client.close()
        await server.wait_closed()
        first = await received.receive()
        received.close()
        first.next.close()
        assert server._driver._unclaimed == {}


# -- turns -----------------------------------------------------------------------------------------


async def test_messages_of_one_turn_of_the_loop_are_sent_together() -> None:
    async with joined() as (client, server):
        await client.entrypoint.send(b"first")
        await client.entrypoint.flush()
        before = client.statistics()["packets_sent"]
        for number in range(100):
            client.entrypoint.send_nowait(b"%d" % number)
        assert client.statistics()["packets_sent"] == before
        assert (client._driver.turn_due, client._driver.unflushed >= 100) == (True, True)
        await client.entrypoint.flush()
        assert (client._driver.turn_due, client._driver.unflushed) == (False, 0)
        assert client.statistics()["packets_sent"] - before <= 10
        assert len(await server.entrypoint.receive_many()) == 101


# -- ends ------------------------------------------------------------------------------------------


async def test_all_channels_get_the_code_and_reason_of_the_end() -> None:
    async with joined(GiveSender[int] | None) as (client, server):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveSender(sender))
        given = await server.entrypoint.receive()
        waiting = asyncio.create_task(receiver.receive())
        await asyncio.sleep(0)
        await server.close(aqueduct.CloseCode.GOING_AWAY, "see you")
        with pytest.raises(ConnectionLost) as caught:
            await waiting
        error = caught.value
        assert str(error) == "the peer closed the connection with code 0x8: see you"
        assert (error.code, error.by_peer) == (aqueduct.CloseCode.GOING_AWAY, True)
        assert error.reason == "see you"
        assert error.channel == receiver._port.channel  # type: ignore[attr-defined]
        with pytest.raises(ConnectionLost, match="this side closed"):
            await given.half.send(1)


async def test_halves_that_arrived_before_the_end_can_be_read_after_it() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveReceiver(receiver))
        for number in range(3):
            await sender.send(number)
        await sender.flush()
        await client.close()
        await server.wait_closed()
        theirs = (await server.entrypoint.receive()).half
        assert isinstance(theirs, Receiver)
        assert await theirs.receive_many() == [0, 1, 2]
        with pytest.raises(ConnectionLost):
            await theirs.receive()


async def test_an_ended_channel_leaves_no_port() -> None:
    async with joined(GiveSender[int]) as (client, server):
        for number in range(5):
            reply, answer = oneshot(int)
            await client.entrypoint.send(GiveSender(reply))
            await (await server.entrypoint.receive()).half.send(number)
            assert await answer.receive() == number
        await eventually(lambda: len(client._driver.ports) == 1, "only the entrypoint is left")
        await eventually(lambda: len(server._driver.ports) == 1, "there, too")
