"""Producers with one id, one after the other: the next goes on behind all that the others sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aqueduct.ingest.faults import RefusedRecords
from aqueduct.ingest.messages import Records
from aqueduct.ingest.places import Places
from tests.ingest.lab import Lab, RawProducer, eventually

LARGE = bytes(1_000)


async def values(lab: Lab, server: Any) -> list[bytes]:
    rows = await lab.rows(server)
    return [row["value"] for row in sorted(rows, key=lambda row: row["producer_sequence"])]


async def test_what_waits_of_a_producer_that_is_gone_counts_for_the_next(
    lab: Lab, held: Any
) -> None:
    async with lab.serve(group_size=100, partitions=1) as server:
        async with lab.connect(server) as connection:
            raw = await RawProducer.open(connection.entrypoint, producer_id="one")
            await raw.opened()
            held.hold(server)
            for sequence in range(1, 31):
                await raw.records.send(Records(sequence, [LARGE], [0]))
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
        await eventually(lambda: not len(server._places), "nothing is left")


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


async def test_a_producer_that_gives_up_waiting_lets_the_next_wait_for_all_before(
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


def test_a_place_is_there_for_as_long_as_it_is_used() -> None:
    places = Places()
    with places.entered("t", "a") as one:
        with places.entered("t", "a") as same, places.entered("u", "b"):
            assert one is same
            assert (places.ids("t"), places.ids("u")) == ({"a"}, {"b"})
        assert places.ids("t") == {"a"}
    assert not len(places)
