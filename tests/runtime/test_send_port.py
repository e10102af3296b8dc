"""Sending to a peer: back pressure, receipts, flush, and the ends of a channel."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import (
    DELIVERED,
    LOST,
    ChannelClosed,
    ChannelLostInTransit,
    ChannelMoved,
    ConnectionLost,
    EncodeError,
    EndOfChannel,
    Limits,
    MessageTooLarge,
    Mode,
    Receiver,
    ReceiverClosed,
    Sender,
    WouldBlock,
)
from aqueduct.runtime import send_port
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.runtime.turns import TURN_BYTES
from tests.api.joined import GiveReceiver, GiveSender, joined, sending
from tests.processes.peers import eventually

NARROW = Limits(channel_window=10_000)
PIECE = bytes(1_000)
LIMIT = 64
"""The limit of unacknowledged unordered messages in these tests."""
COUNT = 10 * LIMIT


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


def fill(sender: Sender[bytes]) -> int:
    """Send until there is no room; return how many were sent."""
    for count in range(1_000):
        try:
            sender.send_nowait(PIECE)
        except WouldBlock:
            return count
    raise AssertionError("sending is not bounded")


def port(sender: Sender[Any]) -> NetworkSendPort:
    assert isinstance(sender._port, NetworkSendPort)
    return sender._port


async def to_the_end(receiver: Receiver[Any]) -> None:
    async for _ in receiver:
        pass


async def has_ended(sender: Sender[Any]) -> None:
    await eventually(lambda: port(sender).ended is not None, "the sender gets the end")


# -- room ------------------------------------------------------------------------------------------


async def test_a_full_window_blocks_until_the_receiver_takes_messages() -> None:
    async with sending(limits=NARROW) as (sender, receiver):
        count = fill(sender)
        assert 1 <= count <= 10
        waiting = asyncio.create_task(sender.send(b"last"))
        await sender.flush()  # all have arrived, and none was taken
        await asyncio.sleep(0.05)
        assert not waiting.done()
        with pytest.raises(WouldBlock):
            sender.send_nowait(PIECE)
        assert sender.statistics()["sent"] == count
        assert [await receiver.receive() for _ in range(count)] == [PIECE] * count
        await waiting
        assert await receiver.receive() == b"last"


async def test_credit_wakes_every_task_that_waits_for_it() -> None:
    async with sending(limits=NARROW) as (sender, receiver):
        count = fill(sender)
        waiting = [asyncio.create_task(sender.send(b"%d" % n)) for n in range(5)]
        await asyncio.sleep(0)
        assert [await receiver.receive() for _ in range(count)] == [PIECE] * count
        assert sorted([await receiver.receive() for _ in range(5)]) == [b"%d" % n for n in range(5)]
        await asyncio.gather(*waiting)


async def test_a_send_that_is_cancelled_while_it_waits_has_sent_nothing() -> None:
    async with sending(limits=NARROW) as (sender, receiver):
        count = fill(sender)
        waiting = [asyncio.create_task(sender.send(one)) for one in (b"never", b"last")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert [await receiver.receive() for _ in range(count)] == [PIECE] * count
        await waiting[1]
        sender.finish()
        assert [payload async for payload in receiver] == [b"last"]
        assert waiting[0].cancelled()


@pytest.mark.parametrize("end", ["finish", "cancel"])
async def test_an_end_wakes_a_send_that_waits(end: str) -> None:
    async with sending(limits=NARROW) as (sender, _):
        fill(sender)
        waiting = asyncio.create_task(sender.send(b"late"))
        await asyncio.sleep(0)
        getattr(sender, end)()
        async with asyncio.timeout(60):
            with pytest.raises(ChannelClosed):
                await waiting


async def test_a_task_that_sends_much_yields_to_the_loop() -> None:
    async with sending() as (sender, receiver):
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        pieces = 3 * TURN_BYTES // len(PIECE)
        for _ in range(pieces):
            await sender.send(PIECE)
        counting.cancel()
        assert turns >= 2
        assert len(await receiver.receive_many(pieces)) > 0


@pytest.mark.parametrize("mode", [Mode.UNORDERED, Mode.UNRELIABLE])
async def test_a_message_that_takes_long_to_send_counts_for_more_of_a_turn(mode: Mode) -> None:
    async with joined(GiveReceiver[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(mode=mode)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        await sender.send(b"first")
        await asyncio.sleep(0)
        sent = 0
        while not port(sender).is_pressed():
            sender.send_nowait(b"x")
            sent += 1
        assert sent <= {Mode.UNORDERED: 256, Mode.UNRELIABLE: 2_048}[mode]
        theirs.close()


class Several(msgspec.Struct):
    halves: list[Receiver[bytes]]


@pytest.mark.parametrize("how", ["cancelled", "nowait"])
async def test_a_cancelled_send_does_not_block_other_channels(how: str) -> None:
    limits = Limits(connection_window=1_000_000, channel_window=1_000_000)
    async with joined(Several, limits=limits) as (client, server):
        channels = [aqueduct.channel() for _ in range(4)]
        full, taken, gone, last = (one.sender for one in channels)
        await client.entrypoint.send(Several([one.receiver for one in channels]))
        theirs = (await server.entrypoint.receive()).halves
        await full.send(bytes(600_000))
        await taken.send(bytes(300_000))
        if how == "nowait":
            with pytest.raises(WouldBlock):
                gone.send_nowait(bytes(500_000))
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gone.send(bytes(500_000)), 0.05)
        assert not client._driver.core._context.blocked.sizes
        waiting = asyncio.create_task(last.send(bytes(200_000)))
        await theirs[1].receive()
        await asyncio.wait_for(waiting, 60)
        for one in channels:
            one.sender.cancel()
        for half in theirs:
            half.close()


async def test_unread_channels_do_not_block_other_channels() -> None:
    """AQ-FLOW-10."""
    limits = Limits(connection_window=2 * 1024 * 1024, channel_window=128 * 1024)
    async with joined(Several, limits=limits) as (client, server):
        channels = [aqueduct.channel() for _ in range(21)]
        *unread, other = (one.sender for one in channels)
        await client.entrypoint.send(Several([one.receiver for one in channels]))
        theirs = (await server.entrypoint.receive()).halves
        for size in (32 * 1024, 64, 1):
            for sender in unread:
                with contextlib.suppress(WouldBlock):
                    while True:
                        sender.send_nowait(bytes(size))
        for payload in (b"answer", bytes(16 * 1024)):
            await asyncio.wait_for(other.send(payload), 10)
            assert await asyncio.wait_for(theirs[-1].receive(), 10) == payload
        for one in channels:
            one.sender.cancel()
        for half in theirs:
            half.close()


async def test_a_message_that_fits_does_not_starve_a_larger_one() -> None:
    async with sending(limits=NARROW) as (sender, receiver):
        await sender.send(bytes(6_000))
        large = asyncio.create_task(sender.send(bytes(5_000)))
        await asyncio.sleep(0)
        await sender.send(bytes(1_000))
        assert [len(await receiver.receive()) for _ in range(2)] == [6_000, 1_000]
        await asyncio.wait_for(large, 60)


# -- fates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_receipt_is_for_its_own_message(mode: Mode) -> None:
    async with sending(int, mode=mode) as (sender, receiver):
        await sender.send(0)
        first = await sender.send(1, receipt=True)
        second = await sender.send(2, receipt=True, headers={"a": "b"})
        assert first is not None
        assert second is not None
        assert [await first, await second] == [DELIVERED, DELIVERED]
        assert sorted([await receiver.receive() for _ in range(3)]) == [0, 1, 2]
        assert port(sender).receipts == {}


async def test_without_a_receipt_there_is_none() -> None:
    async with sending(int) as (sender, _):
        assert await sender.send(0) is None
        assert await sender.send(1, headers={"a": "b"}) is None


async def test_messages_undelivered_at_close_are_lost_and_flush_raises() -> None:
    async with sending() as (sender, receiver):
        receipt = await sender.send(b"under way", receipt=True)
        flushing = asyncio.create_task(sender.flush())
        receiver.close()
        assert receipt is not None
        assert await receipt is LOST
        with pytest.raises(ReceiverClosed, match="the peer stopped receiving"):
            await flushing
        assert sender.statistics()["undelivered"] == 1


async def test_the_end_of_the_connection_settles_receipts() -> None:
    late = aqueduct.Delivery(ack_delay=1.0)  # the client has closed by then
    async with joined(delivery=late) as (client, _):
        receipt = await client.entrypoint.send(b"x", receipt=True)
        flushing = asyncio.create_task(client.entrypoint.flush())
        await asyncio.sleep(0)
        await client.close()
        assert receipt is not None
        assert await receipt is LOST
        with pytest.raises(ConnectionLost, match="this side closed the connection"):
            await flushing
        with pytest.raises(ConnectionLost) as caught:
            await client.entrypoint.send(b"y")
        assert caught.value.payload == b"y"
        assert not caught.value.by_peer


async def test_flush_waits_for_all_acks_and_statistics_count_them() -> None:
    async with sending(int) as (sender, receiver):
        await sender.flush()
        for number in range(20):
            await sender.send(number)
        assert sender.statistics()["delivered"] < 20
        await sender.flush()
        assert sender.statistics() == {
            "sent": 20,
            "delivered": 20,
            "undelivered": 0,
            "queued": 0,
        }
        assert await receiver.receive_many() == list(range(20))


@pytest.mark.parametrize("mode", list(Mode))
async def test_flush_raises_if_a_cancelled_channel_did_not_deliver_everything(mode: Mode) -> None:
    async with sending(mode=mode) as (sender, _):
        for _ in range(3):
            await sender.send(bytes(300_000))
        await sender.send(b"small")
        flushing = asyncio.create_task(sender.flush())
        await asyncio.sleep(0)
        sender.cancel()
        with pytest.raises(ChannelClosed, match="cancelled before everything had arrived"):
            await asyncio.wait_for(flushing, 60)
        await has_ended(sender)
        with pytest.raises(ChannelClosed, match="cancelled before everything had arrived"):
            await sender.flush()


@pytest.mark.parametrize("mode", list(Mode))
async def test_flush_succeeds_if_everything_arrived_before_the_cancel(mode: Mode) -> None:
    async with sending(mode=mode) as (sender, _):
        await sender.send(b"x")
        await sender.flush()
        sender.cancel()
        await sender.flush()
        await has_ended(sender)
        await sender.flush()


async def test_flush_raises_if_a_channel_was_cancelled_before_it_was_sent_away() -> None:
    async with joined(GiveReceiver[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        await sender.send(b"x")
        sender.cancel()
        await client.entrypoint.send(GiveReceiver(receiver))
        with pytest.raises(ChannelClosed, match="cancelled before everything"):
            await sender.flush()
        (await server.entrypoint.receive()).half.close()


async def test_flush_raises_once_the_receiver_has_ended_also_with_nothing_outstanding() -> None:
    async with sending() as (sender, receiver):
        receipt = await sender.send(b"x", receipt=True)
        assert receipt is not None
        assert await receipt is DELIVERED
        assert await receiver.receive() == b"x"
        await sender.flush()
        receiver.close()
        await has_ended(sender)
        with pytest.raises(ReceiverClosed, match="the peer stopped receiving"):
            await sender.flush()


async def test_flush_succeeds_if_a_finished_channel_was_received_whole() -> None:
    async with sending() as (sender, receiver):
        await sender.send(b"x")
        assert await receiver.receive() == b"x"
        sender.finish()
        await has_ended(sender)
        receiver.close()
        await sender.flush()


# -- the end of the receiver -----------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1:0", "memory://"])
async def test_a_server_learns_within_a_round_trip_that_its_caller_gave_up(address: str) -> None:
    """AQ-CLOSE-6: what the client sends next finds the server informed."""
    async with joined(GiveSender[bytes], address=address) as (client, server):
        reply, answer = aqueduct.oneshot(bytes)
        await client.entrypoint.send(GiveSender(reply))
        theirs = (await server.entrypoint.receive()).half
        waiting = asyncio.create_task(theirs.wait_closed())
        await asyncio.sleep(0)
        before = theirs.is_closed
        assert not before
        assert not waiting.done()
        answer.close()
        marker, other = aqueduct.channel(bytes)
        await client.entrypoint.send(GiveSender(marker))
        (await server.entrypoint.receive()).half.cancel()
        assert theirs.is_closed
        await waiting
        await theirs.wait_closed()
        with pytest.raises(ReceiverClosed):
            await theirs.send(b"late")
        other.close()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "memory://"])
async def test_the_end_of_the_connection_closes_both_sides_of_it_for_senders(address: str) -> None:
    async with joined(GiveSender[bytes], address=address) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        await client.entrypoint.send(GiveSender(sender))
        theirs = (await server.entrypoint.receive()).half
        waiting = [
            asyncio.create_task(each.wait_closed()) for each in (theirs, client.entrypoint, theirs)
        ]
        await asyncio.sleep(0)
        await client.close()
        await asyncio.gather(*waiting)
        assert theirs.is_closed
        assert client.entrypoint.is_closed
        with pytest.raises(ConnectionLost):
            await theirs.flush()
        receiver.close()


async def test_a_sender_whose_channel_was_lost_in_transit_is_closed() -> None:
    async with joined(GiveReceiver[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        await client.entrypoint.send(GiveReceiver(receiver))
        waiting = asyncio.create_task(sender.wait_closed())
        await asyncio.sleep(0)
        before = sender.is_closed
        assert not before
        server.entrypoint.close()  # it drops the message, or never gets it: then it is nacked
        await waiting
        assert sender.is_closed
        with pytest.raises((ChannelLostInTransit, ReceiverClosed)):
            await sender.flush()


async def test_a_finished_sender_is_closed_once_everything_was_received() -> None:
    async with sending() as (sender, receiver):
        await sender.send(b"x")
        sender.finish()
        await sender.wait_closed()
        assert sender.is_closed
        await sender.flush()
        assert await receiver.receive() == b"x"


async def test_a_wait_that_began_on_a_local_channel_goes_on_when_it_is_sent_away() -> None:
    async with joined(GiveReceiver[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        waiting = asyncio.create_task(sender.wait_closed())
        await asyncio.sleep(0)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        assert not waiting.done()
        theirs.close()
        await waiting
        with pytest.raises(ReceiverClosed):
            await sender.flush()


async def test_a_sender_that_was_sent_away_cannot_be_asked_for_its_receiver() -> None:
    async with joined(GiveSender[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        waiting = asyncio.create_task(sender.wait_closed())
        await asyncio.sleep(0)
        await client.entrypoint.send(GiveSender(sender))
        with pytest.raises(ChannelMoved):
            await waiting
        with pytest.raises(ChannelMoved):
            _ = sender.is_closed
        (await server.entrypoint.receive()).half.finish()
        receiver.close()


async def test_a_send_to_a_closed_receiver_raises_with_the_payload() -> None:
    async with sending() as (sender, receiver):
        receiver.close()
        await has_ended(sender)
        with pytest.raises(ReceiverClosed, match="the peer stopped receiving") as caught:
            await sender.send(b"mine")
        assert caught.value.payload == b"mine"
        assert caught.value.channel == port(sender).channel
        with pytest.raises(ReceiverClosed) as caught:
            sender.send_nowait(b"mine, too")
        assert caught.value.payload == b"mine, too"
        sender.finish()
        sender.cancel()


async def test_a_close_wakes_a_send_that_waits() -> None:
    async with sending(limits=NARROW) as (sender, receiver):
        fill(sender)
        waiting = asyncio.create_task(sender.send(b"late"))
        await asyncio.sleep(0)
        receiver.close()
        with pytest.raises(ReceiverClosed) as caught:
            await waiting
        assert caught.value.payload == b"late"


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["finish", "cancel"])
async def test_ending_a_sender_again_is_a_no_op(first: str) -> None:
    async with sending() as (sender, receiver):
        await sender.send(b"x")
        await sender.flush()
        for end in (first, "finish", "cancel", "finish", "cancel"):
            getattr(sender, end)()
        with pytest.raises(ChannelClosed) as caught:
            await sender.send(b"y")
        assert caught.value.payload == b"y"
        with pytest.raises(ChannelClosed):
            sender.send_nowait(b"y")
        if first == "finish":
            assert [payload async for payload in receiver] == [b"x"]
        else:
            with pytest.raises(aqueduct.ChannelCancelled):
                await to_the_end(receiver)


async def test_a_oneshot_sends_once() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = aqueduct.oneshot(int)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        await sender.send(1)
        with pytest.raises(ChannelClosed):
            await sender.send(2)
        await sender.flush()
        assert await theirs.receive() == 1
        with pytest.raises(EndOfChannel):
            await theirs.receive()


async def test_a_received_oneshot_sends_once() -> None:
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = aqueduct.oneshot(int)
        await client.entrypoint.send(GiveSender(sender))
        theirs = (await server.entrypoint.receive()).half
        theirs.send_nowait(1)
        with pytest.raises(ChannelClosed):
            theirs.send_nowait(2)
        assert [value async for value in receiver] == [1]


# -- messages queued before a move -----------------------------------------------------------------


async def test_queued_messages_are_sent_first_and_in_order() -> None:
    async with joined(GiveReceiver[bytes], limits=NARROW) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        for number in range(30):
            await sender.send(b"%02d" % number + PIECE, headers={"n": str(number)})
        await client.entrypoint.send(GiveReceiver(receiver))
        statistics = sender.statistics()
        assert statistics["queued"] > 0
        assert statistics["sent"] + statistics["queued"] == 30
        with pytest.raises(WouldBlock, match="go first"):
            sender.send_nowait(b"30")
        late = asyncio.create_task(sender.send(b"30"))
        theirs = (await server.entrypoint.receive()).half
        for number in range(30):
            message = await theirs.receive_message()
            assert (message.payload[:2], message.number) == (b"%02d" % number, number)
            assert message.headers.text("n") == str(number)
        assert await theirs.receive() == b"30"
        await late
        sender.finish()
        theirs.close()


async def test_a_finished_sender_ends_after_its_queued_messages() -> None:
    async with joined(GiveReceiver[bytes], limits=NARROW) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        for _ in range(30):
            await sender.send(PIECE)
        sender.finish()
        await client.entrypoint.send(GiveReceiver(receiver))
        with pytest.raises(ChannelClosed):
            sender.send_nowait(b"more")
        theirs = (await server.entrypoint.receive()).half
        assert [payload async for payload in theirs] == [PIECE] * 30


async def test_a_flush_that_began_before_the_channel_was_sent_away_waits_for_the_peer() -> None:
    async with joined(GiveReceiver[bytes], limits=NARROW) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        for _ in range(30):
            await sender.send(PIECE)
        flushing = asyncio.create_task(sender.flush())
        await asyncio.sleep(0)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        assert not flushing.done()
        for _ in range(30):
            await theirs.receive()
        await flushing
        assert sender.statistics()["delivered"] == 30
        sender.finish()
        theirs.close()


async def test_receipts_of_queued_messages_are_settled_by_the_peer() -> None:
    async with joined(GiveReceiver[bytes], limits=NARROW) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        receipts = [await sender.send(PIECE, receipt=True) for _ in range(30)]
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        assert receipts[0] is not None
        assert await receipts[0] is DELIVERED
        theirs.close()
        outcomes = [await receipt for receipt in receipts if receipt is not None]
        assert outcomes[-1] is LOST
        with pytest.raises(ReceiverClosed):
            await sender.flush()


async def ask(sender: Sender[Any], what: str) -> None:
    """Use a sender in one of the ways that raise its error."""
    if what == "finish":
        sender.finish()
    elif what == "flush":
        await sender.flush()
    elif what == "send":
        await sender.send("more")
    else:
        sender.send_nowait("more")


@pytest.mark.parametrize("asked", ["send", "send_nowait", "flush", "finish"])
@pytest.mark.parametrize("finished", [False, True])
async def test_a_queued_message_that_cannot_be_sent_cancels_its_channel(
    asked: str, finished: bool
) -> None:
    async with joined(GiveReceiver[Any]) as (client, server):
        sender: Sender[Any]
        sender, receiver = aqueduct.channel(Any)
        await sender.send("fine")
        lost = [await sender.send(one, receipt=True) for one in (object(), "behind it")]
        if finished:
            sender.finish()
        await client.entrypoint.send(GiveReceiver(receiver))
        assert [await receipt for receipt in lost if receipt is not None] == [LOST, LOST]
        with pytest.raises(EncodeError, match="cannot encode object"):
            await ask(sender, asked)
        sender.finish()  # the error was raised before
        with pytest.raises(EncodeError, match="cannot encode object"):
            await sender.flush()
        theirs = (await server.entrypoint.receive()).half
        with pytest.raises(aqueduct.ChannelCancelled):
            await to_the_end(theirs)
        assert theirs.statistics()["received"] <= 1


async def test_a_queued_message_that_is_too_large_leaves_no_gap() -> None:
    async with joined(GiveReceiver[bytes], limits=Limits(max_message=10_000)) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        for size in (1, 10_001, 3):
            await sender.send(bytes(size))
        await client.entrypoint.send(GiveReceiver(receiver))
        with pytest.raises(MessageTooLarge, match="at most 10000"):
            async with sender:
                pass
        theirs = (await server.entrypoint.receive()).half
        with pytest.raises(aqueduct.ChannelCancelled):
            await to_the_end(theirs)


async def test_cancel_discards_messages_queued_before_the_move() -> None:
    async with joined(GiveReceiver[bytes], limits=NARROW) as (client, server):
        sender, receiver = aqueduct.channel(bytes)
        receipts = [await sender.send(PIECE, receipt=True) for _ in range(30)]
        await client.entrypoint.send(GiveReceiver(receiver))
        sender.cancel()
        assert receipts[-1] is not None
        assert await receipts[-1] is LOST
        theirs = (await server.entrypoint.receive()).half
        with pytest.raises(aqueduct.ChannelCancelled):
            await to_the_end(theirs)


@pytest.fixture
def few_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_port, "MAX_UNSETTLED", LIMIT)


async def test_an_unordered_sender_waits_for_acks(few_unsettled: None) -> None:
    async with joined(GiveReceiver[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(mode=Mode.UNORDERED)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        most = 0

        async def send_all() -> None:
            nonlocal most
            for number in range(COUNT):
                await sender.send(b"%d" % number)
                statistics = sender.statistics()
                most = max(most, statistics["sent"] - statistics["delivered"])
            sender.finish()

        sending_all = asyncio.create_task(send_all())
        received = {message async for message in theirs}
        await sending_all
        assert received == {b"%d" % number for number in range(COUNT)}
        assert most <= LIMIT


async def test_send_nowait_of_an_unordered_sender_without_acks_raises_would_block(
    few_unsettled: None,
) -> None:
    async with joined(GiveReceiver[bytes]) as (client, server):
        sender, receiver = aqueduct.channel(mode=Mode.UNORDERED)
        await client.entrypoint.send(GiveReceiver(receiver))
        for _ in range(LIMIT):
            sender.send_nowait(b"x")
        with pytest.raises(WouldBlock, match="have not been acknowledged"):
            sender.send_nowait(b"one too many")
        await sender.flush()
        sender.send_nowait(b"there is room again")
        sender.cancel()
        (await server.entrypoint.receive()).half.close()


async def test_busy_connections_share_the_bytes_of_a_turn() -> None:
    async with joined() as (client, _):
        for busy, share in [(0, 1), (1, 2), (2, 3), (50, 4), (1_000, 8)]:
            client._driver.handle_flushed(busy)
            assert TURN_BYTES - client._driver.unflushed == TURN_BYTES // share


# -- contents --------------------------------------------------------------------------------------


async def test_headers_of_a_message_arrive_in_order() -> None:
    async with sending() as (sender, receiver):
        await sender.send(b"x", headers=[("a", "1"), (b"b", b"\xff"), ("a", "2")])
        await sender.send(b"y")
        message = await receiver.receive_message()
        assert list(message.headers) == [(b"a", b"1"), (b"b", b"\xff"), (b"a", b"2")]
        assert list((await receiver.receive_message()).headers) == []


async def test_a_channel_of_bytes_accepts_buffers_and_rejects_other_types() -> None:
    async with sending() as (sender, receiver):
        changing = bytearray(b"abc")
        await sender.send(changing)
        await sender.send(memoryview(b"def")[::2])
        changing[:] = b"xyz"
        assert [await receiver.receive() for _ in range(2)] == [b"abc", b"df"]
        with pytest.raises(EncodeError, match=r"cannot send str; give it a type"):
            await sender.send("text")
        await sender.send(b"the channel lives on")
        assert sender.statistics()["sent"] == 3


async def test_a_message_over_the_peers_limits_is_rejected_and_the_channel_stays_open() -> None:
    async with sending(limits=Limits(max_message=10_000, max_headers=100)) as (sender, receiver):
        with pytest.raises(MessageTooLarge, match="at most 10000"):
            await sender.send(bytes(10_001))
        with pytest.raises(MessageTooLarge, match="at most 100 bytes of headers"):
            await sender.send(b"x", headers={"long": "h" * 100})
        await sender.send(b"small")
        assert await receiver.receive() == b"small"
        assert sender.statistics()["sent"] == 1
