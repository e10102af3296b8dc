"""The parts of a turn of the event loop: for each connection, and for each sender of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import aqueduct
from aqueduct.runtime.turns import PART_BYTES, TURN_BYTES, SenderQueue, bytes_for
from tests.api.joined import joined
from tests.processes.peers import eventually


@pytest.fixture
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


class Several(msgspec.Struct):
    halves: list[aqueduct.Receiver[bytes]]


@pytest.mark.parametrize(
    ("busy", "part"), [(0, 1), (1, 2), (2, 3), (3, 4), (15, 4), (63, 4), (127, 8), (9_999, 8)]
)
def test_a_connection_gets_a_part_of_the_turn_but_not_less_than_an_eighth(
    busy: int, part: int
) -> None:
    assert bytes_for(busy) == TURN_BYTES // part


async def test_tasks_get_parts_in_the_order_in_which_they_came() -> None:
    queue = SenderQueue()
    assert not queue
    parts: dict[int, int] = {}

    async def take(number: int) -> None:
        parts[number] = await queue.wait()

    tasks = [asyncio.create_task(take(number)) for number in range(5)]
    await asyncio.sleep(0)
    queue.start_turn(2 * PART_BYTES)
    await eventually(lambda: len(parts) == 2, "two tasks have a part")
    assert parts == {0: PART_BYTES, 1: PART_BYTES}
    queue.start_turn(60 * PART_BYTES)
    await asyncio.gather(*tasks)
    assert parts[4] == 20 * PART_BYTES
    assert not queue


async def test_a_turn_without_room_wakes_one_task_so_that_none_waits_forever() -> None:
    queue = SenderQueue()
    tasks = [asyncio.create_task(queue.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    for task in tasks:
        queue.start_turn(0)
        assert await task == PART_BYTES


async def test_the_end_wakes_all_tasks() -> None:
    queue = SenderQueue()
    tasks = [asyncio.create_task(queue.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.end()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("scheme", ["aqueduct+quic", "aqueduct+tcp"])
async def test_channels_that_send_at_once_send_about_as_much(
    scheme: str, own_certificates: None
) -> None:
    """Without parts, the task that runs first after a flush uses each turn as a whole."""
    count, rounds = 100, 10
    async with joined(Several, address=f"{scheme}://127.0.0.1:0") as (client, server):
        channels = [aqueduct.channel() for _ in range(count)]
        await client.entrypoint.send(Several([one.receiver for one in channels]))
        theirs = (await server.entrypoint.receive()).halves

        async def drain(receiver: aqueduct.Receiver[bytes]) -> None:
            async for _ in receiver:
                pass

        reading = asyncio.gather(*map(drain, theirs))
        sent = [0] * count
        # Enough for each channel to have ten parts, after the first turn.
        most = (count * rounds * PART_BYTES + TURN_BYTES) // 108

        async def keep_sending(number: int) -> None:
            while sum(sent) < most:
                for _ in range(10):
                    await channels[number].sender.send(bytes(100))
                sent[number] += 10
            channels[number].sender.finish()

        await asyncio.gather(*(keep_sending(number) for number in range(count)))
        await reading
    # The first task has the first turn for itself.
    ordered = sorted(sent)
    assert ordered[-2] < 3 * ordered[count // 2]
    assert ordered[0] > ordered[count // 2] / 3


@pytest.mark.parametrize("end", ["close", "abandon"])
async def test_a_task_that_waits_for_its_turn_learns_of_the_end(
    end: str, own_certificates: None
) -> None:
    async with joined(Several) as (client, _):
        sender, receiver = aqueduct.channel()
        await client.entrypoint.send(Several([receiver]))
        driver = client._driver
        waiting = asyncio.create_task(driver.wait_turn())
        await asyncio.sleep(0)
        if end == "close":
            await client.close()
        else:
            driver.transport.abandon("lost")
            driver.transport.close()
        await waiting
        await driver.wait_turn()  # does not wait once there are no turns
        with pytest.raises(aqueduct.ConnectionLost):
            await sender.send(b"late")


async def test_an_urgent_sender_does_not_wait_behind_others(own_certificates: None) -> None:
    async with joined(Several) as (client, _):
        plain, urgent = aqueduct.channel(), aqueduct.channel()
        await client.entrypoint.send(Several([plain.receiver, urgent.receiver]))
        urgent.sender.priority = 0
        ended: list[str] = []

        async def send(sender: aqueduct.Sender[bytes], name: str) -> None:
            await sender.send(b"x")
            ended.append(name)

        async def use_the_turn() -> None:
            client._driver.touch()
            client._driver.unflushed = TURN_BYTES + 1

        count = 10 * TURN_BYTES // PART_BYTES
        waiting = [send(plain.sender, "plain") for _ in range(count)]
        await asyncio.gather(use_the_turn(), *waiting, send(urgent.sender, "urgent"))
        assert ended.index("urgent") < count // 2
        plain.sender.cancel()
        urgent.sender.cancel()
