"""Killed servers and producers: acknowledged records stay stored, once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.client.reader import DirectoryReader, Reader
from aqueduct.security import ServerTLS, Trust
from aqueduct.transport.settings import QuicSettings
from tests.ingest.crashing import RECOVERING, ROLLING, WRITING
from tests.ingest.killing import Script, Servers
from tests.ingest.ledger import Ledger

CHAINS = max(3, int(os.environ.get("CRASH_CHAINS", "3")))
ROUNDS = 20
PARTITIONS = 3
OUTSIDE = "from outside"


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect killed servers quickly, because these tests kill hundreds."""
    monkeypatch.setattr(
        clients, "CLIENT_QUIC_SETTINGS", QuicSettings(idle_timeout=0.25, keep_alive=0.08)
    )
    monkeypatch.setattr(clients, "MAX_PAUSE", 0.1)


class Chain:
    """Rounds on one directory: producers continue while servers are killed and restarted."""

    def __init__(self, seed: int, servers: Servers, trusted: Trust) -> None:
        self.rng = random.Random(seed)
        self.servers = servers
        self.ledger = Ledger("rounds", PARTITIONS)
        self._trust = trusted
        self.producers: list[Producer] = []
        self.torn = 0
        """Times that a server died in the middle of a block."""
        self.died: list[str] = []

    @contextlib.asynccontextmanager
    async def producing(self, count: int) -> AsyncIterator[None]:
        """Run producers that send until the end of the block."""
        self.producers = [
            Producer(
                self.servers.address,
                "rounds",
                producer_id=f"producer-{number}",
                trust=self._trust,
                partitions=PARTITIONS,
                max_buffered=16 * 1024,
            )
            for number in range(count)
        ]
        pumps = [asyncio.create_task(self._pump(producer)) for producer in self.producers]
        try:
            yield
            for pump in pumps:
                assert not pump.done(), pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    async def _pump(self, producer: Producer) -> None:
        rng = random.Random(f"{producer.producer_id} {self.rng.random()}")
        await producer.open()
        assert producer.committed == 0
        while True:
            for _ in range(rng.randrange(1, 12)):
                try:
                    await producer.send(**self.ledger.next(producer.producer_id))
                except asyncio.CancelledError:  # it waited for room, and was not buffered
                    self.ledger.sent[producer.producer_id] -= 1
                    raise
            if rng.random() < 0.3:
                sent = self.ledger.sent[producer.producer_id]
                await producer.flush()
                assert producer.committed == sent
            await asyncio.sleep(rng.choice((0, 0.002, 0.01)))

    def moments(self) -> list[str]:
        """Return all moments to die at, shuffled, with recoveries after those that need them."""
        chosen = [*WRITING, *ROLLING, *(OUTSIDE for _ in range(3))]
        self.rng.shuffle(chosen)
        while len(chosen) < ROUNDS:
            after = [at for at, one in enumerate(chosen) if one in WRITING[:3]]
            chosen.insert(self.rng.choice(after) + 1, self.rng.choice(RECOVERING))
        return chosen

    async def round(self, moment: str) -> None:
        """Run one server until it dies, and check what it stored."""
        count = self.rng.randint(1, 8 if moment in WRITING else 3)
        is_up = await self.servers.start(
            moment="" if moment == OUTSIDE else moment,
            count=1 if moment in RECOVERING[1:] else count,
            seed=self.rng.randrange(1_000_000),
            loses=self.rng.random() < 0.5,
        )
        if is_up:
            # A recovery may have nothing to cut.
            is_random = moment == OUTSIDE or moment in RECOVERING
            try:
                wait = self.rng.uniform(0, 0.5) if is_random else 1.0
                async with asyncio.timeout(wait):
                    await self.servers.event("dies")
            except TimeoutError:
                moment = OUTSIDE
                os.kill(self.servers.pid, signal.SIGKILL)
            await self.servers.ended()
        self.died.append(moment)
        self.torn += moment == "in the middle of a block"
        self.look()

    def look(self) -> None:
        committed = {one.producer_id: one.committed for one in self.producers}
        if self.servers.data.is_dir():
            self.ledger.look(self.servers.data, committed)

    async def finish(self) -> None:
        """Run a server that is not killed; check that all sent records are stored and readable."""
        assert await self.servers.start()
        for producer in self.producers:
            await producer.close()
            assert producer.committed == self.ledger.sent[producer.producer_id]
        afresh = Ledger("rounds", PARTITIONS)
        afresh.sent = self.ledger.sent
        async with Reader(self.servers.address, trust=self._trust) as reader:
            (topic,) = await reader.topics()
            for number, start, end in afresh.news(topic):
                async for batch in reader.read("rounds", number, start, end):
                    afresh.add([batch], number)
        afresh.judge(dict(self.ledger.sent))
        await self.servers.kill()
        self.ledger.look(self.servers.data, dict(self.ledger.sent))
        assert self.ledger.stored == afresh.stored
        reported = [text for text in self.servers.logged if "cut off" in text]
        assert len(reported) >= self.torn


