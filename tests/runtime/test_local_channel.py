"""Channels between tasks of one process: the guarantees of a channel, without a network."""

from __future__ import annotations

import asyncio
import gc
import sys

import msgspec
import pytest

import aqueduct
from aqueduct import (
    DELIVERED,
    LOST,
    ChannelCancelled,
    ChannelClosed,
    EndOfChannel,
    ReceiverClosed,
    WouldBlock,
    channel,
    oneshot,
)


async def test_messages_are_received_in_order_before_the_end() -> None:
    tx, rx = channel(int)
    for number in range(3):
        await tx.send(number)
    tx.finish()
    assert [number async for number in rx] == [0, 1, 2]
    with pytest.raises(EndOfChannel):
        await rx.receive()
    with pytest.raises(ChannelClosed):
        await tx.send(4)


async def test_a_full_channel_makes_its_sender_wait() -> None:
    tx, rx = channel(int, capacity=2)
    tx.send_nowait(0)
    tx.send_nowait(1)
    with pytest.raises(WouldBlock):
        tx.send_nowait(2)
    sending = asyncio.create_task(tx.send(2))
    await asyncio.sleep(0)
    assert not sending.done()
    assert await rx.receive() == 0
    await sending
    tx.finish()
    assert [number async for number in rx] == [1, 2]


async def test_a_send_that_is_cancelled_while_it_waits_has_sent_nothing() -> None:
    tx, rx = channel(int, capacity=1)
    tx.send_nowait(0)
    sending = asyncio.create_task(tx.send(1))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    tx.finish()
    assert [number async for number in rx] == [0]


async def test_an_empty_channel_makes_its_receiver_wait() -> None:
    tx, rx = channel(int)
    with pytest.raises(WouldBlock):
        rx.receive_nowait()
    receiving = asyncio.create_task(rx.receive())
    await asyncio.sleep(0)
    assert not receiving.done()
    tx.send_nowait(7)
    assert await receiving == 7
    tx.finish()
    with pytest.raises(EndOfChannel):
        rx.receive_nowait()


async def test_cancel_discards_queued_messages() -> None:
    tx, rx = channel(int)
    receipt = await tx.send(1, receipt=True)
    assert receipt is not None
    tx.cancel()
    assert await receipt is LOST
    with pytest.raises(ChannelCancelled):
        await rx.receive()
    tx.finish()
    with pytest.raises(ChannelCancelled):
        await rx.receive()


async def test_a_sender_gets_receiver_closed_after_close() -> None:
    tx, rx = channel(int, capacity=1)
    receipt = await tx.send(1, receipt=True)
    assert receipt is not None
    waiting = asyncio.create_task(tx.send(2))
    await asyncio.sleep(0)
    rx.close()
    with pytest.raises(ReceiverClosed):
        await waiting
    assert await receipt is LOST
    with pytest.raises(ReceiverClosed):
        await tx.flush()
    with pytest.raises(ChannelClosed):
        await rx.receive()


async def test_a_receipt_and_a_flush_wait_until_the_message_is_taken() -> None:
    tx, rx = channel(int)
    receipt = await tx.send(1, receipt=True)
    assert receipt is not None
    flushing = asyncio.create_task(tx.flush())
    await asyncio.sleep(0)
    assert not receipt.done()
    assert not flushing.done()
    assert await rx.receive() == 1
    assert await receipt is DELIVERED
    await flushing
    assert tx.statistics() == {"sent": 1, "queued": 0}
    assert rx.statistics() == {"received": 1, "queued": 0}
    tx.finish()


async def test_a_oneshot_takes_one_message_and_is_finished() -> None:
    tx, rx = oneshot(str)
    await tx.send("only")
    with pytest.raises(ChannelClosed):
        await tx.send("again")
    assert await rx.receive() == "only"
    with pytest.raises(EndOfChannel):
        await rx.receive()


