"""Batched writes of named readers' offsets, apart from records.

Each write is two syncs, which delay the syncs of records on the same disk. Advances that arrive
during a write, and within `advance_pause` after it, are therefore written together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.server.named_readers import Move
from aqueduct.ingest.server.topic import Topic
from aqueduct.ingest.settings import IngestSettings


class Progress:
    """Writes the advances of named readers, and completes each when it is on disk."""

    def __init__(self, limits: IngestSettings, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._limits = limits
        self._in_thread = in_thread
        self._waiting: dict[Topic, list[tuple[Move, asyncio.Future[None]]]] = {}
        self._writing: asyncio.Task[None] | None = None

    async def advance(self, topic: Topic, move: Move) -> None:
        """Wait until a move is on disk; raise its own error, never that of another move."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, []).append((move, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await done

    async def close(self) -> None:
        """Write the pending moves, and stop."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))

    async def _write(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                for topic, moves in waiting.items():
                    await self._write_topic(topic, moves)
                if self._waiting:
                    await asyncio.sleep(self._limits.advance_pause)
        finally:
            self._writing = None

    async def _write_topic(
        self, topic: Topic, moves: list[tuple[Move, asyncio.Future[None]]]
    ) -> None:
        try:
            faults = await self._in_thread(
                topic.readers.advance_all, [move for move, _ in moves], self._limits.max_readers
            )
        except Exception as error:  # noqa: BLE001 -- passed on to the callers
            faults = [IngestError(f"readers' offsets could not be written: {error!r}")] * len(moves)
        for (_, done), fault in zip(moves, faults, strict=True):
            if done.done():
                continue
            if fault is None:
                done.set_result(None)
            else:
                done.set_exception(fault)
