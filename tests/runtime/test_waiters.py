"""A queue of waiting tasks: no wake-up is lost, and none crosses event loops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import aqueduct
from aqueduct import ChannelCancelled, LocalProtocolError
from aqueduct.runtime.waiters import Waiters
from tests.api.joined import joined, sending
from tests.processes.peers import eventually


@pytest.fixture
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


async def asleep(waiters: Waiters, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(waiters.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


def done(tasks: list[asyncio.Task[None]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_the_task_that_waited_longest_is_woken_first() -> None:
    waiters = Waiters()
    assert not waiters
    tasks = await asleep(waiters, 3)
    assert waiters
    waiters.wake()
    await asyncio.sleep(0)
    assert done(tasks) == [True, False, False]
    waiters.wake_all()
    await asyncio.gather(*tasks)
    assert not waiters


async def test_a_wake_up_that_meets_a_cancellation_goes_to_the_next() -> None:
    waiters = Waiters()
    tasks = await asleep(waiters, 2)
    waiters.wake()
    tasks[0].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await tasks[0]
    await tasks[1]


async def test_a_cancelled_task_leaves_the_queue() -> None:
    waiters = Waiters()
    tasks = await asleep(waiters, 2)
    tasks[0].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await tasks[0]
    waiters.wake()
    await tasks[1]
    assert not waiters


async def test_a_wake_up_without_waiting_tasks_is_dropped() -> None:
    waiters = Waiters()
    waiters.wake()
    waiters.wake_all()
    (task,) = await asleep(waiters, 1)
    assert not task.done()
    waiters.wake()
    await task


# -- other event loops ----------------------------------------------------------------------------


def elsewhere(make: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a coroutine in the event loop of another thread, while this loop stands still."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(make())).result()


SENDING = ["send", "send_nowait", "finish", "cancel", "flush", "wait_closed"]


async def call(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


async def _never_called(_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize("name", [*SENDING, "receive", "close", "receive_many"])
async def test_a_networked_half_is_refused_in_another_loop_and_stays_usable(
    name: str, own_certificates: None
) -> None:
    async with sending() as (sender, receiver):
        half = sender if hasattr(sender, name) else receiver
        arguments = [b"x"] if name.startswith("send") else []

        async def use() -> None:
            result = getattr(half, name)(*arguments)
            if asyncio.iscoroutine(result):
                await result

        driver = sender._port.driver  # type: ignore[attr-defined]
        await eventually(lambda: not driver.turn_due, "the turn is over")
        with pytest.raises(LocalProtocolError, match="use it in tasks of the loop that made it"):
            elsewhere(use)
        await sender.send(b"y")
        assert await receiver.receive() == b"y"


@pytest.mark.parametrize(("name", "value"), [("mode", aqueduct.Mode.UNORDERED), ("priority", 0)])
async def test_a_networked_sender_is_not_changed_in_another_loop(
    name: str, value: object, own_certificates: None
) -> None:
    async with sending() as (sender, _):
        before = getattr(sender, name)
        with pytest.raises(LocalProtocolError, match="use it in tasks of the loop that made it"):
            elsewhere(lambda: call(setattr, sender, name, value))
        assert getattr(sender, name) == before
        setattr(sender, name, value)
        assert getattr(sender, name) == value


@pytest.mark.parametrize("name", ["close", "drain", "wait_closed", "wait_ready"])
async def test_a_connection_is_refused_in_another_loop_and_stays_usable(
    name: str, own_certificates: None
) -> None:
    async with joined() as (client, server):
        with pytest.raises(LocalProtocolError, match="belongs to another event loop"):
            elsewhere(getattr(client, name))
        assert client.is_open
        await client.entrypoint.send(b"y")
        assert await server.entrypoint.receive() == b"y"


@pytest.mark.parametrize("name", ["accept", "close", "drain", "run", "serve"])
async def test_a_server_is_refused_in_another_loop_and_stays_usable(
    name: str, own_certificates: None
) -> None:
    arguments = [_never_called] if name in ("run", "serve") else []
    async with aqueduct.serve("memory://", tls=aqueduct.dev_tls()) as server:
        with pytest.raises(LocalProtocolError, match="this server belongs to another event loop"):
            elsewhere(lambda: getattr(server, name)(*arguments))
        async with aqueduct.connect(server.address, trust=aqueduct.dev_trust()):
            assert (await server.accept()).is_open


@pytest.mark.parametrize("name", ["connection", "receiver"])
async def test_serving_a_channel_is_refused_in_another_loop(
    name: str, own_certificates: None
) -> None:
    async with joined() as (_, server):
        served = server if name == "connection" else server.entrypoint
        with pytest.raises(LocalProtocolError, match="belongs to another event loop"):
            elsewhere(lambda: served.serve(_never_called))


async def test_a_thread_without_a_loop_is_refused(own_certificates: None) -> None:
    async with sending() as (sender, receiver):
        with pytest.raises(LocalProtocolError, match=r"loop\.call_soon_threadsafe"):
            await asyncio.to_thread(sender.send_nowait, b"x")
        asyncio.get_running_loop().call_soon_threadsafe(sender.send_nowait, b"y")
        assert await receiver.receive() == b"y"


def test_a_connection_of_a_loop_that_has_ended_is_refused_in_the_next(
    own_certificates: None,
) -> None:
    async def leave_open() -> aqueduct.ClientConnection[bytes]:
        async with aqueduct.serve("memory://left", tls=aqueduct.dev_tls()):
            return await aqueduct.connect("memory://left", trust=aqueduct.dev_trust())

    connection = asyncio.run(leave_open())
    with pytest.raises(LocalProtocolError, match="belongs to another event loop"):
        asyncio.run(connection.close())


@pytest.mark.parametrize("name", ["send_nowait", "finish", "cancel"])
async def test_a_local_channel_refuses_to_wake_a_task_in_another_loop(name: str) -> None:
    sender, receiver = aqueduct.channel(int)
    receiving = asyncio.create_task(receiver.receive())
    await asyncio.sleep(0)
    arguments = [1] if name == "send_nowait" else []
    with pytest.raises(LocalProtocolError, match="a task waits for the other half"):
        elsewhere(lambda: call(getattr(sender, name), *arguments))
    assert sender.statistics() == {"sent": 0, "queued": 0}
    sender.send_nowait(2)
    assert await receiving == 2
    sender.finish()
    receiver.close()


async def test_a_local_channel_refuses_to_take_where_its_sender_cannot_be_woken() -> None:
    sender, receiver = aqueduct.channel(int, capacity=1)
    sender.send_nowait(1)
    sending_more = asyncio.create_task(sender.send(2))
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="a task waits for the other half"):
        elsewhere(receiver.receive)
    assert await receiver.receive() == 1
    await sending_more
    sender.finish()
    assert [number async for number in receiver] == [2]


async def test_a_half_dropped_in_another_thread_ends_its_channel_in_the_loop() -> None:
    sender, receiver = aqueduct.channel(int)
    halves = [sender]
    del sender
    receiving = asyncio.create_task(receiver.receive())
    await asyncio.sleep(0)
    with pytest.warns(ResourceWarning, match="was not closed"):
        elsewhere(lambda: call(halves.clear))
    with pytest.raises(ChannelCancelled):
        await receiving
