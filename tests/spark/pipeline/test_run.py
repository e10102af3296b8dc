"""Calls that block do not keep the loop, nor the program, waiting."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aqueduct.spark.pipeline.run import in_thread


def divide(dividend: float, *, divisor: float) -> float:
    return dividend / divisor


async def test_it_gives_what_the_call_gives() -> None:
    assert await in_thread(divide, 10, divisor=4) == 2.5


async def test_it_raises_what_the_call_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(divide, 1, divisor=0)


async def test_who_does_not_wait_any_more_is_left_alone() -> None:
    goes_on = threading.Event()
    waiting = asyncio.create_task(in_thread(goes_on.wait, 10.0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    await asyncio.sleep(0.05)
