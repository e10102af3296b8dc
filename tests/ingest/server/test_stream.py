"""Limits on the messages of one producer, so that others are served meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from aqueduct.ingest.protocol import MAX_HEADERS, MAX_RECORDS, Committed
from aqueduct.ingest.records import RecordColumns
from tests.ingest.lab import Lab, RawProducer, eventually

MANY = MAX_RECORDS + 1


@pytest.mark.parametrize(
    "records",
    [
        RecordColumns(1, [b""] * MANY, [0] * MANY),
        RecordColumns(1, [b""], [0], headers=[[("", b"")] * (MAX_HEADERS + 1)]),
    ],
)
async def test_a_message_with_too_many_records_or_headers_is_rejected(
    lab: Lab, records: RecordColumns
) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        raw = await RawProducer.open(connection.entrypoint)
        await raw.opened()
        await raw.records.send(records)
        assert "`array` of length <= " in (await raw.refused()).reason
        raw.leave()


def test_the_largest_message_can_be_read() -> None:
    records = RecordColumns(
        1, [b""] * MAX_RECORDS, [0] * MAX_RECORDS, headers=[[("", b"")] * MAX_HEADERS]
    )
    data = msgspec.msgpack.encode(records)
    assert msgspec.msgpack.decode(data, type=RecordColumns) == records


async def test_a_message_is_not_received_while_there_is_no_room(lab: Lab, held: Any) -> None:
    serving = lab.serve(max_waiting=10_000, max_record=10_000)
    async with serving as server, lab.connect(server) as connection:
        raws = []
        for name in ("one", "two"):
            raw = await RawProducer.open(connection.entrypoint, producer_id=name)
            await raw.opened()
            raws.append(raw)
        first, second = raws
        held.hold(server)
        await first.records.send(RecordColumns(1, [bytes(10_000)], [0]))
        await eventually(lambda: server._committer._held >= 10_000, "there is no room")
        await second.records.send(RecordColumns(1, [b"x"], [0]))
        await second.records.send(RecordColumns(2, [b"x"], [0]))
        await asyncio.sleep(0.05)
        assert server._committer._held < 10_100
        held.release()
        assert isinstance(await first.answers.receive(), Committed)
        for _ in range(2):
            assert isinstance(await second.answers.receive(), Committed)
        for raw in raws:
            raw.leave()