async def test_messages_have_numbers_and_headers_and_come_in_batches() -> None:
    tx, rx = channel(int)
    for number in range(5):
        await tx.send(number, headers={"n": str(number)})
    tx.finish()
    first = await rx.receive_message()
    assert (first.payload, first.number, first.headers.text("n")) == (0, 0, "0")
    assert first.attachments == ()
    assert rx.receive_message_nowait().payload == 1
    assert await rx.receive_many(2) == [2, 3]
    assert await rx.receive_many() == [4]
    with pytest.raises(EndOfChannel):
        await rx.receive_many()


async def test_leaving_a_block_finishes_and_an_error_cancels() -> None:
    tx, rx = channel(int)
    async with tx:
        await tx.send(1)
    assert [number async for number in rx] == [1]
    tx, rx = channel(int)
    with pytest.raises(ZeroDivisionError):
        async with tx:
            raise ZeroDivisionError
    with pytest.raises(ChannelCancelled):
        await rx.receive()
    tx, rx = channel(int)
    async with rx:
        pass
    with pytest.raises(ReceiverClosed):
        await tx.send(1)


async def test_a_garbage_collected_half_warns_and_ends_the_channel() -> None:
    tx, rx = channel(int)
    with pytest.warns(ResourceWarning, match="<Sender .* open> was not closed"):
        del tx
    with pytest.raises(ChannelCancelled):
        await rx.receive()
    tx, rx = channel(int)
    with pytest.warns(ResourceWarning, match="<Receiver .* open> was not closed"):
        del rx
    with pytest.raises(ReceiverClosed):
        await tx.send(1)


async def test_a_capacity_of_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one"):
        channel(int, capacity=0)


async def test_many_senders_and_receivers_share_a_channel() -> None:
    tx, rx = channel(int, capacity=3)

    async def send(start: int) -> None:
        for number in range(start, start + 100):
            await tx.send(number)

    async def receive() -> list[int]:
        return [number async for number in rx]

    receiving = [asyncio.create_task(receive()) for _ in range(3)]
    await asyncio.gather(*(send(start) for start in range(0, 500, 100)))
    tx.finish()
    got = [number for part in await asyncio.gather(*receiving) for number in part]
    assert sorted(got) == list(range(500))


async def test_headers_of_a_channel_are_seen_at_both_halves() -> None:
    tx, rx = aqueduct.channel(int, headers={"a": "b"})
    assert tx.headers.text("a") == rx.headers.text("a") == "b"
    tx.finish()
    rx.close()


async def test_flush_raises_if_a_channel_was_cancelled_with_queued_messages() -> None:
    tx, rx = channel(int)
    await tx.send(1)
    await tx.send(2)
    assert await rx.receive() == 1
    flushing = asyncio.create_task(tx.flush())
    await asyncio.sleep(0)
    tx.cancel()
    for waiting in (flushing, tx.flush()):
        with pytest.raises(ChannelClosed, match="cancelled before everything was taken"):
            await waiting
    tx, rx = channel(int)
    await tx.send(1)
    assert await rx.receive() == 1
    tx.cancel()
    await tx.flush()
    rx.close()


async def test_flush_raises_once_the_receiver_was_closed_also_with_an_empty_queue() -> None:
    tx, rx = channel(int)
    await tx.send(1)
    assert await rx.receive() == 1
    await tx.flush()
    rx.close()
    with pytest.raises(ReceiverClosed):
        await tx.flush()
    tx, rx = channel(int)
    await tx.send(1)
    tx.finish()
    assert await rx.receive() == 1
    rx.close()
    await tx.flush()  # it has received everything


async def test_a_sender_learns_that_the_receiver_was_closed() -> None:
    tx, rx = channel(int)
    waiting = [asyncio.create_task(tx.wait_closed()) for _ in range(2)]
    await tx.send(1)
    assert await rx.receive() == 1
    await asyncio.sleep(0)
    before = tx.is_closed
    assert not before
    assert not any(task.done() for task in waiting)
    rx.close()
    assert tx.is_closed
    await asyncio.gather(*waiting)
    await tx.wait_closed()
    tx.cancel()


