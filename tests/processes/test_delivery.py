"""Receipts, flush, back pressure, and cancelled tasks that lose no message."""

from __future__ import annotations

import asyncio
import itertools

import pytest

import aqueduct
from aqueduct import DELIVERED, LOST, Mode, ReceiverClosed, WouldBlock, channel, oneshot
from tests.processes.lab import (
    WINDOW,
    CloseAfter,
    Collect,
    Produce,
    Report,
    Request,
    Stall,
    numbered,
)
from tests.processes.peers import BOTH, bounded, connect, lab, send_until_error

SCHEMES = BOTH


@bounded
@pytest.mark.parametrize("mode", list(Mode))
async def test_a_receipt_reports_delivery(mode: Mode) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel(mode=mode)
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        receipts = [await sender.send(numbered(n, 50), receipt=True) for n in range(50)]
        outcomes = [await receipt for receipt in receipts if receipt is not None]
        assert len(outcomes) == 50
        if mode is not Mode.UNRELIABLE:
            assert outcomes == [DELIVERED] * 50
        sender.finish()
        result = await answer.receive()
        assert result.count == outcomes.count(DELIVERED)


@bounded
async def test_a_receipt_reports_the_loss_of_a_message_to_a_closed_receiver() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        await connection.entrypoint.send(CloseAfter(1, "close", receiver))
        receipts: list[aqueduct.Receipt | None] = []

        async def send_all() -> None:
            while True:
                receipts.append(await sender.send(bytes(1000), receipt=True))

        with pytest.raises(ReceiverClosed):
            await send_all()
        outcomes = [await receipt for receipt in receipts if receipt is not None]
        assert outcomes[0] is DELIVERED
        assert set(outcomes) <= {DELIVERED, LOST}


@bounded
async def test_flush_waits_until_everything_is_acknowledged() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        for number in range(500):
            await sender.send(numbered(number, 1000))
        await sender.flush()
        assert sender.statistics()["delivered"] == 500
        sender.finish()
        await sender.flush()
        assert (await answer.receive()).count == 500


@bounded
async def test_a_slow_reader_blocks_its_sender() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        go, stop = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Stall(receiver, stop, report))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send_until_error(sender, bytes(10_000)), 1)
        sent = 10_000 * sender.statistics()["sent"]
        assert WINDOW // 2 < sent <= WINDOW
        with pytest.raises(WouldBlock):
            sender.send_nowait(bytes(10_000))
        await go.send(b"")
        go.finish()
        for _ in range(50):
            await sender.send(bytes(10_000))
            sent += 10_000
        sender.finish()
        assert (await answer.receive()).total == sent


@bounded
async def test_a_slow_reader_blocks_the_sending_process() -> None:
    limits = aqueduct.Limits(channel_window=100_000)
    async with lab() as server, connect(server.address, Request, limits=limits) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(200, 10_000, "finish", sink, report))
        await asyncio.sleep(0.5)
        assert connection.statistics()["held_bytes"] <= 100_000
        received = [payload async for payload in source]
        assert received == [numbered(number, 10_000) for number in range(200)]
        assert await outcome.receive() == "finish"


@bounded
async def test_a_cancelled_send_has_sent_the_message_or_nothing() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        go, stop = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Stall(receiver, stop, report))
        done = 0
        cancelled = 0
        for number in range(60):
            task = asyncio.create_task(sender.send(numbered(number, 10_000)))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1
            else:
                done += 1
        assert cancelled
        assert done
        await go.send(b"")
        go.finish()
        sender.finish()
        result = await answer.receive()
        assert (result.count, result.ended, result.in_order) == (done, "EndOfChannel", True)


@bounded
async def test_a_cancelled_receive_loses_nothing() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(300, 100, "finish", sink, report))
        received: list[bytes] = []
        turn = 0
        while len(received) < 300:
            task = asyncio.create_task(source.receive())
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            turn += 1
            task.cancel()
            try:
                received.append(await task)
            except asyncio.CancelledError:
                await asyncio.sleep(0.0005)
        assert received == [numbered(number, 100) for number in range(300)]
        with pytest.raises(aqueduct.EndOfChannel):
            await source.receive()
        assert await outcome.receive() == "finish"


@bounded
async def test_many_tasks_may_share_a_receiver_and_a_sender() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))

        async def send_some(start: int) -> None:
            for number in range(start, start + 100):
                await sender.send(numbered(number, 1000))

        await asyncio.gather(*(send_some(start) for start in range(0, 1000, 100)))
        sender.finish()
        assert (await answer.receive()).count == 1000

        sink, source = channel()
        done, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(1000, 100, "finish", sink, done))

        async def receive_all() -> list[bytes]:
            return [payload async for payload in source]

        parts = await asyncio.gather(*(receive_all() for _ in range(5)))
        together = sorted(itertools.chain.from_iterable(parts))
        assert together == [numbered(number, 100) for number in range(1000)]
        assert await outcome.receive() == "finish"


@bounded
async def test_receive_many_receives_batches() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(5000, 100, "finish", sink, report))
        received: list[bytes] = []

        async def receive_all() -> None:
            while True:
                batch = await source.receive_many(100)
                assert 1 <= len(batch) <= 100
                received.extend(batch)

        with pytest.raises(aqueduct.EndOfChannel):
            await receive_all()
        assert received == [numbered(number, 100) for number in range(5000)]
        assert await outcome.receive() == "finish"
