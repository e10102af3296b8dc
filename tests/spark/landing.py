"""Topics for tests: written to a directory as a server does, and served from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aqueduct.ingest.server.permissions import Permissions
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.settings import IngestSettings
from aqueduct.runtime.background import background
from aqueduct.security import ServerTLS
from aqueduct.spark.backend import Backend
from tests.ingest.storing import opened, parts_of, records, rolled, stored

LIMITS = IngestSettings(low_water=0, partitions=2)


class Landing:
    """A landing directory, to which tests write records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(exist_ok=True)
        self._clock = 1_000.0
        self._next: dict[str, int] = {}

    def write(self, topic: str, count: int, *, roll: bool = True, **more: Any) -> None:
        """Write records with keys to all partitions, one second after the previous ones."""
        self._clock += 1.0
        first = self._next.get(topic, 1)
        self._next[topic] = first + count
        keys = [b"%d" % each for each in range(first, first + count)]
        with self.opened() as store:
            stored(store, records(first, count, keys=keys, **more), topic)
            if roll:
                rolled(store)

    def drop(self, topic: str, partition: int, segments: int = 1) -> None:
        """Remove the oldest segments of a partition, as retention does."""
        with self.opened() as store:
            part = parts_of(store.topics[topic])[partition]
            part.drop_before(part.manifest.segments[segments - 1].last + 1)

    def ends(self, topic: str) -> dict[int, int]:
        """Return the offset after the last row, by partition."""
        with self.opened() as store:
            return {part.number: part.next_offset for part in store.topics[topic].partitions}

    @contextmanager
    def opened(self) -> Iterator[Store]:
        with opened(self.directory, LIMITS, lambda: self._clock) as store:
            yield store

    @contextmanager
    def served(
        self, tls: ServerTLS, address: str = "127.0.0.1:0", permissions: Permissions | None = None
    ) -> Iterator[IngestServer]:
        """Serve the directory, on the event loop of the blocking API."""

        def make() -> IngestServer:
            return IngestServer(
                address, self.directory, tls=tls, limits=LIMITS, permissions=permissions
            )

        server = background().call(make)
        background().run(server.open())
        try:
            yield server
        finally:
            background().run(server.close(0))

    @property
    def path(self) -> str:
        return str(self.directory)


def stored_rows(backend: Backend, topic: str) -> list[dict[str, Any]]:
    """Return all rows of a topic."""
    (info,) = backend.topics(topic)
    return [
        row
        for part in info.partitions
        for batch in backend.read(topic, part.partition, part.first_offset, part.next_offset)
        for row in batch.to_pylist()
    ]


def stored_values(backend: Backend, topic: str) -> Counter[bytes]:
    """Count the values of a topic."""
    return Counter(row["value"] for row in stored_rows(backend, topic))
