"""Calls that block, next to an event loop that must not: each in a thread that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call something that blocks.

    Unlike those of `asyncio.to_thread`, its thread does not keep the program from ending, and
    Ctrl-C does not come into it: Spark would take that signal for itself.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = call(*arguments, **named)
        except BaseException as problem:  # noqa: BLE001 -- it is raised where it is waited for
            error = problem
        with suppress(RuntimeError):  # the loop has ended; nobody waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name=f"pipeline-{call.__name__}").start()
    return await answer
