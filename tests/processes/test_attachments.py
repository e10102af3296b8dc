"""Channels inside messages, between two processes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import aqueduct
from aqueduct import (
    CallError,
    ChannelCancelled,
    ChannelMoved,
    DecodeError,
    EncodeError,
    Receiver,
    ReceiverClosed,
    Sender,
    channel,
    oneshot,
)
from tests.processes.lab import (
    Ask,
    Collect,
    Keep,
    Level1,
    Level2,
    Level3,
    Mirror,
    Nest,
    Report,
    Request,
    Vitals,
)
from tests.processes.peers import BOTH, TIMEOUT, bounded, connect, eventually, lab, send_until_error

SCHEMES = BOTH


@bounded
async def test_channels_can_be_attached_three_levels_deep_in_both_directions() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        to_first, first = channel(Level1)
        to_second, second = channel(Level2)
        to_third, third = channel(Level3)
        data_in, data = channel()
        back, returned = channel()
        answer, answers = channel(Level1)
        # From the inside out, with data before anything has arrived.
        await data_in.send(b"early")
        await to_third.send(Level3(data, back))
        await to_second.send(Level2(third))
        await to_first.send(Level1(second))
        await connection.entrypoint.send(Nest(first, answer))
        await data_in.send(b"late")
        data_in.finish()
        theirs = await answers.receive()
        level2 = await theirs.next.receive()
        level3 = await level2.next.receive()
        assert [payload async for payload in level3.data] == [b"early", b"late"]
        async with level3.back:
            await level3.back.send(b"and back again")
        assert [payload async for payload in returned] == [b"and back again"]
        for sender in (to_first, to_second, to_third):
            sender.finish()
        for receiver in (answers, theirs.next, level2.next):
            receiver.close()


@bounded
async def test_connections_messages_and_channels_have_headers() -> None:
    async with lab() as server:
        headers = [("who", "a test"), ("who", "again")]
        async with connect(server.address, Request, headers=headers) as connection:
            sender, receiver = channel(headers={"on": "the channel"})
            reply, answer = oneshot(dict)
            await connection.entrypoint.send(Mirror(receiver, reply), headers={"on": "the message"})
            await sender.send(b"", headers={"on": "the inner message"})
            seen = await answer.receive()
            sender.cancel()
        assert seen == {
            "connection": [["who", "a test"], ["who", "again"]],
            "message": [["on", "the message"]],
            "channel": [["on", "the channel"]],
            "inner message": [["on", "the inner message"]],
        }


@bounded
async def test_the_client_gets_the_servers_headers() -> None:
    async with lab("--accept", "password") as server:
        headers = {"password": "open sesame"}
        async with connect(server.address, Request, headers=headers) as connection:
            assert connection.headers.text("greeting") == "hello 127.0.0.1"
            assert len(connection.headers) == 1


@bounded
async def test_call_makes_the_oneshot_channel_for_the_answer() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        assert await connection.entrypoint.call(Ask, text="hi", timeout=TIMEOUT) == "HI"
        answers = await asyncio.gather(
            *(connection.entrypoint.call(Ask, text=f"n{number}") for number in range(200))
        )
        assert answers == [f"N{number}" for number in range(200)]


@bounded
async def test_a_call_without_an_answer_times_out_and_leaks_nothing() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        before = await connection.entrypoint.call(Vitals)
        with pytest.raises(TimeoutError):
            await connection.entrypoint.call(Ask, text="never", timeout=0.2)
        with pytest.raises(ChannelCancelled):
            await connection.entrypoint.call(Ask, text="drop", timeout=TIMEOUT)

        async def is_clean() -> bool:
            after = await connection.entrypoint.call(Vitals)
            return bool(after["channels"] <= before["channels"])

        await eventually(is_clean, "the server has freed the channel of the call")


@bounded
async def test_a_half_can_be_sent_once() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        other, _answer = oneshot(Report)
        with pytest.raises(ChannelMoved):
            await receiver.receive()
        with pytest.raises(ChannelMoved):
            await connection.entrypoint.send(Collect(receiver, other))
        with pytest.raises(ChannelMoved):
            await report.send(Report(0, 0, "", "", True))
        sender.finish()
        assert (await answer.receive()).ended == "EndOfChannel"
        # A half that could not be sent is still local and usable.
        other.cancel()


@bounded
async def test_a_networked_half_cannot_be_sent_on_and_the_error_has_a_hint() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        sink, source = channel()
        await connection.entrypoint.send(Keep(receiver, sink))
        report, answer = oneshot(Report)
        with pytest.raises(EncodeError, match="copy the messages"):
            await connection.entrypoint.send(Collect(source, report))
        sender.finish()
        assert [payload async for payload in source] == []
        report.cancel()
        answer.close()


class Unknown(msgspec.Struct, tag="Ask"):
    """Has the tag of `Ask`, but its reply is not a channel."""

    text: str
    reply: str
    extra: Receiver[bytes]
    more: Sender[bytes]


@bounded
async def test_unclaimed_halves_are_closed_and_the_channel_stays_open() -> None:
    async with lab(calm=False) as server, connect(server.address, Unknown) as connection:
        sender, receiver = channel()
        sink, source = channel()
        await connection.entrypoint.send(Unknown("x", "no channel", receiver, sink))
        with pytest.raises(ReceiverClosed):
            await send_until_error(sender, b"x", pause=0.01)
        with pytest.raises(CallError) as failure:
            await source.receive()
        assert failure.value.code == "invalid-request"


class Envelope(msgspec.Struct):
    number: int
    content: Receiver[bytes]


@bounded
async def test_a_malformed_message_affects_no_other_message() -> None:
    async with (
        aqueduct.serve("127.0.0.1:0", Envelope, tls=aqueduct.dev_tls()) as server,
        connect(server.address, bytes) as connection,
    ):
        await connection.entrypoint.send(b"\xff not msgpack")
        await connection.entrypoint.send(msgspec.msgpack.encode({"number": 1, "content": 0}))
        accepted = await server.accept()
        assert accepted is not None
        with pytest.raises(DecodeError):
            await accepted.entrypoint.receive()
        with pytest.raises(DecodeError, match="attachment 0"):
            await accepted.entrypoint.receive()
        with pytest.raises(aqueduct.WouldBlock):
            accepted.entrypoint.receive_nowait()
