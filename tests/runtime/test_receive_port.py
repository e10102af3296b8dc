"""Receiving from a peer: each message once, in order; a malformed one affects no other."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import (
    DELIVERED,
    LOST,
    CallError,
    ChannelCancelled,
    ChannelClosed,
    ConnectionLost,
    DecodeError,
    EndOfChannel,
    Receiver,
    Sender,
    WouldBlock,
)
from aqueduct.protocol.flow import FIRST_WINDOW
from aqueduct.runtime.receive_port import _BATCH, _BATCH_BYTES
from tests.api.joined import SECONDS, GiveReceiver, GiveSender, joined, receiving, sending
from tests.processes.peers import eventually

BAD = b"\xc1"
"""Not a MessagePack value."""


class Order(msgspec.Struct):
    reply: Sender[int]
    number: int


class Loose(msgspec.Struct):
    """A message of a peer that is not an `Order`."""

    reply: Sender[int]
    number: str


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


def packed(*values: Any) -> list[bytes]:
    return [value if value == BAD else msgspec.msgpack.encode(value) for value in values]


async def arrive(sender: Sender[Any], payloads: list[Any]) -> None:
    """Send these in one turn, and wait until they have arrived."""
    for payload in payloads:
        sender.send_nowait(payload)
    await sender.flush()


async def all_by(read: Callable[[], Awaitable[list[int]]]) -> list[int | str]:
    """Return what is received until the end, with the errors."""
    got: list[int | str] = []
    while True:
        try:
            got += await read()
        except DecodeError:
            got.append("bad")
        except EndOfChannel:
            return got


# -- malformed messages ----------------------------------------------------------------------------

MIXED = [
    ([1, 2, BAD, 3, 4], [1, 2, "bad", 3, 4]),
    ([BAD, 1], ["bad", 1]),
    ([1, BAD], [1, "bad"]),
    ([BAD, BAD, 1, BAD], ["bad", "bad", 1, "bad"]),
    ([BAD], ["bad"]),
]


@pytest.mark.parametrize(("sent", "expected"), MIXED)
@pytest.mark.parametrize("way", ["receive", "message", "many", "few", "loop", "nowait"])
async def test_a_malformed_message_raises_once_between_its_neighbours(
    way: str, sent: list[Any], expected: list[Any]
) -> None:
    async with sending(bytes, int) as (sender, receiver):
        await arrive(sender, packed(*sent))
        sender.finish()

        async def one() -> list[int]:
            return [await receiver.receive()]

        async def message() -> list[int]:
            return [(await receiver.receive_message()).payload]

        async def nowait() -> list[int]:
            while True:
                try:
                    return [receiver.receive_nowait()]
                except WouldBlock:
                    await asyncio.sleep(0.001)

        got: list[int | str] = []
        if way == "loop":
            is_over = False
            while not is_over:
                try:
                    async for value in receiver:
                        got.append(value)  # noqa: PERF401 -- those before the wrong one stay
                    is_over = True
                except DecodeError:
                    got.append("bad")
        else:
            read = {
                "receive": one,
                "message": message,
                "many": receiver.receive_many,
                "few": lambda: receiver.receive_many(2),
                "nowait": nowait,
            }[way]
            got = await all_by(read)
        assert got == expected
        assert receiver.statistics() == {"received": len(sent), "queued": 0}


async def test_a_malformed_message_with_headers_ends_a_batch_and_raises_next() -> None:
    async with sending(bytes, int) as (sender, receiver):
        first, bad, last = packed(1, BAD, 2)
        sender.send_nowait(first)
        sender.send_nowait(bad, headers={"a": "b"})
        sender.send_nowait(last)
        await sender.flush()
        assert await receiver.receive_many() == [1]
        with pytest.raises(DecodeError):
            await receiver.receive_many()
        assert await receiver.receive_many() == [2]


async def test_a_malformed_message_ends_its_channels_without_a_warning() -> None:
    async with joined(Loose, Order) as (client, server):
        reply, answer = aqueduct.oneshot(int)
        await client.entrypoint.send(Loose(reply, "no number"))
        with pytest.raises(DecodeError, match=r"not of type Order: Expected `int`, got `str`"):
            await server.entrypoint.receive()
        gc.collect()
        with pytest.raises(CallError, match="invalid-request"):
            await answer.receive()
        assert server.is_open


async def test_an_error_in_a_types_own_code_affects_that_message_only() -> None:
    async with sending(bytes, Picky) as (sender, receiver):
        await arrive(sender, packed({"number": 1}, {"number": 13}, {"number": 2}))
        assert await receiver.receive() == Picky(1)
        with pytest.raises(DecodeError, match="thirteen"):
            await receiver.receive()
        assert await receiver.receive() == Picky(2)


class Picky(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise KeyError("thirteen")


# -- numbers and counters --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, int])
async def test_messages_with_and_without_headers_are_numbered_in_sending_order(
    kind: Any,
) -> None:
    async with sending(kind) as (sender, receiver):
        values = [b"%d" % n for n in range(9)] if kind is bytes else list(range(9))
        for number, value in enumerate(values):
            headers = {"n": str(number)} if number in {2, 3, 6} else None
            sender.send_nowait(value, headers=headers)
        await sender.flush()
        assert [await receiver.receive(), await receiver.receive()] == values[:2]
        for number in range(2, 9):
            message = await receiver.receive_message()
            assert (message.payload, message.number) == (values[number], number)
            expected = str(number) if number in {2, 3, 6} else None
            assert message.headers.text("n") == expected


async def test_a_malformed_message_uses_one_number() -> None:
    async with sending(bytes, int) as (sender, receiver):
        await arrive(sender, packed(10, BAD, 12, 13))
        assert (await receiver.receive_message()).number == 0
        with pytest.raises(DecodeError):
            await receiver.receive_message()
        assert await receiver.receive() == 12
        assert (await receiver.receive_message()).number == 3


async def test_statistics_count_received_and_queued_messages() -> None:
    async with sending(int) as (sender, receiver):
        assert receiver.statistics() == {"received": 0, "queued": 0}
        await arrive(sender, list(range(5)))
        assert await receiver.receive() == 0
        assert receiver.statistics() == {"received": 1, "queued": 4}
        assert await receiver.receive_many(2) == [1, 2]
        assert receiver.statistics() == {"received": 3, "queued": 2}
        receiver.close()
        assert receiver.statistics() == {"received": 3, "queued": 0}


async def test_a_batch_is_bounded_and_the_next_one_follows() -> None:
    async with sending(int) as (sender, receiver):
        await arrive(sender, list(range(3 * _BATCH)))
        assert await receiver.receive_many(2) == [0, 1]
        assert receiver.statistics()["queued"] <= _BATCH
        assert await receiver.receive_many(10_000) == list(range(2, 3 * _BATCH))
        with pytest.raises(WouldBlock):
            receiver.receive_nowait()


async def test_large_messages_are_taken_a_few_at_a_time() -> None:
    async with sending(bytes) as (sender, receiver):
        size = _BATCH_BYTES // 8
        in_window = FIRST_WINDOW // (size + 3)
        total = 6 * in_window

        async def send() -> None:
            for number in range(total):
                await sender.send(b"%03d" % number + bytes(size))
            sender.finish()

        task = asyncio.create_task(send())
        got: list[int] = []
        batches: list[int] = []
        port: Any = receiver._port
        waiting = 0

        def is_full() -> bool:
            return bool(port.core.held_bytes >= waiting)

        while len(got) < total:
            waiting = min(in_window, total - len(got)) * size
            await eventually(is_full, "a full window")
            got.append(int((await receiver.receive())[:3]))
            batches.append(1 + receiver.statistics()["queued"])
            got += [int((await receiver.receive())[:3]) for _ in range(batches[-1] - 1)]
        await task
        assert got == list(range(total))
        assert batches[0] == in_window, "the first batch has all that a window takes"
        assert max(batches[(_BATCH // 8).bit_length() :]) * size <= _BATCH_BYTES


# -- concurrent receivers --------------------------------------------------------------------------


async def test_no_task_sleeps_while_there_are_messages() -> None:
    async with sending(int) as (sender, receiver):
        waiting = [asyncio.create_task(receiver.receive()) for _ in range(3)]
        await asyncio.sleep(0)
        await arrive(sender, [1, 2, 3])
        async with asyncio.timeout(60):
            assert sorted(await asyncio.gather(*waiting)) == [1, 2, 3]


async def test_no_task_sleeps_behind_a_malformed_message() -> None:
    async with sending(bytes, int) as (sender, receiver):
        waiting = [asyncio.create_task(receiver.receive()) for _ in range(4)]
        await asyncio.sleep(0)
        await arrive(sender, packed(1, BAD, BAD, 2))
        async with asyncio.timeout(60):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in results].count(DecodeError) == 2
        assert {1, 2} < set(results)


async def test_the_end_wakes_all_tasks() -> None:
    async with sending(int) as (sender, receiver):
        waiting = [asyncio.create_task(receiver.receive()) for _ in range(3)]
        await asyncio.sleep(0)
        sender.finish()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in results] == [EndOfChannel] * 3


async def test_close_wakes_waiting_tasks_and_later_calls_raise() -> None:
    async with sending(int) as (_, receiver):
        waiting = asyncio.create_task(receiver.receive())
        await asyncio.sleep(0)
        receiver.close()
        receiver.close()
        with pytest.raises(ChannelClosed, match="this receiver was closed"):
            await waiting
        with pytest.raises(ChannelClosed):
            await receiver.receive_many()
        with pytest.raises(ChannelClosed):
            receiver.receive_message_nowait()


# -- ends ------------------------------------------------------------------------------------------


async def test_the_end_is_raised_after_the_last_message_and_again() -> None:
    async with receiving(int) as (sender, receiver):
        await arrive(sender, [1, 2])
        sender.finish()
        assert [value async for value in receiver] == [1, 2]
        for _ in range(2):
            with pytest.raises(EndOfChannel):
                await receiver.receive()
            with pytest.raises(EndOfChannel):
                await receiver.receive_many()
        assert [value async for value in receiver] == []


async def test_a_batch_returns_before_the_end_of_the_channel_is_raised() -> None:
    async with receiving(int) as (sender, receiver):
        await arrive(sender, [1, 2])
        sender.finish()
        assert await receiver.receive_many() == [1, 2]
        with pytest.raises(EndOfChannel):
            await receiver.receive_many()


async def test_the_error_of_a_cancelled_channel_names_the_peer() -> None:
    async with receiving(int) as (sender, receiver):
        sender.cancel()
        with pytest.raises(ChannelCancelled, match="the peer cancelled") as caught:
            await receiver.receive()
        assert caught.value.channel is not None


async def test_messages_of_a_lost_connection_are_received_before_its_error() -> None:
    async with joined(int) as (client, server):
        for number in range(_BATCH + 10):
            await client.entrypoint.send(number)
        await client.entrypoint.flush()
        assert await server.entrypoint.receive() == 0
        await client.close()
        await server.wait_closed()
        statistics = server.entrypoint.statistics()
        assert statistics == {"received": 1, "queued": _BATCH + 9}
        assert await server.entrypoint.receive_many(10_000) == list(range(1, _BATCH + 10))
        with pytest.raises(ConnectionLost, match="the peer closed the connection") as caught:
            await server.entrypoint.receive()
        assert caught.value.by_peer


# -- messages queued before a move -----------------------------------------------------------------


async def test_messages_queued_while_the_channel_was_local_come_first() -> None:
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = aqueduct.channel(int)
        for number in range(3):
            await sender.send(number, headers={"n": str(number)})
        await client.entrypoint.send(GiveSender(sender))
        theirs = (await server.entrypoint.receive()).half
        async with theirs:
            await theirs.send(3)
            await theirs.flush()
        assert receiver.statistics() == {"received": 0, "queued": 3}
        message = await receiver.receive_message()
        assert (message.payload, message.headers.text("n")) == (0, "0")
        assert await receiver.receive_many() == [1, 2, 3]
        with pytest.raises(EndOfChannel):
            await receiver.receive()
        assert receiver.statistics() == {"received": 4, "queued": 0}


async def test_receipts_of_messages_queued_before_report_delivery() -> None:
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = aqueduct.channel(int)
        taken = await sender.send(0, receipt=True)
        dropped = await sender.send(1, receipt=True)
        assert taken is not None
        assert dropped is not None
        await client.entrypoint.send(GiveSender(sender))
        (await server.entrypoint.receive()).half.finish()
        assert not taken.done()
        assert await receiver.receive() == 0
        assert await taken is DELIVERED
        assert not dropped.done()
        receiver.close()
        assert await dropped is LOST


# -- cancel ----------------------------------------------------------------------------------------


async def cancelled(receiver: Receiver[Any]) -> None:
    await eventually(receiver._port.was_cancelled, "the cancel arrives")


READS: dict[str, Callable[[Receiver[Any]], Awaitable[Any]]] = {
    "receive": Receiver.receive,
    "message": Receiver.receive_message,
    "many": Receiver.receive_many,
}


@pytest.mark.parametrize("way", READS)
async def test_nothing_is_received_after_the_cancel_has_arrived(way: str) -> None:
    """AQ-CANCEL-5: 255 messages had been taken with the first."""
    async with sending(int) as (sender, receiver):
        await arrive(sender, list(range(1_000)))
        assert await receiver.receive() == 0
        assert receiver.statistics()["queued"] > 200
        sender.cancel()
        await cancelled(receiver)
        with pytest.raises(ChannelCancelled):
            await READS[way](receiver)
        with pytest.raises(ChannelCancelled):
            receiver.receive_nowait()
        assert receiver.statistics() == {"received": 1, "queued": 0}


async def test_a_loop_over_a_receiver_stops_at_the_cancel() -> None:
    """AQ-CANCEL-5: also between two messages that were decoded together."""
    async with sending(int) as (sender, receiver):
        await arrive(sender, list(range(1_000)))
        got = []

        async def read() -> None:
            async for number in receiver:
                got.append(number)
                if number == 9:
                    sender.cancel()
                    await cancelled(receiver)

        with pytest.raises(ChannelCancelled):
            await read()
        assert got == list(range(10))


async def test_halves_in_messages_that_a_cancel_discards_are_ended() -> None:
    """AQ-CLOSE-4 and AQ-CANCEL-5; their credit is returned, too."""
    async with joined(GiveReceiver[GiveSender[int]]) as (client, server):
        sender, receiver = aqueduct.channel(GiveSender[int])
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        answers = []
        for _ in range(3):
            reply, answer = aqueduct.oneshot(int)
            sender.send_nowait(GiveSender(reply))
            answers.append(answer)
        await sender.flush()
        kept = (await theirs.receive()).half
        sender.cancel()
        await cancelled(theirs)
        for answer in answers[1:]:
            with pytest.raises(ChannelCancelled):
                await asyncio.wait_for(answer.receive(), SECONDS)
        await kept.send(7)  # this one had been received
        assert await answers[0].receive() == 7
        await eventually(lambda: server.statistics()["channels"] == 1, "all channels end")
        assert server.statistics()["held_bytes"] == 0
        gc.collect()


async def test_a_cancel_discards_what_was_queued_while_the_channel_was_local() -> None:
    """AQ-CANCEL-5."""
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = aqueduct.channel(int)
        receipt = await sender.send(1, receipt=True)
        await client.entrypoint.send(GiveSender(sender))
        (await server.entrypoint.receive()).half.cancel()
        await cancelled(receiver)
        assert receipt is not None
        assert await receipt is LOST
        with pytest.raises(ChannelCancelled):
            await receiver.receive()
