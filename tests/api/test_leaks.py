"""Nothing is left of channels that ended: ports, halves, counts, tasks and timers."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest

import aqueduct
from aqueduct import Receiver, Sender
from aqueduct.api.connection import Connection
from aqueduct.errors import ChannelError, EndOfChannel, ReceiverClosed
from aqueduct.transport.quic.engine import Engine
from tests.api.joined import SECONDS, Ends, joined
from tests.processes.peers import eventually
from tests.transport.quic.inside import transport_of

ROUNDS = int(os.environ.get("LEAK_ROUNDS", "40"))
"""Channels of each kind of ending; `make soak` has more."""


class Request(msgspec.Struct):
    """A message that may carry either half of a channel."""

    inward: Receiver[bytes] | None = None
    outward: Sender[bytes] | None = None


class Call(msgspec.Struct):
    """A message that wants an answer."""

    reply: Sender[bytes]


async def give_receiver(ends: Ends) -> tuple[Sender[bytes], Receiver[bytes]]:
    sender, receiver = aqueduct.channel()
    await ends.client.entrypoint.send(Request(inward=receiver))
    theirs = (await ends.server.entrypoint.receive()).inward
    assert theirs is not None
    return sender, theirs


async def give_sender(ends: Ends) -> tuple[Sender[bytes], Receiver[bytes]]:
    sender, receiver = aqueduct.channel()
    await ends.client.entrypoint.send(Request(outward=sender))
    theirs = (await ends.server.entrypoint.receive()).outward
    assert theirs is not None
    return theirs, receiver


Make = Callable[[Ends], Awaitable[tuple[Sender[bytes], Receiver[bytes]]]]


async def send_until_error(sender: Sender[bytes]) -> None:
    while True:
        await sender.send(b"y")
        await asyncio.sleep(0)


async def receive_until_error(receiver: Receiver[bytes]) -> None:
    while True:
        await receiver.receive()


async def finish_and_read(make: Make, ends: Ends) -> None:
    sender, receiver = await make(ends)
    await sender.send(b"x")
    sender.finish()
    assert [value async for value in receiver] == [b"x"]


async def finish_unread(make: Make, ends: Ends) -> None:
    sender, receiver = await make(ends)
    await sender.send(b"x")
    sender.finish()
    receiver.close()


async def close_before_the_sender_ends(make: Make, ends: Ends) -> None:
    sender, receiver = await make(ends)
    await sender.send(b"x")
    receiver.close()
    with pytest.raises(ReceiverClosed):
        await send_until_error(sender)
    sender.cancel()


async def cancel(make: Make, ends: Ends) -> None:
    sender, receiver = await make(ends)
    await sender.send(b"x")
    sender.cancel()
    with pytest.raises(ChannelError):
        await receive_until_error(receiver)


async def close_without_a_message(make: Make, ends: Ends) -> None:
    sender, receiver = await make(ends)
    receiver.close()
    sender.cancel()


async def finish_without_a_message(make: Make, ends: Ends) -> None:
    sender, receiver = await make(ends)
    sender.finish()
    with pytest.raises(EndOfChannel):
        await receiver.receive()


def left(connection: Connection[object]) -> list[str]:
    """Return what a connection holds besides its entrypoint and its streams."""
    ports = [f"port {channel}" for channel in connection._driver.ports if channel]
    unclaimed = [f"unclaimed port {channel}" for channel in connection._driver._unclaimed]
    left = connection._driver.core.leftovers()
    core = [text for text in left if not text.startswith("entrypoint: ")]
    streams = [text for text in core if text.startswith("incoming stream")]
    few = [] if len(streams) > 2 else streams
    return ports + unclaimed + [text for text in core if text not in few]


async def assert_nothing_left(ends: Ends) -> None:
    """Check that nothing is left after the last acks and timers."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + SECONDS / 4
    while any(left(one) for one in ends) and clock.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert [left(one) for one in ends] == [[], []]


@pytest.mark.parametrize("make", [give_receiver, give_sender])
@pytest.mark.parametrize(
    "end",
    [
        finish_and_read,
        finish_unread,
        close_before_the_sender_ends,
        cancel,
        close_without_a_message,
        finish_without_a_message,
    ],
)
async def test_nothing_is_left_of_a_channel_however_it_ended(
    make: Make, end: Callable[[Make, Ends], Awaitable[None]]
) -> None:
    async with joined(Request) as ends:
        tasks = len(asyncio.all_tasks())
        for _ in range(ROUNDS):
            await end(make, ends)
        await assert_nothing_left(ends)
        assert len(asyncio.all_tasks()) == tasks


async def test_nothing_is_left_of_calls_that_timed_out() -> None:
    async with joined(Call) as ends:
        unanswered = []
        for _ in range(ROUNDS):
            with pytest.raises(TimeoutError):
                await ends.client.entrypoint.call(Call, timeout=0.001)
            unanswered.append(await ends.server.entrypoint.receive())
        for call in unanswered:
            call.reply.cancel()
        await assert_nothing_left(ends)


async def test_nothing_is_left_of_unclaimed_halves() -> None:
    async with joined(Request, bytes) as ends:
        for _ in range(ROUNDS):
            to_them, receiver = aqueduct.channel()
            sender, from_them = aqueduct.channel()
            await ends.client.entrypoint.send(Request(inward=receiver, outward=sender))
            await ends.server.entrypoint.receive()
            to_them.cancel()
            from_them.close()
        await assert_nothing_left(ends)


async def test_a_server_frees_a_connection_when_its_handler_returns() -> None:
    gone = asyncio.Event()

    async def handler(connection: aqueduct.ServerConnection[bytes]) -> None:
        weakref.finalize(connection, gone.set)
        await connection.entrypoint.receive()

    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        running = asyncio.create_task(server.run(handler))
        async with aqueduct.connect(
            server.address, trust=aqueduct.dev_trust(), timeout=SECONDS
        ) as client:
            await client.entrypoint.send(b"x")
        async with asyncio.timeout(SECONDS):
            while not gone.is_set():
                gc.collect()
                await asyncio.sleep(0.05)
        running.cancel()


def is_freed(quic: Engine) -> bool:
    return quic.core is None


async def test_an_ended_connection_holds_no_memory_of_quic() -> None:
    """The application, or a reference cycle, may keep the connection for minutes."""
    async with joined() as (client, server):
        await client.entrypoint.send(bytes(500_000))
        await server.entrypoint.receive()
        await client.close()
        for connection in (client, server):
            quic = transport_of(connection).bridge.quic
            await eventually(partial(is_freed, quic), "QUIC is freed")
            assert connection.statistics()["bytes_in_flight"] == 0
