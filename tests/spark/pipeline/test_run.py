"""Blocking calls in threads do not block the event loop or the exit."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aqueduct.spark.pipeline.run import in_thread


def divide(dividend: float, *, divisor: float) -> float:
    return dividend / divisor


async def test_in_thread_returns_the_result() -> None:
    assert await in_thread(divide, 10, divisor=4) == 2.5


async def test_in_thread_raises_the_error() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(divide, 1, divisor=0)


async def test_a_cancelled_call_finishes_silently() -> None:
    goes_on = threading.Event()
    waiting = asyncio.create_task(in_thread(goes_on.wait, 10.0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    await asyncio.sleep(0.05)
