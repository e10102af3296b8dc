"""The mode of a sender: read and set on every kind, and how its messages then travel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aqueduct
from aqueduct import (
    DELIVERED,
    ChannelMoved,
    LocalProtocolError,
    Mode,
    Sender,
    blocking,
    channel,
    oneshot,
)
from aqueduct.observe import NullObserver
from tests.api.joined import SECONDS, Ends, GiveReceiver, GiveSender
from tests.processes.peers import eventually

PLACES = {Mode.ORDERED: "one stream", Mode.UNORDERED: "streams", Mode.UNRELIABLE: "datagrams"}


class Wire(NullObserver):
    """Counts what one side writes."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages: set[int] = set()
        self.datagrams = 0

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        if b"reading" in data:
            self.messages.add(stream)

    def datagram_written(self, data: bytes) -> None:
        self.datagrams += b"reading" in data

    def place(self) -> str:
        """Return where messages were written to."""
        if self.datagrams:
            assert not self.messages
            return "datagrams"
        return "one stream" if len(self.messages) == 1 else "streams"


@asynccontextmanager
async def watched(kind: Any = bytes) -> AsyncIterator[tuple[Ends, Wire, Wire]]:
    """Connect in memory; yield both ends, and what the client and the server write."""
    client_wire, server_wire = Wire(), Wire()
    async with (
        aqueduct.serve(
            "memory://", kind, tls=aqueduct.dev_tls(), observers=[lambda _: server_wire]
        ) as server,
        aqueduct.connect(
            server.address,
            kind,
            trust=aqueduct.dev_trust(),
            timeout=SECONDS,
            observers=[lambda _: client_wire],
        ) as client,
    ):
        accepted = await server.accept()
        assert accepted is not None
        yield Ends(client, accepted), client_wire, server_wire


async def send_three(sender: Sender[bytes]) -> None:
    for number in range(3):
        await sender.send(b"reading %d" % number)
    await sender.flush()


@pytest.mark.parametrize("mode", list(Mode))
async def test_the_mode_of_the_entrypoint_can_be_set(mode: Mode) -> None:
    async with watched() as (ends, wire, _):
        assert ends.client.entrypoint.mode is Mode.ORDERED
        ends.client.entrypoint.mode = mode
        assert ends.client.entrypoint.mode is mode
        await send_three(ends.client.entrypoint)
        assert wire.place() == PLACES[mode]
        assert len(await ends.server.entrypoint.receive_many()) == 3


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_sender_that_is_sent_away_keeps_the_mode_of_its_channel(mode: Mode) -> None:
    """AQ-MODE-1."""
    async with watched(GiveSender[bytes]) as (ends, _, wire):
        sender, receiver = channel(mode=mode, headers={"name": "x"})
        await ends.client.entrypoint.send(GiveSender(sender))
        theirs = (await ends.server.entrypoint.receive()).half
        assert theirs.mode is mode
        assert f"mode={mode.value} open" in repr(theirs)
        assert list(theirs.headers) == [(b"name", b"x")]  # AQ-CHAN-4
        async with receiver, theirs:
            await send_three(theirs)
        assert wire.place() == PLACES[mode]


@pytest.mark.parametrize("mode", list(Mode))
async def test_the_holder_of_a_received_sender_may_choose_another_mode(mode: Mode) -> None:
    """AQ-MODE-1."""
    async with watched(GiveSender[bytes]) as (ends, _, wire):
        sender, receiver = channel(mode=Mode.UNRELIABLE)
        await ends.client.entrypoint.send(GiveSender(sender))
        theirs = (await ends.server.entrypoint.receive()).half
        theirs.mode = mode
        async with receiver, theirs:
            await send_three(theirs)
        assert theirs.mode is mode
        assert wire.place() == PLACES[mode]


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_mode_set_on_a_local_sender_holds_once_the_channel_is_networked(mode: Mode) -> None:
    async with watched(GiveReceiver[bytes]) as (ends, wire, _):
        sender, receiver = channel(mode=Mode.UNORDERED)
        sender.mode = mode
        await ends.client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await ends.server.entrypoint.receive()).half
        assert sender.mode is mode
        async with theirs, sender:
            await send_three(sender)
        assert wire.place() == PLACES[mode]


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_oneshot_channel_has_a_mode(mode: Mode) -> None:
    async with watched(GiveSender[bytes]) as (ends, _, wire):
        sender, receiver = oneshot(mode=mode)
        assert sender.mode is mode
        await ends.client.entrypoint.send(GiveSender(sender))
        theirs = (await ends.server.entrypoint.receive()).half
        assert theirs.mode is mode
        await theirs.send(b"reading")
        assert await receiver.receive() == b"reading"
        assert wire.place() == ("datagrams" if mode is Mode.UNRELIABLE else "one stream")


