"""Attachments of messages of bytes: claimed, or closed."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import Connection, Message, Receiver, Sender

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
