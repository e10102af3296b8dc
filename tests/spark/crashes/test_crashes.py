"""Killed drivers, Python workers and servers: the table has each record exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.security import ServerTLS
from tests.ingest.ledger import record
from tests.ports import free_port
from tests.spark.crashes.driving import EQUAL
from tests.spark.crashes.lab import TIMEOUT, Script, command, family, kill, parent, until
from tests.spark.crashes.producing import PARTITIONS

ROUNDS = max(3, int(os.environ.get("CRASH_ROUNDS", "3")))
"""At least a driver, a worker and the server are killed; `make soak` runs 100 rounds."""
COPY_ROUNDS = max(ROUNDS // 6, 3)
SEED = int(os.environ.get("CRASH_SEED", "1"))
DRIVERS = 0.2
"""The share of rounds that kill the driver: a new one takes ten times as long as all else."""
TOPIC = "rounds"
COPY = "copied"
PRODUCERS = ("first", "second")

MOMENTS = {
    "planned": ("checkpoint/offsets", 0.3),
    "written": ("table/_spark_metadata", 0.0),
    "done": ("checkpoint/commits", 0.1),
}
"""How far a batch is: where a file shows that, and the longest delay in seconds after that.

Tasks run behind the first of them. What is written counts, and is not to be written again.
"""
WORKERS = {
    "a worker": "pyspark.daemon pyspark.worker",
    "another worker": "pyspark.daemon pyspark.worker",
    "the parent of the workers": "pyspark.daemon pyspark.worker",
    "the planner": "python_streaming_source_runner",
}
"""The processes to kill, and their programs."""


class Run:
    """A server, producers and successive drivers on one directory."""

    def __init__(
        self, directory: Path, authority: ServerTLS, tls: ServerTLS, *, copies: bool = False
    ) -> None:
        """With ``copies``, the stream writes to another topic instead of a table."""
        self._copies = copies
        self.moments = [each for each in MOMENTS if each != "written" or not copies]
        self.rng = random.Random(SEED)
        self.directory = directory
        self.data = directory / "data"
        self._authority = directory / "authority"
        self._authority.write_bytes(authority.certificate)
        certificate, key = directory / "certificate", directory / "key"
        certificate.write_bytes(tls.certificate)
        key.write_bytes(tls.key)
        self.address = f"127.0.0.1:{free_port()}"
        self.server = Script(
            "tests.spark.crashes.serving",
            *(self.address, str(self.data), str(certificate), str(key)),
        )
        self.producers = {
            name: Script(
                "tests.spark.crashes.producing", self.address, TOPIC, name, str(self._authority)
            )
            for name in PRODUCERS
        }
        self.driver: Script
        self.drivers: list[Script] = []
        self.died: list[str] = []
        self.orphans: set[int] = set()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Run:
        await self._stack.enter_async_context(self.server)
        await self.serve()
        for producer in self.producers.values():
            await self._stack.enter_async_context(producer)
        for producer in self.producers.values():
            await producer.event("flushed")
        await self.drive()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def serve(self) -> None:
        self.server.ask()
        await self.server.event("ready")

    async def drive(self) -> None:
        """Start a driver; drivers alternate between sources, and between retrying and not.

        Drivers that copy begin with retries, so that a few rounds have all of that.
        """
        lives = len(self.drivers) + (2 if self._copies else 0)
        from_server = lives % 2 == 1
        master = "local[2,4]" if lives // 2 % 2 == 1 else "local[2]"
        server = {"servers": self.address, "trustCa": str(self._authority)}
        where = server if from_server else {"path": str(self.data)}
        source = json.dumps({"subscribe": TOPIC, **where})
        sink = json.dumps({"topic": COPY, **server} if self._copies else {})
        self.driver = Script(
            "tests.spark.crashes.driving", str(self.directory), master, source, sink
        )
        self.drivers.append(self.driver)
        await self._stack.enter_async_context(self.driver)
        await self.driver.event("began")

    def reached(self, what: str) -> int:
        """Return the last batch with a file in a directory."""
        try:
            names = os.listdir(self.directory / what)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)

    async def progress(self) -> None:
        """Wait until a batch that is not planned yet is committed."""
        planned = self.reached("checkpoint/offsets")
        await until(lambda: self.reached("checkpoint/commits") > planned, f"batch {planned + 1}")

    async def moment(self, name: str = "") -> str:
        """Wait for the moment of the next kill."""
        name = name or self.rng.choice(self.moments)
        directory, most = MOMENTS[name]
        delay = most * self.rng.random()
        before = self.reached(directory)
        await until(lambda: self.reached(directory) > before, f"a batch is {name}", pause=0.001)
        await asyncio.sleep(delay)
        return f"{delay * 1_000:.0f} ms after a batch was {name}"

    async def kill_driver(self) -> str:
        """Kill the driver and its JVM, which plans and commits; its workers must then exit."""
        kills = len(self.drivers) - (1 if self._copies else 0)
        when = await self.moment(self.moments[kills % len(self.moments)])
        self.orphans.update(family(self.driver.mark))
        kill(self.driver.last["began"]["java"])
        kill(self.driver.pid)
        planned, written, done = (self.reached(each) for each, _ in MOMENTS.values())
        await self.driver.ended()
        await self.drive()
        await self.progress()
        return f"the driver {when} ({planned=}, {written=}, {done=})"

    async def kill_worker(self) -> str:
        kind = self.rng.choice(list(WORKERS))
        when = await self.moment()
        java = self.driver.last["began"]["java"]

        def fitting() -> list[int]:
            return [each for each in family(self.driver.mark) if WORKERS[kind] in command(each)]

        await until(lambda: bool(fitting()), kind)
        found = fitting()
        # Workers outlive their parent; Spark needs it again only to start more workers.
        parents = [each for each in found if parent(each) == java] if "parent" in kind else []
        for each in (parents or found)[-1:]:
            kill(each)
        await self.progress()
        return f"{kind} {when}"

    async def kill_server(self) -> str:
        """Kill and restart the server; the next kill may come before the stream continues."""
        when = await self.moment()
        kill(self.server.last["ready"]["pid"])
        await self.server.event("ended")
        await asyncio.sleep(self.rng.choice((0, 0.3, 1.0)))
        await self.serve()
        return f"the server {when}"

    def failures(self) -> list[str]:
        """Return why queries failed and were restarted."""
        events = [each for driver in self.drivers for each in driver.said]
        return [str(each["error"]) for each in events if each["event"] == "failed"]

    async def rounds(self, count: int) -> None:
        drivers = max(min(len(MOMENTS), count // 2), round(count * DRIVERS))
        workers = round((count - drivers) * 0.55)
        kinds = [self.kill_worker] * workers
        kinds += [self.kill_server] * (count - drivers - workers)
        self.rng.shuffle(kinds)
        step = -(-count // drivers)
        for number in range(drivers):
            kinds.insert((number + 1) * step - 1, self.kill_driver)
        await self.progress()
        for each in kinds:
            async with asyncio.timeout(3 * TIMEOUT):
                self.died.append(await each())

    async def finish(self) -> dict[str, int]:
        """Stop all processes normally; return the last flushed record of each producer."""
        for producer in self.producers.values():
            producer.ask()
        sent = {
            name: (await producer.event("finished"))["sequence"]
            for name, producer in self.producers.items()
        }

        await until(lambda: self.stored(TOPIC) == sum(sent.values()), "all is in the directory")
        self.driver.ask()
        await self.driver.event("finished")
        return sent

    def stored(self, name: str) -> int:
        """Return the number of rows of a topic."""
        (topic,) = DirectoryReader(self.data).topics(name)
        return sum(part.next_offset for part in topic.partitions)

    def judge(self, sent: dict[str, int]) -> None:
        """Check that the table has each flushed record once and unchanged."""
        rows = pq.read_table(self.directory / "result.parquet").to_pylist()
        numbers = Counter((row["producer_id"], row["producer_sequence"]) for row in rows)
        wanted = {(name, number) for name in sent for number in range(1, sent[name] + 1)}
        assert not wanted - numbers.keys(), f"lost: {sorted(wanted - numbers.keys())[:20]}"
        assert not numbers.keys() - wanted
        assert not [each for each, count in numbers.items() if count > 1]
        offsets: dict[int, list[int]] = {}
        for row in rows:
            expected = record(row["producer_id"], row["producer_sequence"], PARTITIONS)
            assert row["value"] == expected["value"]
            assert row["key"] == expected.get("key")
            offsets.setdefault(row["partition"], []).append(row["offset"])
        for partition in offsets.values():
            assert sorted(partition) == list(range(len(partition)))

    async def judge_copy(self, sent: dict[str, int]) -> None:
        """Check that the copy has each flushed record, equal ones as often as they occur."""
        wanted = Counter(
            f"{name} {number // EQUAL}".encode()
            for name in sent
            for number in range(1, sent[name] + 1)
        )
        await until(lambda: self.stored(COPY) >= sum(sent.values()), "all is copied")
        found: Counter[bytes] = Counter()
        reader = DirectoryReader(self.data)
        for part in reader.topics(COPY)[0].partitions:
            for batch in reader.read(COPY, part.partition, 0, part.next_offset):
                found.update(batch.column("value").to_pylist())
        assert found == wanted


async def be_killed(run: Run, count: int) -> dict[str, int]:
    """Run rounds of kills, and check the result."""
    try:
        await run.rounds(count)
        return await run.finish()
    finally:
        print(f"CRASH_SEED={SEED} CRASH_ROUNDS={ROUNDS}; died:", *run.died, sep="\n  ")
        print("queries failed:", *run.failures(), sep="\n\n")


async def test_the_table_has_each_record_exactly_once_despite_kills(
    tmp_path: Path, authority: ServerTLS, tls: ServerTLS
) -> None:
    async with Run(tmp_path, authority, tls) as run:
        run.judge(await be_killed(run, ROUNDS))
        assert len(run.died) == ROUNDS
        assert not [each for each in run.failures() if "DataLoss" in each], "loss was only claimed"
        await until(lambda: not any(map(command, run.orphans)), "no worker outlives its driver")


async def test_a_topic_has_each_written_row_exactly_once_despite_kills(
    tmp_path: Path, authority: ServerTLS, tls: ServerTLS
) -> None:
    async with Run(tmp_path, authority, tls, copies=True) as run:
        await run.judge_copy(await be_killed(run, COPY_ROUNDS))
        assert len(run.died) == COPY_ROUNDS
