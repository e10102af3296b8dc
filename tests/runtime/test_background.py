"""The background event loop of a process, and the blocking twins that use it."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aqueduct import ConnectionLost
from aqueduct.runtime import background as module
from aqueduct.runtime.background import (
    Attribute,
    Background,
    BlockingTwin,
    background,
    blocking,
    blocking_function,
    on_loop,
    with_parameters_of,
)
from tests.api.test_blocking import ran_well


@pytest.fixture
def own() -> Iterator[Background]:
    """Return a loop that the test may stop."""
    one = Background()
    yield one
    one.stop()


async def add(one: int, other: int) -> int:
    await asyncio.sleep(0)
    return one + other


def test_there_is_one_loop_and_it_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_state", module._ProcessLoop())
    barrier = threading.Barrier(8)

    def ask(_: int) -> Background:
        barrier.wait()
        return background()

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    assert len(found) == 1
    (one,) = found
    assert background() is one
    assert one._thread.daemon
    one.stop()


def test_a_loop_that_was_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_state", module._ProcessLoop())
    first = background()
    first.stop()
    first.stop()
    assert first.loop.is_closed()
    assert not first._thread.is_alive()
    second = background()
    assert second is not first
    assert second.run(add(1, 2)) == 3
    second.stop()


def test_coroutines_and_calls_run_on_the_loop_and_return_their_results(
    own: Background,
) -> None:
    assert own.run(add(1, 2)) == 3
    assert own.call(threading.current_thread) is own._thread
    assert own.call(divmod, 7, 2) == (3, 1)
    happened = threading.Event()
    own.call_soon(happened.set)
    assert happened.wait(60)


def test_an_exception_on_the_loop_is_raised_in_the_calling_thread(own: Background) -> None:
    with pytest.raises(ZeroDivisionError):
        own.call(lambda: 1 // 0)


def test_a_coroutine_is_cancelled_after_its_timeout(own: Background) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match=r"not done within 0\.01 s"):
        own.run(wait(), 0.01)
    assert ended.wait(60)
    assert own.run(add(1, 2), 60) == 3


def test_a_call_on_the_loop_itself_raises_instead_of_waiting_for_itself(own: Background) -> None:
    def ask() -> None:
        own.call(int)

    with pytest.raises(RuntimeError, match="would wait for itself"):
        own.call(ask)


def test_a_stopped_loop_raises_and_leaves_no_coroutine_unawaited(own: Background) -> None:
    own.stop()
    with pytest.raises(ConnectionLost, match="the program is ending"):
        own.run(add(1, 2))
    own.call_soon(lambda: None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_has_a_loop_of_its_own() -> None:
    script = """
        import os
        import aqueduct
        from aqueduct.runtime.background import background

        parents = background()
        assert parents.call(os.getpid) == os.getpid()
        child = os.fork()
        if child == 0:
            try:
                parents.call(int)
            except aqueduct.ForkedConnectionError as error:
                assert "make it again in the child process" in str(error)
                parents.call_soon(int)
                parents.stop()
                own = background()
                good = own is not parents and own is background()
                os._exit(7 if good and own.call(os.getpid) == os.getpid() else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert background() is parents
        assert parents.call(os.getpid) == os.getpid()
    """
    ran_well(script)


# -- blocking twins -------------------------------------------------------------------------------


class Counter:
    """An asynchronous object."""

    def __init__(self) -> None:
        self.total = 0
        self.ended = ""

    async def add(self, number: int, *, times: int = 1) -> int:
        """Add a number."""
        await asyncio.sleep(0)
        self.total += number * times
        return self.total

    def thread(self) -> threading.Thread:
        """Return the thread that runs it."""
        return threading.current_thread()


class BlockingCounter(BlockingTwin[Counter]):
    total = Attribute[int]("The sum so far.")
    add = blocking(Counter.add)
    thread = on_loop(Counter.thread)

    def _leave(self, *, failed: bool) -> None:
        self._inner.ended = "failed" if failed else "well"
        raise ConnectionLost("it was closed already")


def test_a_twin_waits_for_the_asynchronous_object_on_the_loop(own: Background) -> None:
    twin = BlockingCounter(Counter(), own)
    assert twin.add(2, times=3) == 6
    assert twin.total == 6
    assert twin.thread() is own._thread
    with pytest.raises(AttributeError, match="total is read-only"):
        twin.total = 7


def test_a_twin_shows_the_signature_and_documentation_of_the_original() -> None:
    assert inspect.signature(BlockingCounter.add) == inspect.signature(Counter.add)
    assert BlockingCounter.add.__doc__ == "Add a number."
    assert inspect.getdoc(BlockingCounter.total) == "The sum so far."

    @with_parameters_of(Counter.add)
    def add(**options: int) -> str:
        """Add."""
        return ""

    assert list(inspect.signature(add).parameters) == ["self", "number", "times"]
    assert inspect.signature(add).return_annotation == "str"


def test_a_block_ends_the_object_and_an_error_in_it_is_not_replaced(own: Background) -> None:
    twin = BlockingCounter(Counter(), own)
    with pytest.raises(ConnectionLost, match="closed already"), twin:
        pass
    assert twin._inner.ended == "well"
    with pytest.raises(ZeroDivisionError), twin:
        raise ZeroDivisionError
    assert twin._inner.ended == "failed"


def test_a_coroutine_function_becomes_a_plain_one() -> None:
    assert blocking_function(add)(1, 2) == 3
