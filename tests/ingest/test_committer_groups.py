"""When a group is stored, and how large it is."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.committer import Committer
from aqueduct.ingest.server.decoding import RECORD_OVERHEAD
from aqueduct.ingest.server.metrics import Metrics
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission, Topic
from aqueduct.ingest.settings import IngestSettings

TOPIC = cast(Topic, "topic")


class RecordingStore:
    """Stores nothing, and records each group and its time."""

    def __init__(self, limits: IngestSettings) -> None:
        self.limits = limits
        self.groups: list[list[int]] = []
        """The first sequence number of each submission, by group."""
        self.begun: list[float] = []
        self.committing = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()

    def commit(self, groups: dict[Topic, list[Submission]]) -> None:
        self.begun.append(time.perf_counter())
        self.committing.set()
        self.groups.append([each.records.sequence for each in groups[TOPIC]])
        assert self.may_go.wait(10)


@contextlib.asynccontextmanager
async def running(store: RecordingStore) -> AsyncIterator[Committer]:
    with ThreadPoolExecutor(1) as writer:
        committer = Committer(cast(Store, store), writer, Metrics())
        task = asyncio.create_task(committer.run())
        try:
            yield committer
        finally:
            store.may_go.set()
            task.cancel()
            await asyncio.wait((task,))


async def submit(committer: Committer, sequence: int, size: int) -> asyncio.Future[Any]:
    """Submit one record of a given size."""
    records = RecordColumns(sequence, [bytes(size - RECORD_OVERHEAD)], [0])
    room = await committer.reserve(size)
    return committer.submit(TOPIC, Submission("producer", records), room)


async def test_records_within_the_linger_share_a_group() -> None:
    store = RecordingStore(IngestSettings(linger=0.1))
    async with running(store) as committer:
        done = [await submit(committer, sequence, 100) for sequence in (1, 2, 3)]
        await asyncio.wait_for(asyncio.gather(*done), 10)
    assert store.groups == [[1, 2, 3]]


async def test_records_that_arrived_during_a_commit_do_not_linger() -> None:
    store = RecordingStore(IngestSettings(linger=0.3))
    store.may_go.clear()
    async with running(store) as committer:
        first = await submit(committer, 1, 100)
        assert await asyncio.to_thread(store.committing.wait, 10)
        second = await submit(committer, 2, 100)
        await asyncio.sleep(0.35)
        released = time.perf_counter()
        store.may_go.set()
        await asyncio.wait_for(asyncio.gather(first, second), 10)
    assert store.groups == [[1], [2]]
    assert store.begun[1] - released < 0.25


async def test_a_group_of_the_wanted_size_does_not_linger() -> None:
    store = RecordingStore(IngestSettings(linger=60, group_size=1_000))
    async with running(store) as committer:
        await asyncio.wait_for(await submit(committer, 1, 1_000), 10)
    assert store.groups == [[1]]


async def test_a_group_has_at_most_four_times_the_wanted_size() -> None:
    store = RecordingStore(IngestSettings(linger=0.01, group_size=1_000))
    store.may_go.clear()
    async with running(store) as committer:
        done = [await submit(committer, 1, 1_000)]
        assert await asyncio.to_thread(store.committing.wait, 10)
        done += [await submit(committer, 2 + each, 1_500) for each in range(5)]
        store.may_go.set()
        await asyncio.wait_for(asyncio.gather(*done), 10)
    assert store.groups == [[1], [2, 3], [4, 5], [6]]


async def test_a_submission_above_the_limit_is_a_group_of_its_own() -> None:
    store = RecordingStore(IngestSettings(linger=0.01, group_size=1_000))
    async with running(store) as committer:
        done = [await submit(committer, sequence, 9_000) for sequence in (1, 2)]
        await asyncio.wait_for(asyncio.gather(*done), 10)
    assert store.groups == [[1], [2]]
