"""Channels and connections choose their codec, and the peer learns it from their headers."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec
import pytest

import aqueduct
from aqueduct import Receiver, Sender
from aqueduct.codec import JsonCodec, MessagePackCodec, RawCodec, register
from aqueduct.codec import registry as known


class Reading(msgspec.Struct):
    value: int


class Errand(msgspec.Struct):
    readings: Receiver[Reading]
    raw: Receiver[bytes] | None = None


class Ask(msgspec.Struct):
    text: str
    reply: Sender[str]


class ReversedCodec(MessagePackCodec[Any]):
    """A codec of an application."""

    __slots__ = ()
    content_type: ClassVar[str] = "application/x-reversed"

    def encode(self, value: Any) -> Any:
        payload, halves = super().encode(value)
        return payload[::-1], halves

    def decode(self, payload: bytes, claim: Any) -> Any:
        return super().decode(payload[::-1], claim)

    def decode_many(self, payloads: list[bytes]) -> Any:
        return super().decode_many([payload[::-1] for payload in payloads])


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_known", dict(known._known))
    register(ReversedCodec)


async def accepted(server: aqueduct.Server[Any]) -> aqueduct.ServerConnection[Any]:
    connection = await server.accept()
    assert connection is not None
    return connection


async def test_a_channel_uses_its_codec_on_the_network_and_the_peer_learns_it() -> None:
    """AQ-TYPE-4, AQ-TYPE-1: the same channel, read as bytes and as a typed value."""
    async with (
        aqueduct.serve("memory://", Errand, tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(server.address, Errand, trust=aqueduct.dev_trust()) as client,
    ):
        connection = await accepted(server)
        tx, rx = aqueduct.channel(Reading, codec=JsonCodec)
        async with tx:
            await client.entrypoint.send(Errand(rx))
            await tx.send(Reading(7))
        errand = await connection.entrypoint.receive()
        assert errand.readings.headers.get("content-type") == b"application/json"
        assert await errand.readings.receive() == Reading(7)
        errand.readings.close()


@pytest.mark.parametrize(
    ("codec", "payload"), [(JsonCodec, b'{"value":7}'), (None, b"\x81\xa5value\x07")]
)
async def test_the_bytes_on_the_wire_are_those_of_the_codec(codec: Any, payload: bytes) -> None:
    """AQ-TYPE-1, AQ-TYPE-2: a peer that decodes nothing sees maps by field name, and indexes."""
    async with (
        aqueduct.serve("memory://", tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(server.address, Errand, trust=aqueduct.dev_trust()) as client,
    ):
        connection = await accepted(server)
        tx, rx = aqueduct.channel(Reading, codec=codec)
        raw, other = aqueduct.channel(bytes)
        async with tx, raw:
            await client.entrypoint.send(Errand(rx, other))
            await tx.send(Reading(7))
        message = await connection.entrypoint.receive_message()
        assert message.payload == b"\x82\xa8readings\x00\xa3raw\x01"
        first, second = message.attachments
        async with first, second:
            assert await first.receive() == payload


@pytest.mark.parametrize("index", [b"\x05", b"\x00"])
async def test_a_wrong_index_fails_one_message(index: bytes) -> None:
    """AQ-TYPE-3: no such attachment, and no attachment at all."""
    async with (
        aqueduct.serve("memory://", Errand, tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(server.address, trust=aqueduct.dev_trust()) as client,
    ):
        connection = await accepted(server)
        await client.entrypoint.send(b"\x81\xa8readings" + index)
        with pytest.raises(aqueduct.DecodeError):
            await connection.entrypoint.receive()
        assert connection.is_open


async def test_an_unknown_codec_is_an_error_of_that_channel_only() -> None:
    """AQ-TYPE-5."""
    async with (
        aqueduct.serve("memory://", Errand, tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(server.address, Errand, trust=aqueduct.dev_trust()) as client,
    ):
        connection = await accepted(server)
        tx, rx = aqueduct.channel(Reading, codec=ReversedCodec)
        async with tx:
            await client.entrypoint.send(Errand(rx))
            await tx.send(Reading(7))
        errand = await connection.entrypoint.receive()
        with pytest.raises(aqueduct.DecodeError, match="register"):
            await errand.readings.receive()
        errand.readings.close()
        good, readings = aqueduct.channel(Reading)
        async with good:
            await client.entrypoint.send(Errand(readings))
            await good.send(Reading(8))
        async with (await connection.entrypoint.receive()).readings as receiver:
            assert await receiver.receive() == Reading(8)


@pytest.mark.usefixtures("registered")
async def test_a_codec_of_the_application_is_used_once_registered() -> None:
    async with (
        aqueduct.serve("memory://", Errand, tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(
            server.address, Errand, trust=aqueduct.dev_trust(), codec=ReversedCodec
        ) as client,
    ):
        connection = await accepted(server)
        tx, rx = aqueduct.channel(Reading, headers={"content-type": "Application/X-Reversed; v=1"})
        async with tx:
            await client.entrypoint.send(Errand(rx))
            await tx.send(Reading(7))
        async with (await connection.entrypoint.receive()).readings as receiver:
            assert await receiver.receive() == Reading(7)


async def test_the_entrypoint_and_replies_use_the_codec_of_the_client() -> None:
    async with (
        aqueduct.serve("memory://", Ask, tls=aqueduct.dev_tls(), codec=JsonCodec) as server,
        aqueduct.connect(
            server.address, Ask, trust=aqueduct.dev_trust(), codec=JsonCodec
        ) as client,
    ):

        async def answer(connection: aqueduct.ServerConnection[Ask]) -> None:
            async for request in connection.entrypoint:
                assert request.reply.headers.get("content-type") == b"application/json"
                await request.reply.send(request.text.upper())

        serving = asyncio.create_task(server.run(answer))
        assert await client.entrypoint.call(Ask, text="hi", timeout=10) == "HI"
        serving.cancel()


@pytest.mark.parametrize("codec", [None, ReversedCodec])
async def test_a_server_refuses_a_client_whose_codec_it_does_not_read(codec: Any) -> None:
    """AQ-TYPE-6: the server takes JSON alone; and one without a choice does not know the codec."""
    accepts = JsonCodec if codec is None else None
    async with aqueduct.serve(
        "memory://", Reading, tls=aqueduct.dev_tls(), codec=accepts
    ) as server:
        with pytest.raises(aqueduct.Refused, match="application/"):
            await aqueduct.connect(server.address, Reading, trust=aqueduct.dev_trust(), codec=codec)


@pytest.mark.parametrize("codec", ["json", JsonCodec(Reading), int, RawCodec])
def test_what_is_no_codec_for_the_type_is_refused_at_the_call(codec: Any) -> None:
    with pytest.raises(TypeError):
        aqueduct.channel(Reading, codec=codec)
    with pytest.raises(TypeError):
        aqueduct.oneshot(Reading, codec=codec)
    with pytest.raises(TypeError):
        aqueduct.connect("localhost:1", Reading, trust=aqueduct.dev_trust(), codec=codec)
    with pytest.raises(TypeError):
        aqueduct.serve("localhost:0", Reading, tls=aqueduct.dev_tls(), codec=codec)


def test_bytes_have_no_codec_and_headers_must_agree() -> None:
    with pytest.raises(TypeError, match="bytes"):
        aqueduct.channel(bytes, codec=JsonCodec)
    with pytest.raises(TypeError, match="content-type"):
        aqueduct.channel(Reading, codec=JsonCodec, headers={"content-type": "application/msgpack"})
    with pytest.raises(TypeError, match="register"):
        aqueduct.channel(Reading, headers={"content-type": "application/x-unheard-of"})


def test_register_takes_codec_classes_only() -> None:
    with pytest.raises(TypeError, match="codec class"):
        register(JsonCodec(Reading))  # type: ignore[arg-type]
