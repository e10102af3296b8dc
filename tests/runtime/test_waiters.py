"""A queue of waiting tasks: no wake-up is lost."""

import asyncio
import contextlib

from aqueduct.runtime.waiters import Waiters


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