async def test_a_mode_cannot_be_set_after_the_first_message() -> None:
    """AQ-SEND-3."""
    sentence = r"messages were sent on .* already; set the mode of a sender before its first"
    async with watched(GiveReceiver[bytes]) as (ends, _, _):
        sender, receiver = channel()
        with pytest.raises(LocalProtocolError, match=r"AQ-CHAN-4"):
            channel(headers={"aqueduct-mode": "unreliable"})
        await sender.send(b"queued")
        with pytest.raises(LocalProtocolError, match=sentence):
            sender.mode = Mode.UNRELIABLE
        await ends.client.entrypoint.send(GiveReceiver(receiver))
        with pytest.raises(LocalProtocolError, match=sentence):
            sender.mode = Mode.UNRELIABLE
        with pytest.raises(LocalProtocolError, match=sentence):
            ends.client.entrypoint.mode = Mode.UNORDERED
        assert sender.mode is ends.client.entrypoint.mode is Mode.ORDERED
        theirs = (await ends.server.entrypoint.receive()).half
        assert await theirs.receive() == b"queued"
        theirs.close()
        sender.cancel()


async def test_a_message_received_locally_counts_as_the_first() -> None:
    async with watched(GiveReceiver[bytes]) as (ends, _, _):
        sender, receiver = channel()
        await sender.send(b"local")
        assert await receiver.receive() == b"local"
        await ends.client.entrypoint.send(GiveReceiver(receiver))
        with pytest.raises(LocalProtocolError, match="first message"):
            sender.mode = Mode.UNORDERED
        sender.cancel()


@pytest.mark.parametrize("wrong", ["unreliable", 1, None, Mode])
async def test_setting_a_mode_that_is_none_is_a_type_error(wrong: Any) -> None:
    async with watched() as (ends, _, _):
        local, _ = oneshot()
        for sender in (ends.client.entrypoint, local):
            with pytest.raises(TypeError, match=r"mode is a Mode such as .*, not "):
                sender.mode = wrong
            assert sender.mode is Mode.ORDERED
        local.cancel()
        with pytest.raises(TypeError, match="mode is a Mode"):
            oneshot(mode=wrong)


async def test_a_half_that_was_sent_away_has_no_mode_here() -> None:
    async with watched(GiveSender[bytes]) as (ends, _, _):
        sender, receiver = channel()
        await ends.client.entrypoint.send(GiveSender(sender))
        with pytest.raises(ChannelMoved):
            _ = sender.mode
        with pytest.raises(ChannelMoved):
            sender.mode = Mode.ORDERED
        (await ends.server.entrypoint.receive()).half.finish()
        receiver.close()


async def test_the_mode_of_an_ended_sender_can_still_be_read() -> None:
    async with watched(GiveSender[bytes]) as (ends, _, _):
        sender, receiver = channel(mode=Mode.UNRELIABLE)
        await ends.client.entrypoint.send(GiveSender(sender))
        receiver.close()
        theirs = (await ends.server.entrypoint.receive()).half
        await eventually(lambda: not theirs._port.is_open(), "the sender gets the end")
        assert theirs.mode is Mode.UNRELIABLE
        theirs.mode = Mode.ORDERED  # too late to matter, and no error: the next send raises
        assert theirs.mode is Mode.ORDERED


async def test_unreliable_messages_queued_locally_wait_for_credit_instead_of_being_dropped() -> (
    None
):
    async with watched(GiveReceiver[bytes]) as (ends, _, _):
        sender, receiver = channel(mode=Mode.UNRELIABLE, capacity=5_000)
        receipts = [await sender.send(bytes(1_000), receipt=True) for _ in range(5_000)]
        await ends.client.entrypoint.send(GiveReceiver(receiver))
        sender.finish()
        theirs = (await ends.server.entrypoint.receive()).half
        assert len([payload async for payload in theirs]) == 5_000
        outcomes = {await receipt for receipt in receipts if receipt is not None}
        assert outcomes == {DELIVERED}


def test_a_blocking_sender_has_a_mode() -> None:
    sender, receiver = blocking.channel(bytes, mode=Mode.UNORDERED)
    one, _ = blocking.oneshot(bytes, mode=Mode.UNRELIABLE)
    assert one.mode is Mode.UNRELIABLE
    one.cancel()
    wrong: Any = "unordered"
    with pytest.raises(TypeError, match="mode is a Mode"):
        sender.mode = wrong
    sender.mode = Mode.ORDERED
    assert sender.mode is Mode.ORDERED
    sender.send(b"x")
    with pytest.raises(LocalProtocolError, match="first message"):
        sender.mode = Mode.UNORDERED
    assert receiver.receive() == b"x"
    sender.finish()
