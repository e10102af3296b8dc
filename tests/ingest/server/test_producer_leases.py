"""Successive producers with one id: each continues after the records of its predecessors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.errors import RefusedRecords
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.producer_leases import ProducerLeases
from aqueduct.ingest.server.server import IngestServer
from tests.ingest.lab import Lab, RawProducer, eventually
from tests.ingest.storing import opened, rolled, spread, submit

LARGE = bytes(1_000)


async def values(lab: Lab, server: Any) -> list[bytes]:
    rows = await lab.rows(server)
    return [row["value"] for row in sorted(rows, key=lambda row: row["producer_sequence"])]


async def test_pending_records_of_a_closed_producer_delay_the_next_one(lab: Lab, held: Any) -> None:
    async with lab.serve(group_size=100, partitions=1) as server:
        async with lab.connect(server) as connection:
            raw = await RawProducer.open(connection.entrypoint, producer_id="one")
            await raw.opened()
            held.hold(server)
            for sequence in range(1, 31):
                await raw.records.send(RecordColumns(sequence, [LARGE], [0]))
            await eventually(lambda: server._committer._held > 30_000, "all of it waits")
            raw.leave()
        next_one = lab.producer(server, producer_id="one")
        opening = asyncio.create_task(next_one.open())
        await asyncio.sleep(0.1)
        assert not opening.done()
        held.release()
        await opening
        assert next_one.committed == 30
        await next_one.send(b"31")
        await next_one.close()
        assert await values(lab, server) == [*[LARGE] * 30, b"31"]
        await eventually(lambda: not len(server._leases), "nothing is left")


async def test_a_cancelled_producer_leaves_its_pending_records(lab: Lab, held: Any) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        raw = await RawProducer.open(connection.entrypoint)
        await raw.opened()
        (lease,) = server._leases._leases.values()
        held.hold(server)
        await raw.records.send(RecordColumns(1, [b"x"], [0]))
        await eventually(lambda: lease.stream and not lease.stream.is_settled, "it is under way")
        await asyncio.sleep(0.05)
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == "IngestServer._serve":  # type: ignore[union-attr]
                task.cancel()
                await asyncio.wait((task,))
        assert lease.stream
        assert not lease.stream.is_settled
        held.release()
        await eventually(lambda: not len(server._leases), "it is stored, and nothing is left")
        assert server.metrics.records == 1
        raw.leave()


async def test_a_third_producer_waits_for_the_first_although_the_second_does(
    lab: Lab, held: Any
) -> None:
    async with lab.serve(partitions=1) as server:
        first, second, third = (lab.producer(server, producer_id="one") for _ in range(3))
        await first.open()
        held.hold(server)
        await first.send(b"1 of the first")
        await eventually(lambda: server._committer._held, "it is under way")
        opening = []
        for each in (second, third):
            opening.append(asyncio.create_task(each.open()))
            await asyncio.sleep(0.1)
        assert not any(task.done() for task in opening)
        held.release()
        await asyncio.gather(*opening)
        assert third.committed == 1
        await third.send(b"2 of the third")
        await third.close()
        for gone in (first, second):
            with pytest.raises(RefusedRecords, match="another producer was opened with the id"):
                await gone.send_and_wait(b"never")
            await gone.abandon()
        assert await values(lab, server) == [b"1 of the first", b"2 of the third"]


async def test_a_producer_that_stops_waiting_passes_its_predecessors_to_the_next(
    lab: Lab, held: Any
) -> None:
    async with lab.serve(partitions=1) as server:
        first, second, third = (lab.producer(server, producer_id="one") for _ in range(3))
        await first.open()
        held.hold(server)
        await first.send(b"1 of the first")
        await eventually(lambda: server._committer._held, "it is under way")
        opening = asyncio.create_task(second.open())
        await asyncio.sleep(0.1)
        opening.cancel()
        await asyncio.wait((opening,))
        await second.abandon()
        waiting = asyncio.create_task(third.open())
        await asyncio.sleep(0.1)
        held.release()
        await waiting
        assert third.committed == 1
        await third.close()
        await first.abandon()


async def lose(server: IngestServer, producer: Producer) -> None:
    """Make a producer lose its connection and fail to reconnect."""
    producer._address = "127.0.0.1:1"
    stream = server._leases._leases[producer.topic, producer.producer_id].stream
    assert stream is not None
    stream._answers.cancel()
    await eventually(lambda: producer.reconnects, "it is lost")


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_reconnecting_producer_that_was_superseded_learns_that_records_may_be_lost(
    lab: Lab, restarted: bool
) -> None:
    server = lab.serve(partitions=1)
    await server.open()
    address = server.address
    old = lab.producer(server, producer_id="one")
    await old.open()
    await old.send_and_wait(b"1 of the old")
    await lose(server, old)
    for number in (2, 3):
        await old.send(b"%d of the old" % number)
    new = lab.producer(server, producer_id="one")
    await new.open()
    for number in range(2, 6):
        await new.send_and_wait(b"%d of the new" % number)
    if restarted:
        await server.close()
        server = lab.serve(address)
        await server.open()
    old._address = address
    with pytest.raises(RefusedRecords, match="records that were not flushed may not be stored"):
        await old.flush()
    await new.send_and_wait(b"6 of the new")
    await new.close()
    await old.abandon()
    assert await values(lab, server) == [
        b"1 of the old",
        *(b"%d of the new" % number for number in range(2, 7)),
    ]
    await server.close()


async def test_a_producer_without_stored_records_continues_after_a_restart(lab: Lab) -> None:
    server = lab.serve(partitions=1)
    await server.open()
    address = server.address
    async with lab.producer(server, producer_id="one") as old:
        await old.send(b"1 of the old")
    new = lab.producer(server, producer_id="one")
    await new.open()
    await server.close()
    await new.send(b"2 of the new")
    async with lab.serve(address) as again:
        await new.close()
        assert await values(lab, again) == [b"1 of the old", b"2 of the new"]


async def test_a_producer_that_is_open_is_not_forgotten(lab: Lab) -> None:
    async with lab.serve(max_producers=2, producer_memory=0.0) as server:
        async with lab.producer(server, producer_id="idle") as idle:
            await idle.send_and_wait(b"x")
            for number in range(3):
                async with lab.producer(server, producer_id=f"p{number}") as other:
                    await other.send(b"x")
            assert (await idle.send_and_wait(b"y")).offset is not None
        assert server._store.topics["topic"].producers["idle"][0] == 2


@pytest.mark.parametrize("as_segments", [False, True])
def test_the_instance_that_stored_last_is_known_after_a_restart(
    tmp_path: Path, as_segments: bool
) -> None:
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", None)
        for instance, first in (("old", 1), ("new", 11)):
            store.register(topic, "p", instance)
            submit(store, topic, ("p", spread(first, 10)))
        if as_segments:
            rolled(store)
    with opened(tmp_path) as store:
        topic = store.topics["t"]
        for instance, committed in (("new", 10), ("new", 20), ("old", 20)):
            topic.check_owner("p", instance, committed)
        with pytest.raises(RefusedRecords, match="another producer was opened with the id 'p'"):
            topic.check_owner("p", "old", 10)
        store.register(topic, "p", "newest")
        with pytest.raises(RefusedRecords, match="another producer was opened with the id 'p'"):
            topic.check_owner("p", "new", 20)
        topic.forget_producers(2**62, keep={"p"})
        assert topic.instances == {"p": "new"}
        topic.forget_producers(2**62)
        assert (topic.producers, topic.instances, topic.owners) == ({}, {}, {})


def test_a_lease_exists_while_it_is_used() -> None:
    leases = ProducerLeases()
    with leases.acquired("t", "a") as one:
        with leases.acquired("t", "a") as same, leases.acquired("u", "b"):
            assert one is same
            assert (leases.ids("t"), leases.ids("u")) == ({"a"}, {"b"})
        assert leases.ids("t") == {"a"}
    assert not len(leases)
