"""A recreated topic, or one restored from an older copy, is an error for clients of the other."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from aqueduct.ingest.client.connection import Client
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.server.store import Store
from tests.ingest.lab import Lab
from tests.ingest.storing import LIMITS, opened

REPLACED = "was replaced: it was (recreated|restored from an older copy)"
CASES = pytest.mark.parametrize(
    ("restored", "grown"),
    [(False, 5), (False, 300), (True, 5), (True, 300)],
    ids=["recreated", "recreated and longer", "restored", "restored and longer"],
)


class Replaced(Lab):
    """A lab whose topic is copied, written further, and replaced while no server runs."""

    async def fill(self, server: IngestServer, count: int, producer_id: str = "other") -> Producer:
        async with self.producer(server, producer_id=producer_id, partitions=1) as producer:
            await producer.send_many([b"%s %d" % (producer_id.encode(), n) for n in range(count)])
            await producer.flush()
        return producer

    @property
    def topic(self) -> Path:
        return self.directory / "topic"

    def copy(self) -> None:
        shutil.copytree(self.topic, self.directory.parent / "copy")

    def replace(self, restored: bool) -> None:
        shutil.rmtree(self.topic)
        if restored:
            shutil.copytree(self.directory.parent / "copy", self.topic)


@pytest.fixture
def replaced(lab: Lab) -> Replaced:
    return Replaced(lab.directory, lab._tls, lab.trust)


@CASES
async def test_a_producer_that_reconnects_fails(
    replaced: Replaced, restored: bool, grown: int
) -> None:
    server = replaced.serve()
    await server.open()
    producer = replaced.producer(server, producer_id="p", partitions=1)
    await producer.open()
    await producer.send_many([b"first"] * 60)
    await producer.flush()
    await server.close()
    replaced.copy()
    async with replaced.serve() as second:
        producer._address = second.address
        await producer.send_many([b"second"] * 40)
        await producer.flush()
    replaced.replace(restored)
    async with replaced.serve() as third:
        await replaced.fill(third, grown)
        await producer.send(b"to the topic that was")
        producer._address = third.address
        with pytest.raises(IngestError, match=REPLACED):
            await producer.flush()
        values = {row["value"] for row in await replaced.rows(third)}
        assert b"to the topic that was" not in values
    await producer.abandon()


@CASES
async def test_a_part_of_a_job_that_reconnects_fails(
    replaced: Replaced, restored: bool, grown: int
) -> None:
    async def send(count: int) -> None:
        ids = [uuid.uuid4().bytes + bytes(4) for _ in range(count)]
        await producer.send_many([b"row"] * count, ids=ids)
        await producer.flush()

    server = replaced.serve()
    await server.open()
    client = Client(server.address, trust=replaced.trust)
    scope = WriteScope("job", 3, uuid.uuid4().hex, 0)
    producer = Producer(server.address, "topic", scope=scope, client=client, partitions=1)
    await producer.open()
    await send(60)
    await server.close()
    replaced.copy()
    async with replaced.serve() as second:
        client.address = second.address
        await send(40)
    replaced.replace(restored)
    async with replaced.serve() as third:
        await replaced.fill(third, grown)
        client.address = third.address
        with pytest.raises(IngestError, match=REPLACED):
            await send(1)
    await producer.abandon()
    await client.close()


@CASES
async def test_a_producer_with_the_position_of_its_predecessor_fails(
    replaced: Replaced, restored: bool, grown: int
) -> None:
    async with replaced.serve() as server:
        await replaced.fill(server, 60)
    replaced.copy()
    async with replaced.serve() as server:
        position = (await replaced.fill(server, 40, "p")).position
    async with (
        replaced.serve() as server,  # a restart changes nothing
        replaced.producer(server, producer_id="p", position=position) as again,
    ):
        assert again.committed == 40
        position = again.position
    replaced.replace(restored)
    async with replaced.serve() as server:
        await replaced.fill(server, 60 + grown, "p")
        for _ in range(2):  # each retry fails
            with pytest.raises(IngestError, match=REPLACED):
                await replaced.producer(server, producer_id="p", position=position).open()
        async with replaced.producer(server, producer_id="p") as unchecked:
            assert unchecked.committed == 60 + grown


@CASES
async def test_a_named_reader_fails(replaced: Replaced, restored: bool, grown: int) -> None:
    async with replaced.serve() as server:
        await replaced.fill(server, 60)
    replaced.copy()
    async with replaced.serve() as server:
        await replaced.fill(server, 40, "p")
        async with replaced.reader(server) as reader:
            position = await reader.position("topic", {0: 100})
            await reader.advance("reports", "topic", {0: 100}, position=position)
    async with replaced.serve() as server, replaced.reader(server) as reader:
        await replaced.fill(server, 1, "q")
        await reader.advance("reports", "topic", {0: 101}, position=position)
        assert len([row async for row in reader.read("topic", 0, 100, 101, position=position)]) == 1
    replaced.replace(restored)
    async with replaced.serve() as server, replaced.reader(server) as reader:
        await replaced.fill(server, grown)
        for _ in range(2):
            with pytest.raises(IngestError, match=REPLACED):
                await reader.advance("reports", "topic", {0: 1}, position=position)
            with pytest.raises(IngestError, match=REPLACED):
                await anext(reader.read("topic", 0, 0, 1, position=position))
        await reader.advance("reports", "topic", {0: 1})


async def test_a_named_reader_whose_rows_are_missing_fails_until_it_is_forgotten(
    replaced: Replaced,
) -> None:
    async with replaced.serve() as server:
        await replaced.fill(server, 60)
    replaced.copy()
    async with replaced.serve() as server, replaced.reader(server) as reader:
        await replaced.fill(server, 40, "p")
        await reader.advance("reports", "topic", {0: 100})
    # The rows are restored from a copy, without the other files.
    shutil.rmtree(replaced.topic / "part=0")
    shutil.copytree(replaced.directory.parent / "copy" / "part=0", replaced.topic / "part=0")
    (replaced.topic / "closed.json").unlink()
    async with replaced.serve() as server, replaced.reader(server) as reader:
        await replaced.fill(server, 300, "q")
        with pytest.raises(IngestError, match="offsets of reader 'reports' belong to other rows"):
            await reader.advance("reports", "topic", {0: 200})
        (info,) = await reader.topics("topic")
        assert "partition 0 was at offset 100" in info.stale_readers["reports"]
        await reader.advance("reports", "topic", {})
        await reader.advance("reports", "topic", {0: 200})
        (info,) = await reader.topics("topic")
        assert info.stale_readers == {}


async def test_a_step_does_not_end_in_a_topic_that_lost_its_rows(replaced: Replaced) -> None:
    run = uuid.uuid4().hex
    async with replaced.serve() as server:
        await replaced.fill(server, 60)
    replaced.copy()
    async with replaced.serve() as server, Client(server.address, trust=replaced.trust) as client:
        scope = WriteScope("job", 0, run, 0)
        async with Producer(server.address, "topic", scope=scope, client=client) as producer:
            await producer.send(b"row", id=bytes(20))
        position = producer.position
        assert position is not None
    replaced.replace(restored=True)
    async with replaced.serve() as server, Client(server.address, trust=replaced.trust) as client:
        await replaced.fill(server, 300, "q")
        with pytest.raises(IngestError, match=REPLACED):
            await client.end_step("topic", "job", 0, run, positions=[position] * 40)
        await client.end_step("topic", "job", 0, run)


async def test_a_copy_with_all_acknowledged_rows_is_accepted(replaced: Replaced) -> None:
    async with replaced.serve() as server:
        stored = (await replaced.fill(server, 60, "p")).position
        async with replaced.reader(server) as reader:
            read = await reader.position("topic", {0: 60})
    replaced.copy()
    async with replaced.serve() as server:
        await replaced.fill(server, 40)
    replaced.replace(restored=True)
    async with replaced.serve() as server, replaced.reader(server) as reader:
        await replaced.fill(server, 300)
        async with replaced.producer(server, producer_id="p", position=stored) as producer:
            assert producer.committed == 60
        await reader.advance("reports", "topic", {0: 70}, position=read)


def test_a_forgotten_job_is_not_mistaken_for_a_replaced_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1_000_000.0]
    run = uuid.uuid4().hex

    def steps(store: Store, job: str, *numbers: int) -> None:
        for number in numbers:
            scope = WriteScope(job, number, run, 0)
            store.check_after("t", scope, number - 1)
            store.begin(store.topic_to_write("t", None), scope, is_dense=True)
            store.end_step("t", job, number, run)

    limits = replace(LIMITS, producer_memory=100.0, max_jobs=1)
    with opened(tmp_path, limits, lambda: now[0]) as store:
        steps(store, "monthly", 0, 1)
        with pytest.raises(IngestError, match="job 'daily' has ended its step 6, but is unknown"):
            store.check_after("t", WriteScope("daily", 7, run, 0), 6)
        with pytest.raises(IngestError, match="ended its step 2, but here only its step 1:"):
            store.check_after("t", WriteScope("monthly", 3, run, 0), 2)
        now[0] += 101.0
        steps(store, "daily", 0)
    now[0] += 101.0
    with opened(tmp_path, limits, lambda: now[0]) as store:
        steps(store, "monthly", 2, 3)
        assert "job monthly is unknown in" in caplog.text
