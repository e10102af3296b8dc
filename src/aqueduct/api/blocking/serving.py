"""Serving requests in threads, of which there is a limited number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aqueduct.api.serving import RequestHandler
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
            return await asyncio.shield(future)

        await serve(handle)

    try:
        where.run(run())
    finally:
        pool.stop()
