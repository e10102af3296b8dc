"""Threads that run calls of the event loop: how many, for how long, and what they keep alive."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from aqueduct.runtime.threads import Threads

SECONDS = 60


async def stop(pool: Threads) -> None:
    await asyncio.to_thread(pool.stop)


async def test_a_call_returns_its_result_or_raises_its_error() -> None:
    pool = Threads(2, "test")
    assert await pool.run(str, 5) == "5"
    with pytest.raises(ValueError, match="invalid literal"):
        await pool.run(int, "x")
    await stop(pool)


async def test_an_idle_thread_is_used_again_and_no_more_than_the_limit_are_started() -> None:
    pool = Threads(3, "test")
    for _ in range(5):
        assert await pool.run(lambda _: threading.current_thread().name, None) == "test_0"
    done = threading.Event()
    running = [pool.run(lambda _: done.wait(SECONDS), None) for _ in range(3)]
    waiting = pool.run(lambda _: threading.current_thread().name, None)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    done.set()
    assert await asyncio.gather(*running) == [True] * 3
    assert await waiting in {"test_0", "test_1", "test_2"}
    await stop(pool)


async def test_stop_waits_for_calls_and_refuses_more() -> None:
    pool = Threads(1, "test")
    begun, done = threading.Event(), threading.Event()

    def work(_: object) -> str:
        begun.set()
        done.wait(SECONDS)
        return "finished"

    running = pool.run(work, None)
    await asyncio.to_thread(begun.wait, SECONDS)
    stopping = asyncio.create_task(stop(pool))
    await asyncio.sleep(0.05)
    assert not stopping.done()
    with pytest.raises(RuntimeError, match="stopped"):
        pool.run(work, None)
    done.set()
    await stopping
    assert await running == "finished"


async def test_a_call_that_is_cancelled_before_it_begins_is_not_made() -> None:
    pool = Threads(1, "test")
    done, made = threading.Event(), threading.Event()
    running = pool.run(lambda _: done.wait(SECONDS), None)
    waiting = pool.run(lambda _: made.set(), None)
    waiting.cancel()
    await asyncio.sleep(0)
    done.set()
    await running
    await stop(pool)
    assert not made.is_set()


async def test_an_idle_thread_keeps_no_argument_alive() -> None:
    class Big:
        pass

    pool = Threads(1, "test")
    argument = Big()
    seen = weakref.ref(argument)
    future = pool.run(lambda _: None, argument)
    del argument
    await future
    await pool.run(lambda _: None, None)
    gc.collect()
    assert seen() is None
    await stop(pool)


@pytest.mark.parametrize("daemon", [False, True])
def test_the_threads_are_daemons_if_their_maker_is_one(daemon: bool) -> None:
    found: list[Any] = []

    async def ask() -> None:
        pool = Threads(1, "test")
        found.append(await pool.run(lambda _: threading.current_thread().daemon, None))
        await stop(pool)

    maker = threading.Thread(target=lambda: asyncio.run(ask()), daemon=daemon)
    maker.start()
    maker.join(SECONDS)
    assert found == [daemon]
