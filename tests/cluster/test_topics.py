"""``format("aqueduct")`` on a cluster: executors read from a server, write to it, and may die."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from aqueduct.ingest.blocking import Producer
from aqueduct.ingest.errors import UnknownTopic
from aqueduct.security import ServerTLS, trust
from aqueduct.spark.backend import Backend
from tests.cluster.standalone import Cluster
from tests.spark.crashes.lab import Script, parent, until
from tests.spark.landing import Landing, stored_values

ROWS = 1_000
KINDS = 7
"""Of the rows that are written: most are equal to many others."""
PAUSE = 0.01
"""Seconds between ten rows of a task that writes."""
Rows = list[list[int]]

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Driver(Script):
    """A Spark driver on the cluster, and a server with its own disk."""

    def __init__(self, master: str, backend: Backend, authority: ServerTLS) -> None:
        super().__init__("tests.cluster.driving", master)
        self.backend = backend
        self.server = {"servers": backend.server, "trustCa": authority.certificate.decode()}

    def order(self, order: str, **more: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"order": order, **more}).encode() + b"\n")


@pytest.fixture(scope="module")
def backend(
    tmp_path_factory: pytest.TempPathFactory, authority: ServerTLS, tls: ServerTLS
) -> Iterator[Backend]:
    """A server with two topics: each of the rows of one has a key, those of the other are equal."""
    landing = Landing(tmp_path_factory.mktemp("landing"))
    landing.write("logs", ROWS)
    with landing.served(tls) as server:
        backend = Backend(server=server.address, trust=trust(authority.certificate))
        with Producer(backend.server, "equal", trust=backend.trust) as producer:
            for number in range(ROWS):
                producer.send(b"%d" % (number % KINDS))
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(cluster: Cluster, backend: Backend, authority: ServerTLS) -> AsyncIterator[Driver]:
    async with Driver(cluster.master, backend, authority) as driver:
        yield driver


def ends(backend: Backend, topic: str) -> dict[int, int]:
    """Return the offset after the last row, by partition."""
    (info,) = backend.topics(topic)
    return {part.partition: part.next_offset for part in info.partitions}


def stored(backend: Backend, topic: str) -> int:
    """Return the number of rows of a topic; 0 if it does not exist."""
    try:
        return sum(ends(backend, topic).values())
    except UnknownTopic:
        return 0


async def test_a_stream_reads_each_row_once_although_an_executor_is_killed(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    source = {**driver.server, "subscribe": "logs"}
    driver.order("read", source=source, checkpoint=str(tmp_path / "checkpoint"), limit=400)
    await driver.event("batch")
    await until(lambda: len(cluster.executors()) == 2, "two executors")
    await driver.event("batch")
    killed = cluster.kill_executor()
    sent = await asyncio.to_thread(produce, driver.backend)
    await until(lambda: len(set(cluster.executors()) - {killed}) == 2, "another executor")
    driver.ask()
    finished = await driver.event("read")
    batches: dict[int, Rows] = {
        event["number"]: event["rows"] for event in driver.said if event["event"] == "batch"
    }
    rows = [tuple(row) for batch in batches.values() for row in batch]
    expected = ends(driver.backend, "logs")
    assert sorted(row[:2] for row in rows) == [
        (part, at) for part, end in expected.items() for at in range(end)
    ]
    assert sum(expected.values()) == ROWS + sent
    assert len(finished["executors"]) == 2


def produce(backend: Backend) -> int:
    """Produce records while the stream runs."""
    with Producer(backend.server, "logs", trust=backend.trust) as producer:
        for number in range(ROWS):
            producer.send(b"%d" % number)
    return ROWS


@pytest.mark.parametrize("order", ["copy", "write"])
async def test_each_row_is_written_once_although_the_writing_executor_is_killed(
    cluster: Cluster, driver: Driver, tmp_path: Path, order: str
) -> None:
    topic, backend = f"of-{order}", driver.backend
    more = {"checkpoint": str(tmp_path / "checkpoint")} if order == "copy" else {}
    notes = tmp_path / "notes"
    notes.mkdir()
    driver.order(
        order,
        source={**driver.server, "subscribe": "equal"},
        sink={**driver.server, "topic": topic},
        notes=str(notes),
        pause=PAUSE,
        **more,
    )
    await until(lambda: stored(backend, topic) >= ROWS // 10, "rows of an unfinished step")
    await until(lambda: running(cluster, notes) is not None, "a task that waits")
    task, executor = running(cluster, notes) or (0, None)
    cluster.kill_executor(executor)
    assert stored(backend, topic) < ROWS
    (notes / "go").touch()
    await driver.event("written")
    assert stored_values(backend, topic) == Counter(b"%d" % (each % KINDS) for each in range(ROWS))
    assert len(list(notes.glob(f"{task}.*"))) > 1


def running(cluster: Cluster, notes: Path) -> tuple[int, int] | None:
    """Return a task that has not ended, and the executor that runs it."""
    executors = cluster.executors()
    for note in sorted(notes.glob("*.*.*")):
        task, _, worker = map(int, note.name.split("."))
        executor = parent(parent(worker))
        if task and executor in executors:
            return task, executor
    return None
