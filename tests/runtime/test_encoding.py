"""Local channels that encode: tests over them fail where a network would."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import (
    CallError,
    ChannelCancelled,
    ChannelMoved,
    DecodeError,
    EncodeError,
    EndOfChannel,
    Receiver,
    ReceiverClosed,
    Sender,
    blocking,
    channel,
    oneshot,
)
from aqueduct.codec import JsonCodec


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Carry(msgspec.Struct):
    points: Receiver[Point]
    count: int = 0


class Link(msgspec.Struct):
    next: Receiver[Link]


class Double(aqueduct.Request[int]):
    number: int


class Refuse(aqueduct.Request[int]):
    pass


class GiveAnswer(msgspec.Struct):
    answer: Receiver[int]


async def test_the_receiver_gets_a_copy_of_what_was_sent() -> None:
    tx, rx = channel(Point, encode=True)
    sent = Point(1, 2)
    await tx.send(sent)
    received = await rx.receive()
    assert received == sent
    assert received is not sent
    tx.finish()
    rx.close()


@pytest.mark.parametrize("value", [Point("one"), {"y": 1}, None, "text"])  # type: ignore[arg-type]
async def test_a_value_that_is_not_of_the_type_fails_as_over_a_network(value: Any) -> None:
    tx, rx = channel(Point, encode=True)
    try:
        await tx.send(value)
    except (EncodeError, TypeError):
        tx.send_nowait(Point(1))
    else:
        with pytest.raises(DecodeError, match="not of type Point"):
            await rx.receive()
        await tx.send(Point(1))
    assert await rx.receive() == Point(1)
    tx.finish()
    assert [point async for point in rx] == []


async def test_a_value_that_cannot_be_encoded_was_not_sent() -> None:
    tx: Sender[Any]
    tx, rx = channel(Any, encode=True)
    with pytest.raises(EncodeError, match="cannot encode object"):
        await tx.send(object())
    assert tx.statistics() == {"sent": 0, "queued": 0}
    tx.cancel()
    rx.close()


async def test_a_channel_of_bytes_rejects_other_values() -> None:
    tx, rx = channel(encode=True)
    with pytest.raises(EncodeError, match="a channel of bytes cannot send a str"):
        await tx.send("text")  # type: ignore[arg-type]
    await tx.send(b"bytes")
    assert await rx.receive() == b"bytes"
    tx.cancel()
    rx.close()


async def test_a_batch_ends_before_a_value_that_cannot_be_decoded() -> None:
    tx, rx = channel(Point, encode=True)
    for point in (Point(1), Point(2), Point("three"), Point(4)):  # type: ignore[arg-type]
        tx.send_nowait(point)
    tx.finish()
    assert await rx.receive_many() == [Point(1), Point(2)]
    with pytest.raises(DecodeError):
        await rx.receive_many()
    assert await rx.receive_many() == [Point(4)]
    with pytest.raises(EndOfChannel):
        await rx.receive()


async def test_a_type_that_no_message_can_have_is_rejected() -> None:
    with pytest.raises(TypeError, match="cannot be the type of a channel"):
        channel(int | list[int] | str | set[int], encode=True)


async def test_channels_in_messages_encode_too_also_what_was_queued_before() -> None:
    tx, rx = channel(Carry, encode=True)
    points, theirs = channel(Point)
    points.send_nowait(Point(1))
    points.send_nowait(Point("two"))  # type: ignore[arg-type]
    await tx.send(Carry(theirs))
    points.send_nowait(Point(3))
    points.finish()
    received = (await rx.receive()).points
    assert received is not theirs
    assert await received.receive() == Point(1)
    with pytest.raises(DecodeError):
        await received.receive()
    assert [point async for point in received] == [Point(3)]
    with pytest.raises(ChannelMoved):
        await theirs.receive()
    tx.finish()
    rx.close()


async def test_a_queued_value_that_cannot_be_encoded_cancels_its_channel() -> None:
    tx, rx = channel(Carry, encode=True)
    points, theirs = channel(Point)
    points.send_nowait(Point(1))
    points.send_nowait(Point(object()))  # type: ignore[arg-type]
    await tx.send(Carry(theirs))
    received = (await rx.receive()).points
    with pytest.raises(ChannelCancelled):
        await received.receive()
    with pytest.raises(EncodeError, match="object is not supported"):
        await points.send(Point(2))
    tx.finish()
    rx.close()


async def test_a_sender_in_a_message_has_the_type_that_the_message_declares() -> None:
    tx, rx = channel(Sender[Point], encode=True)
    anything: Receiver[Any]
    back: Sender[Any]
    back, anything = channel(Any)
    await tx.send(back)
    received = await rx.receive()
    await received.send(Point(1))
    assert await anything.receive() == {"x": 1, "y": 0}
    anything.close()
    with pytest.raises(ReceiverClosed):
        await received.send(Point(2))
    tx.finish()
    rx.close()


async def test_halves_of_a_message_that_cannot_be_decoded_are_ended() -> None:
    tx, rx = channel(Carry, encode=True)
    points, theirs = channel(Point)
    await tx.send(Carry(theirs, "many"))  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="Expected `int`, got `str`"):
        await rx.receive()
    with pytest.raises(ReceiverClosed):
        await points.send(Point(1))
    tx.finish()
    rx.close()


async def test_the_other_half_than_declared_is_an_error() -> None:
    tx, rx = channel(dict[str, Receiver[int]], encode=True)
    numbers, theirs = channel(int)
    await tx.send({"half": numbers})  # type: ignore[dict-item]
    with pytest.raises(DecodeError, match="the attachment is no Receiver, but the other half"):
        await rx.receive()
    with pytest.raises((ChannelCancelled, CallError)):
        await theirs.receive()
    tx.finish()
    rx.close()


async def test_a_half_cannot_be_sent_twice_nor_on() -> None:
    tx, rx = channel(list[Receiver[int]], encode=True)
    numbers, theirs = channel(int)
    with pytest.raises(EncodeError, match="twice"):
        await tx.send([theirs, theirs])
    await tx.send([theirs])
    with pytest.raises(ChannelMoved):
        await tx.send([theirs])
    (received,) = await rx.receive()
    with pytest.raises(EncodeError, match="cannot be sent on"):
        await tx.send([received])
    received.close()
    numbers.cancel()
    tx.finish()
    rx.close()


async def test_attachments_of_bytes_are_halves_of_bytes() -> None:
    tx, rx = channel(encode=True)
    chunks, theirs = channel()
    await tx.send(b"take this", attach=[theirs])
    message = await rx.receive_message()
    (received,) = message.attachments
    assert received is not theirs
    await chunks.send(b"chunk")
    assert await received.receive() == b"chunk"
    chunks.finish()
    received.close()
    tx.finish()
    rx.close()


async def test_a_caller_is_told_that_its_request_is_malformed() -> None:
    """AQ-CALL-4."""
    tx, rx = channel(Double, encode=True)
    calling = asyncio.create_task(tx.call(Double(number="two")))  # type: ignore[arg-type]
    with pytest.raises(DecodeError) as caught:
        await rx.receive()
    assert caught.value.was_answered
    with pytest.raises(CallError, match="invalid-request"):
        await calling
    tx.finish()
    rx.close()


@pytest.mark.parametrize("encode", [False, True])
async def test_errors_of_a_handler_reach_its_caller(encode: bool) -> None:
    """AQ-CALL-4: an error has no value that would have to be of the type."""

    async def handle(request: Double) -> int:
        raise CallError("too-late", f"after {request.number}")

    tx, rx = channel(Double, encode=encode)
    serving = asyncio.create_task(rx.serve(handle))
    with pytest.raises(CallError, match="too-late: after 2"):
        await tx.call(Double(number=2))
    tx.finish()
    await serving


async def test_an_error_that_is_queued_when_its_channel_begins_to_encode_arrives() -> None:
    give, take = channel(GiveAnswer, encode=True)
    reply, answer = oneshot(int)

    async def refuse(request: Refuse) -> None:
        raise CallError("too-late")

    requests, served = channel(Refuse)
    serving = asyncio.create_task(served.serve(refuse))
    await requests.send(Refuse(reply=reply))
    requests.finish()
    await serving
    await give.send(GiveAnswer(answer))
    given = await take.receive()
    with pytest.raises(CallError, match="too-late"):
        await given.answer.receive()
    give.finish()
    take.close()


class Load(msgspec.Struct):
    size: int
    numbers: Receiver[int] | None = None


async def test_a_malformed_message_that_carries_receivers_only_ends_their_senders() -> None:
    """AQ-CALL-4."""
    tx, rx = channel(Load, encode=True)
    numbers, theirs = channel(int)
    await tx.send(Load("two", theirs))  # type: ignore[arg-type]
    await tx.send(Load(2))
    tx.finish()
    assert [load.size async for load in rx] == [2]
    assert numbers.is_closed
    numbers.cancel()


async def test_the_other_codecs_encode_too() -> None:
    tx, rx = channel(dict[str, tuple[int, ...]], encode=True, codec=JsonCodec)
    await tx.send({"a": (1, 2)})
    assert await rx.receive() == {"a": (1, 2)}
    with pytest.raises(EncodeError):
        await tx.send({"a": {object()}})  # type: ignore[dict-item]
    tx.finish()
    rx.close()


async def test_a_oneshot_encodes() -> None:
    tx, rx = oneshot(Point, encode=True)
    await tx.send(Point(3))
    assert await rx.receive() == Point(3)


async def test_a_long_chain_of_channels_in_channels_is_encoded_without_recursion() -> None:
    tx, outermost = channel(Link)
    carrier, rx = channel(Receiver[Link], encode=True)
    for _ in range(1_500):
        next_sender, receiver = channel(Link)
        tx.send_nowait(Link(receiver))
        tx.finish()
        tx = next_sender
    tx.finish()
    await carrier.send(outermost)
    received = await rx.receive()
    for _ in range(1_500):
        (received,) = [link.next async for link in received]
    assert [link async for link in received] == []
    carrier.finish()
    rx.close()


def test_blocking_channels_encode_and_give_blocking_halves() -> None:
    tx, rx = blocking.channel(list[blocking.Receiver[int]], encode=True)
    numbers, theirs = blocking.channel(int)
    tx.send([theirs])
    (received,) = rx.receive()
    assert isinstance(received, blocking.Receiver)
    numbers.send(1)
    assert received.receive() == 1
    received.close()
    numbers.cancel()
    tx.finish()
    rx.close()
