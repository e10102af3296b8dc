"""Leases of producer ids: one producer at a time, after the records of its predecessor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from aqueduct.ingest.server.stream import Stream


class ProducerLease:
    """The lease of one producer id in one topic."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held during a takeover, so that takeovers happen one after the other."""
        self.stream: Stream | None = None
        """The current or last stream; it may have ended while its records still wait."""
        self.users = 0

    async def clear(self) -> None:
        """Stop the current stream, and wait until its records are stored or rejected."""
        if self.stream is not None:
            self.stream.supersede()
            await self.stream.settled()


class ProducerLeases:
    """The leases of all producers that send, or whose records still wait."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, str], ProducerLease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @contextlib.contextmanager
    def acquired(self, topic: str, producer_id: str) -> Iterator[ProducerLease]:
        """Yield the lease of a producer id; it exists while it is used or records wait."""
        key = topic, producer_id
        lease = self._leases.setdefault(key, ProducerLease())
        lease.users += 1
        try:
            yield lease
        finally:
            lease.users -= 1
            self._leave(key, lease)

    def _leave(self, key: tuple[str, str], lease: ProducerLease) -> None:
        if lease.users or self._leases.get(key) is not lease:
            return
        if lease.stream is None or lease.stream.is_settled:
            del self._leases[key]
        else:
            lease.stream.when_settled(lambda: self._leave(key, lease))

    def ids(self, topic: str) -> set[str]:
        """Return the producer ids in use in a topic."""
        return {producer_id for name, producer_id in self._leases if name == topic}
