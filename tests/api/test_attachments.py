"""Attachments of messages of bytes: claimed, or closed."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import Connection, Message, Receiver, Sender
from tests.api.joined import joined

SECONDS = 60


class Carrier(msgspec.Struct):
    ask: Receiver[bytes]
    reply: Sender[bytes]


class Lone(msgspec.Struct):
    reply: Sender[bytes]


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


async def carry(
    handle: Any, kind: Any = bytes, answers: int = 0
) -> "tuple[Sender[bytes], Receiver[bytes], list[bytes]]":
    """Send a sender and a receiver to a server; return the halves that stay, and its messages."""
    async with aqueduct.serve("127.0.0.1:0", kind, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(handle))
        async with aqueduct.connect(
            server.address, Carrier, trust=aqueduct.dev_trust()
        ) as connection:
            asked, theirs = aqueduct.channel(bytes)
            their_reply, reply = aqueduct.channel(bytes)
            await connection.entrypoint.send(Carrier(theirs, their_reply), headers={"a": "b"})
            connection.entrypoint.finish()
            async with asyncio.timeout(SECONDS):
                came = [await reply.receive() for _ in range(answers)]
                await connection.wait_closed()
        serving.cancel()
        return asked, reply, came


async def test_the_halves_in_a_message_of_bytes_can_be_used() -> None:
    async def handle(connection: Connection[bytes]) -> None:
        message = await connection.entrypoint.receive_message()
        receiver, sender = message.attachments
        assert message.attachments == (receiver, sender)
        assert isinstance(receiver, Receiver)
        assert message.headers.text("a") == "b"
        async with sender, receiver:
            await sender.send(b"hello " + message.payload)
            await sender.flush()
            await asyncio.sleep(0.1)

    *_, came = await carry(handle, answers=1)
    assert came == [b"hello " + msgspec.msgpack.encode({"ask": 0, "reply": 1})]


async def test_unclaimed_halves_are_closed_with_the_message_without_a_warning() -> None:
    kept: list[Message[bytes]] = []

    async def handle(connection: Connection[bytes]) -> None:
        kept.append(await connection.entrypoint.receive_message())
        await asyncio.sleep(0.1)
        assert connection.statistics()["channels"] >= 2
        kept.clear()
        gc.collect()
        await asyncio.sleep(0.2)

    asked, reply, _ = await carry(handle)
    with pytest.raises(aqueduct.ReceiverClosed):
        await asked.send(b"anybody?")
    with pytest.raises(aqueduct.ChannelCancelled):
        await reply.receive()


async def test_receive_closes_the_halves_of_a_message_of_bytes_at_once() -> None:
    async def handle(connection: Connection[bytes]) -> None:
        await connection.entrypoint.receive()
        await asyncio.sleep(0.1)

    asked, reply, _ = await carry(handle)
    with pytest.raises(aqueduct.ReceiverClosed):
        await asked.send(b"anybody?")
    with pytest.raises(aqueduct.ChannelCancelled):
        await reply.receive()


async def test_a_typed_message_has_its_halves_in_its_fields_alone() -> None:
    async def handle(connection: Connection[Carrier]) -> None:
        message = await connection.entrypoint.receive_message()
        assert message.attachments == ()
        async with message.payload.ask, message.payload.reply:
            pass
        await asyncio.sleep(0.1)

    _, reply, _ = await carry(handle, Carrier)
    with pytest.raises(aqueduct.EndOfChannel):
        await reply.receive()


async def test_a_sender_whose_receiver_was_closed_before_it_arrived_can_be_claimed() -> None:
    seen: list[str] = []

    async def handle(connection: Connection[bytes]) -> None:
        await asyncio.sleep(0.2)  # the close arrives before the message is taken
        message = await connection.entrypoint.receive_message()
        (sender,) = message.attachments
        assert isinstance(sender, Sender)
        try:
            async with sender:
                await sender.send(b"x")
                await sender.flush()
        except aqueduct.ChannelError as error:
            seen.append(str(error))

    async with aqueduct.serve("127.0.0.1:0", bytes, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(handle))
        async with aqueduct.connect(server.address, Lone, trust=aqueduct.dev_trust()) as connection:
            sender, receiver = aqueduct.channel(bytes)
            receiver.close()
            await connection.entrypoint.send(Lone(sender))
            async with asyncio.timeout(SECONDS):
                await connection.wait_closed()
        serving.cancel()
    assert len(seen) == 1


async def test_a_sender_of_bytes_attaches_halves_to_a_message() -> None:
    async with joined() as (client, server):
        asked, theirs = aqueduct.channel(str)
        their_reply, reply = aqueduct.channel()
        await client.entrypoint.send(b"halves", attach=[theirs, their_reply], headers={"a": "b"})
        client.entrypoint.send_nowait(b"none", attach=[])
        message = await server.entrypoint.receive_message()
        receiver, sender = message.attachments
        assert (message.payload, message.headers.text("a")) == (b"halves", "b")
        assert await server.entrypoint.receive() == b"none"
        await asked.send("a typed half decides its own type")
        assert msgspec.msgpack.decode(await receiver.receive()).startswith("a typed half")
        async with sender, reply, receiver:
            await sender.send(b"back")
            assert await reply.receive() == b"back"


async def test_a_message_queued_in_a_local_channel_keeps_its_halves_on_both_paths() -> None:
    outer, local = aqueduct.channel()
    kept, given = aqueduct.channel()
    await outer.send(b"local", attach=[given])
    message = await local.receive_message()
    assert message.attachments == (given,)
    async with joined() as (client, server):
        await outer.send(b"moves", attach=[given])
        await client.entrypoint.send(b"first", attach=[local])
        (theirs,) = (await server.entrypoint.receive_message()).attachments
        (far,) = (await theirs.receive_message()).attachments
        async with outer, kept, theirs, far:
            await kept.send(b"through two channels")
            assert await far.receive() == b"through two channels"


async def test_halves_that_stay_behind_as_queued_messages_can_be_claimed() -> None:
    async with joined() as (client, server):
        sender, receiver = aqueduct.channel()
        kept, given = aqueduct.channel()
        await sender.send(b"before", attach=[given])
        await client.entrypoint.send(b"", attach=[sender])
        (theirs,) = (await server.entrypoint.receive_message()).attachments
        async with receiver, theirs, kept:
            message = await receiver.receive_message()
            assert message.attachments == (given,)
            given.close()


async def test_receiving_only_the_payload_of_a_local_message_ends_its_halves() -> None:
    outer, local = aqueduct.channel()
    kept, given = aqueduct.channel()
    to_cancel, listening = aqueduct.channel()
    await outer.send(b"x", attach=[given, to_cancel])
    assert await local.receive() == b"x"
    with pytest.raises(aqueduct.ReceiverClosed):
        await kept.send(b"")
    with pytest.raises(aqueduct.ChannelCancelled):
        await listening.receive()
    outer.finish()


async def refused(sender: Sender[Any], value: Any, halves: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await sender.send(value, attach=halves)
    with pytest.raises(kind):
        sender.send_nowait(value, attach=halves)


@pytest.mark.parametrize("networked", [False, True])
async def test_what_cannot_be_attached_is_an_error_of_the_call(networked: bool) -> None:
    async with joined() as (client, server):
        typed, numbers = aqueduct.channel(int)
        plain, payloads = aqueduct.channel()
        moved, stays = aqueduct.channel()
        await client.entrypoint.send(b"", attach=[moved])
        if networked:
            await client.entrypoint.send(b"", attach=[numbers, payloads])
        tx, rx = aqueduct.channel()
        async with tx, rx, typed, plain, stays:
            await refused(typed, 1, [tx], TypeError)
            await refused(plain, b"", [b"no half"], TypeError)
            await refused(plain, b"", [moved], aqueduct.ChannelMoved)
            await refused(plain, b"", [tx, rx], aqueduct.EncodeError)
            await refused(plain, b"", [tx, tx], aqueduct.EncodeError)
            await tx.send(b"the halves are still here")
            assert await rx.receive()
        if networked:
            async with asyncio.timeout(SECONDS):
                for wanted in (1, 2):
                    message = await server.entrypoint.receive_message()
                    assert len(message.attachments) == wanted
                    for half in message.attachments:
                        half.cancel() if isinstance(half, Sender) else half.close()
        else:
            numbers.close()
            payloads.close()


def test_threads_attach_halves_too() -> None:
    with (
        aqueduct.blocking.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
        aqueduct.blocking.connect(server.address, trust=aqueduct.dev_trust()) as client,
        server.accept() as accepted,
    ):
        tx, theirs = aqueduct.blocking.channel()
        other, given = aqueduct.blocking.channel()
        client.entrypoint.send(b"one", attach=[theirs])
        client.entrypoint.send_nowait(b"two", attach=[given])
        (receiver,) = accepted.entrypoint.receive_message().attachments
        (taken,) = accepted.entrypoint.receive_message().attachments
        assert isinstance(receiver, aqueduct.blocking.Receiver)
        with tx, receiver, other, taken:
            tx.send(b"from a thread")
            assert receiver.receive() == b"from a thread"
