"""The input: topics as an ingest server stores them, whose segments Spark can read directly."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission, Topic
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.local.storage import LocalStorage

LARGE = "large"
"""A topic of few segments with many rows each."""
SMALL = "small"
"""A topic of many segments with few rows each."""
PARTITIONS = 4
_GROUP = 16_000
_POOL = 20_000
"""Distinct values: more than the window of a compressor."""


def fill(directory: Path, rows: int, files: int, size: int) -> None:
    """Create both topics; values are random, so that compression has no effect."""
    pool = [os.urandom(size) for _ in range(_POOL)]
    limits = IngestSettings(partitions=PARTITIONS, low_water=0)
    store = Store(LocalStorage(directory), limits, scratch=directory)
    try:
        _write(store, LARGE, pool, rows, _GROUP, lambda _: None)
        _roll(store)
        group = rows_in(SMALL, rows) // (files // PARTITIONS)
        _write(store, SMALL, pool, rows_in(SMALL, rows), group, _roll)
    finally:
        store.close()


def rows_in(topic: str, rows: int) -> int:
    """Return the rows of a topic, given those of the large one."""
    return rows if topic == LARGE else rows // 4


def _write(
    store: Store,
    name: str,
    pool: list[bytes],
    rows: int,
    group: int,
    after: Callable[[Store], None],
) -> None:
    topic = store.topic_to_write(name, None)
    for first in range(1, rows + 1, group):
        _commit(store, topic, pool, first, min(group, rows + 1 - first))
        after(store)


def _commit(store: Store, topic: Topic, pool: list[bytes], first: int, count: int) -> None:
    start = first % (_POOL - count)
    now = int(time.time() * 1e6)
    partitions = [number * PARTITIONS // count for number in range(count)]
    records = RecordColumns(
        first, pool[start : start + count], list(range(now, now + count)), partitions=partitions
    )
    submission = Submission("bench", records)
    store.commit({topic: [submission]})
    if submission.fault is not None:
        raise submission.fault


def _roll(store: Store) -> None:
    store.rotate_old(everything=True)
    store.roll()