async def test_a_finished_local_sender_is_closed_once_everything_was_taken() -> None:
    tx, rx = channel(int)
    await tx.send(1)
    tx.finish()
    waiting = asyncio.create_task(tx.wait_closed())
    await asyncio.sleep(0)
    before = tx.is_closed
    assert not before
    assert not waiting.done()
    assert await rx.receive() == 1
    await waiting
    assert tx.is_closed
    one, answer = oneshot(int)
    one.cancel()
    await one.wait_closed()
    answer.close()


async def test_a_wait_that_began_before_the_finish_lasts_until_everything_was_taken() -> None:
    tx, rx = channel(int)
    await tx.send(1)
    await tx.send(2)
    waiting = [asyncio.create_task(tx.wait_closed()) for _ in range(2)]
    await asyncio.sleep(0)
    tx.finish()
    for expected in (1, 2):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        assert await rx.receive() == expected
    await asyncio.gather(*waiting)
    assert tx.is_closed


# -- channels in channels -------------------------------------------------------------------------


class Watch(msgspec.Struct):
    events: list[aqueduct.Sender[str]]
    function: object = print
    """Which no codec can encode, as a local channel does not have to."""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", ["close", "cancel", "drop"])
async def test_halves_in_messages_that_are_not_received_end_with_the_channel(how: str) -> None:
    """AQ-CLOSE-4: so that the owner of the other half does not wait for ever."""
    sender, receiver = channel(Watch)
    theirs, events = channel(str)
    await sender.send(Watch([theirs]))
    waiting = asyncio.create_task(events.receive())
    await asyncio.sleep(0)
    if how == "close":
        receiver.close()
    elif how == "cancel":
        sender.cancel()
    else:
        del receiver
    with pytest.raises(aqueduct.ChannelCancelled):
        async with asyncio.timeout(60):
            await waiting


async def test_attached_halves_that_are_not_received_end_with_the_channel() -> None:
    """AQ-CLOSE-4."""
    sender, receiver = channel(bytes)
    events, theirs = channel(str)
    await sender.send(b"watch", attach=[theirs])
    receiver.close()
    async with asyncio.timeout(60):
        await events.wait_closed()
    events.finish()


def chain_of_receivers(length: int) -> aqueduct.Receiver[object]:
    """Return a receiver of a receiver of a receiver…, each in a finished channel."""
    sender, outermost = channel(object)
    for _ in range(length):
        next_sender, receiver = channel(object)
        sender.send_nowait(receiver)
        sender.finish()
        sender = next_sender
    sender.finish()
    return outermost


def chain_of_senders(length: int) -> tuple[aqueduct.Receiver[object], list[object]]:
    """Return a receiver of a sender, whose channel holds a sender, whose channel holds one…"""
    sender, outermost = channel(object)
    receivers: list[object] = []
    for _ in range(length):
        receivers.append(outermost)
        next_sender, outermost = channel(object)
        next_sender.send_nowait(sender)
        sender = next_sender
    sender.finish()
    return outermost, receivers


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("how", "length"),
    [
        ("close", 1_500),
        ("drop", 1_500),
        ("collect", 1_500),
        ("drop senders", 1_500),
        ("receive", 1_500),
        ("drop", 100_000),
    ],
)
def test_a_long_chain_of_channels_in_channels_does_not_exhaust_the_stack(
    how: str, length: int
) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(120 + stack_depth())
    try:
        if how == "drop senders":
            outermost, receivers = chain_of_senders(length)
            outermost.close()
            receivers.clear()
        elif how == "receive":
            last = chain_of_receivers(length)
            for _ in range(length):
                received = last.receive_nowait()
                assert isinstance(received, aqueduct.Receiver)
                last = received
            with pytest.raises(EndOfChannel):
                last.receive_nowait()
        else:
            last = chain_of_receivers(length)
            if how == "close":
                last.close()
            elif how == "collect":
                cycle: list[object] = [last]
                cycle.append(cycle)
                del cycle
            del last
            gc.collect()
    finally:
        sys.setrecursionlimit(limit)


def stack_depth() -> int:
    depth, frame = 0, sys._getframe()
    while (caller := frame.f_back) is not None:
        depth, frame = depth + 1, caller
    return depth
