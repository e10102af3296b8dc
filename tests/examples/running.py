"""A server of an example, which runs while a test does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aqueduct

SECONDS = 60


@asynccontextmanager
async def serving(
    handler: Any, kind: Any, address: str = "memory://", **options: Any
) -> AsyncIterator[aqueduct.Server[Any]]:
    """Serve requests with a handler until the block ends."""
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve(address, kind, tls=aqueduct.dev_tls(), **options) as server,
    ):
        task = asyncio.create_task(server.serve(handler))
        try:
            yield server
        finally:
            task.cancel()


def connect(server: aqueduct.Server[Any], kind: Any, **options: Any) -> Any:
    return aqueduct.connect(
        server.address, kind, trust=aqueduct.dev_trust(), timeout=SECONDS, **options
    )
