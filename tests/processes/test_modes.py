"""Every mode between two processes, in both directions."""

from __future__ import annotations

import hashlib

import pytest

from aqueduct import Mode, channel, oneshot
from tests.processes.lab import Collect, Produce, Report, Request, numbered
from tests.processes.peers import BOTH, bounded, connect, lab

SCHEMES = BOTH

COUNT = 2_000


async def upload(mode: Mode, payloads: list[bytes]) -> Report:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel(mode=mode)
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        async with sender:
            for payload in payloads:
                await sender.send(payload)
        await sender.flush()
        result = await answer.receive()
        assert isinstance(result, Report)
        return result


@bounded
async def test_ordered_messages_arrive_in_order() -> None:
    payloads = [numbered(number, 100) for number in range(COUNT)]
    report = await upload(Mode.ORDERED, payloads)
    assert report == Report(
        COUNT, 100 * COUNT, hashlib.sha256(b"".join(payloads)).hexdigest(), "EndOfChannel", True
    )


@bounded
async def test_unordered_messages_all_arrive() -> None:
    report = await upload(Mode.UNORDERED, [numbered(number, 100) for number in range(COUNT)])
    assert (report.count, report.total, report.ended) == (COUNT, 100 * COUNT, "EndOfChannel")


@bounded
async def test_most_unreliable_messages_arrive_on_a_network_without_loss() -> None:
    report = await upload(Mode.UNRELIABLE, [numbered(number, 100) for number in range(COUNT)])
    assert report.ended == "EndOfChannel"
    assert 0 < report.count <= COUNT


@bounded
@pytest.mark.parametrize("mode", list(Mode))
async def test_messages_may_be_empty(mode: Mode) -> None:
    report = await upload(mode, [b""] * 100)
    assert report.ended == "EndOfChannel"
    assert report.count == 100 or mode is Mode.UNRELIABLE


@bounded
@pytest.mark.parametrize("mode", list(Mode))
async def test_a_message_may_be_larger_than_the_window(mode: Mode) -> None:
    payloads = [bytes([number]) * 3_000_000 for number in range(3)]
    report = await upload(mode, payloads)
    assert (report.count, report.total, report.ended) == (3, 9_000_000, "EndOfChannel")


@bounded
@pytest.mark.parametrize(("count", "size"), [(COUNT, 100), (50, 65_536), (3, 3_000_000), (0, 0)])
async def test_messages_of_the_server_arrive(count: int, size: int) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(count, size, "finish", sink, report))
        received = [payload async for payload in source]
        assert received == [numbered(number, size) for number in range(count)]
        assert await outcome.receive() == "finish"


@bounded
async def test_messages_queued_while_the_channel_was_local_arrive() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        for number in range(10):
            await sender.send(numbered(number, 50))
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        async with sender:
            for number in range(10, 20):
                await sender.send(numbered(number, 50))
        result = await answer.receive()
        assert (result.count, result.in_order, result.ended) == (20, True, "EndOfChannel")


@bounded
async def test_many_concurrent_channels_of_all_modes_are_independent() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        answers = []
        senders = []
        for number in range(60):
            sender, receiver = channel(mode=list(Mode)[number % 3])
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Collect(receiver, report))
            senders.append(sender)
            answers.append(answer)
        for number in range(50):
            for sender in senders:
                await sender.send(numbered(number, 200))
        for sender in senders:
            sender.finish()
        for position, answer in enumerate(answers):
            report_ = await answer.receive()
            assert report_.ended == "EndOfChannel"
            if position % 3 == 0:
                assert (report_.count, report_.in_order) == (50, True)
            elif position % 3 == 1:
                assert report_.count == 50
