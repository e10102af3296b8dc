"""Serving requests in threads, of which there is a limited number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aqueduct.api.serving import RequestHandler
from aqueduct.errors import CallError, ChannelError
from aqueduct.runtime.background import Background
from aqueduct.runtime.threads import Threads

THREADS = 64
"""Threads that handle requests at the same time by default."""


def serve_in_threads(
    where: Background,
    serve: Callable[[RequestHandler], Coroutine[Any, Any, None]],
    handler: Callable[[Any], object],
    threads: int,
) -> None:
    """Run ``serve`` on the background loop with a handler that runs in threads.

    Those are daemon threads if the calling thread is one.
    """
    if threads < 1:
        raise ValueError("threads is how many requests are handled at once: 1 or more")
    pool = Threads(threads, "aqueduct-request")

    async def run() -> None:
        free = asyncio.Semaphore(threads)

        async def handle(request: Any) -> Any:
            # A thread cannot be cancelled, so it may outlive its request: the pool has a thread for
            # the next request only when one has ended.
            await free.acquire()
            future = pool.run(handler, request)
            future.add_done_callback(lambda _: free.release())
            try:
                await asyncio.wait([future])  # which leaves the thread alone when it is cancelled
            except asyncio.CancelledError:
                future.add_done_callback(partial(_handle_late_end, type(request).__name__))
                raise
            return future.result()

        await serve(handle)

    try:
        where.run(run())
    finally:
        pool.stop()


def _handle_late_end(name: str, future: asyncio.Future[object]) -> None:
    """Handle the end of a thread whose request has ended: its caller gave up, or the server stops.

    The channels of the request raise in such a thread, so a `ChannelError` is no failure of it.
    """
    error = None if future.cancelled() else future.exception()
    if error is None or _is_end(error):
        return
    context = {"message": f"the handler of {name} failed", "exception": error}
    future.get_loop().call_exception_handler(context)


def _is_end(error: BaseException) -> bool:
    """Return whether an error, or each one of a group, is of a channel, or meant for the caller."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(_is_end)[1] is None
    return isinstance(error, ChannelError | CallError)