@pytest.mark.parametrize("seed", range(CHAINS))
async def test_a_repeatedly_killed_server_loses_and_duplicates_nothing(
    seed: int, tmp_path: Path, tls: ServerTLS, trusted: Trust
) -> None:
    async with Servers(tmp_path, tls) as servers:
        chain = Chain(seed, servers, trusted)
        assert await servers.start()
        try:
            async with chain.producing(2 + seed % 3):
                await servers.kill()
                for moment in chain.moments():
                    await chain.round(moment)
            await chain.finish()
        except BaseException:
            print(f"died: {chain.died}; run it again with: pytest {__file__} -k '[{seed}]'")
            raise
        finally:
            for producer in chain.producers:
                await producer.abandon()


class Lives:
    """One producer id in successive processes, each of which continues after the last."""

    def __init__(self, servers: Servers, authority: Path) -> None:
        self.servers = servers
        self._authority = authority
        self.flushed: dict[int, int] = {}
        """By the last sequence number of each flush, the life that flushed it."""
        self.begun: list[tuple[int, int]] = []
        """For each life its number, and the last stored record when it began."""
        self.stored = 0
        """The last record that is known to be stored."""

    async def live(self, life: int, flushes: int, kill_server: bool) -> None:
        """Run one producer process until its end."""
        arguments = (self.servers.address, "lives", "one", str(self._authority), str(life))
        async with Script("tests.ingest.producing", *arguments) as process:
            committed = (await process.event("opened"))["committed"]
            assert committed >= self.stored
            self.begun.append((life, committed))
            self.stored = committed
            for number in range(flushes):
                self.stored = (await process.event("flushed"))["sequence"]
                self.flushed[self.stored] = life
                if kill_server and number == flushes // 2:
                    await self.servers.kill()
                    break
            process.process.kill()
            # It may have reported events before it died.
            with contextlib.suppress(AssertionError):
                while True:
                    self.stored = (await process.event("flushed"))["sequence"]
                    self.flushed[self.stored] = life

    def judge(self, directory: Path) -> None:
        """Check that flushed records are stored once, in order, with the values of their life."""
        reader = DirectoryReader(directory)
        (topic,) = reader.topics()
        values: dict[int, str] = {}
        for part in topic.partitions:
            last = 0
            for batch in reader.read("lives", part.partition, 0, part.next_offset):
                for row in batch.to_pylist():
                    sequence = row["producer_sequence"]
                    assert sequence > last
                    last = sequence
                    assert sequence not in values
                    values[sequence] = row["value"].decode()
        assert sorted(values) == list(range(1, len(values) + 1))
        assert len(values) >= self.stored
        for last, life in self.flushed.items():
            first = next(committed for number, committed in self.begun if number == life)
            for sequence in range(first + 1, last + 1):
                assert values[sequence] == f"{sequence} in life {life}"


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_killed_producer_continues_after_the_last_stored_record(
    seed: int, tmp_path: Path, authority: ServerTLS, tls: ServerTLS
) -> None:
    rng = random.Random(seed)
    (tmp_path / "authority").write_bytes(authority.certificate)
    async with Servers(tmp_path, tls) as servers:
        assert await servers.start()
        lives = Lives(servers, tmp_path / "authority")
        for life in range(5):
            await lives.live(life, rng.randrange(1, 12), kill_server=False)
        await servers.kill()
        lives.judge(servers.data)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_killed_producer_and_server_continue_after_the_last_stored_record(
    seed: int, tmp_path: Path, authority: ServerTLS, tls: ServerTLS
) -> None:
    rng = random.Random(seed)
    (tmp_path / "authority").write_bytes(authority.certificate)
    async with Servers(tmp_path, tls) as servers:
        assert await servers.start()
        lives = Lives(servers, tmp_path / "authority")
        for life in range(5):
            await lives.live(life, rng.randrange(1, 12), kill_server=True)
            lives.judge(servers.data)
            assert await servers.start()
        await servers.kill()
        lives.judge(servers.data)
