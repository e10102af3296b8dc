"""The loop for everything that blocks: one for a process, made when needed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aqueduct import ConnectionLost
from aqueduct.runtime import background as module
from aqueduct.runtime.background import Background, background
from tests.api.test_blocking import ran_well


@pytest.fixture
def own() -> Iterator[Background]:
    """A loop that the test may stop."""
    one = Background()
    yield one
    one.stop()


async def add(one: int, other: int) -> int:
    await asyncio.sleep(0)
    return one + other


def test_there_is_one_loop_and_it_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_state", module._State())
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
    monkeypatch.setattr(module, "_state", module._State())
    first = background()
    first.stop()
    first.stop()
    assert first.loop.is_closed()
    assert not first._thread.is_alive()
    second = background()
    assert second is not first
    assert second.run(add(1, 2)) == 3
    second.stop()


def test_coroutines_and_calls_run_on_the_loop_and_give_back_what_they_return(
    own: Background,
) -> None:
    assert own.run(add(1, 2)) == 3
    assert own.do(threading.current_thread) is own._thread
    assert own.do(divmod, 7, 2) == (3, 1)
    happened = threading.Event()
    own.soon(happened.set)
    assert happened.wait(60)


def test_what_fails_on_the_loop_fails_here(own: Background) -> None:
    with pytest.raises(ZeroDivisionError):
        own.do(lambda: 1 // 0)


def test_what_takes_too_long_is_given_up(own: Background) -> None:
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
        own.do(int)

    with pytest.raises(RuntimeError, match="would wait for itself"):
        own.do(ask)


def test_a_stopped_loop_says_so_and_leaves_no_coroutine_behind(own: Background) -> None:
    own.stop()
    with pytest.raises(ConnectionLost, match="the program is ending"):
        own.run(add(1, 2))
    own.soon(lambda: None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork() here")
def test_a_child_process_has_a_loop_of_its_own() -> None:
    script = """
        import os
        import aqueduct
        from aqueduct.runtime.background import background

        parents = background()
        assert parents.do(os.getpid) == os.getpid()
        child = os.fork()
        if child == 0:
            try:
                parents.do(int)
            except aqueduct.ForkedConnectionError as error:
                assert "make it again in the child process" in str(error)
                parents.soon(int)
                parents.stop()
                own = background()
                good = own is not parents and own is background()
                os._exit(7 if good and own.do(os.getpid) == os.getpid() else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert background() is parents
        assert parents.do(os.getpid) == os.getpid()
    """
    ran_well(script)
