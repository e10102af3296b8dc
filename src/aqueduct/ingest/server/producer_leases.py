"""Who sends under which id: one at a time, each behind all that those before have under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from aqueduct.ingest.server.stream import Stream


class Place:
    """What is under way of one producer id in one topic, whoever sent it."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held by who takes over, so that those who come meanwhile find it done."""
        self.stream: Stream | None = None
        """Who sends, or the last who did; it may be gone while its records still wait."""
        self.users = 0

    @property
    def is_clear(self) -> bool:
        """Whether all that was taken is stored or refused."""
        return self.stream is None or self.stream.is_settled

    async def clear(self) -> None:
        """Have whoever sends here stop, and wait until what was taken is stored or refused."""
        if self.stream is not None:
            self.stream.supersede()
            await self.stream.settled()


class Places:
    """The places of all producers that send, or whose records still wait."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    @contextlib.contextmanager
    def entered(self, topic: str, producer_id: str) -> Iterator[Place]:
        """The place of a producer id, which is there for as long as anybody needs it."""
        key = topic, producer_id
        place = self._places.setdefault(key, Place())
        place.users += 1
        try:
            yield place
        finally:
            place.users -= 1
            self._leave(key, place)

    def _leave(self, key: tuple[str, str], place: Place) -> None:
        if place.users or self._places.get(key) is not place:
            return
        if place.stream is None or place.is_clear:
            del self._places[key]
        else:
            place.stream.when_settled(lambda: self._leave(key, place))

    def ids(self, topic: str) -> set[str]:
        """The producer ids in use in a topic."""
        return {producer_id for name, producer_id in self._places if name == topic}
