"""`send_many`: checks columns, splits them into batches, and stores the same rows as `send`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.ingest.client.outbox import BATCH_BYTES, BATCH_RECORDS
from aqueduct.ingest.client.sending import OVERHEAD, PIECE, batches, checked
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import IngestError
from tests.ingest.jobbing import RUNS, ids_of
from tests.ingest.lab import Lab


@given(st.lists(st.integers(0, 100_000), max_size=40), st.integers(0, 3_000))
def test_batches_hold_all_records_in_order_and_are_never_large(sizes: list[int], more: int) -> None:
    values = [bytes(size) for size in sizes] + [b"%d" % number for number in range(more)]
    pieces = checked(values, keys=[b"k"] * len(values), max_record=1_000_000, wants_ids=False)
    made = [batch for piece, record_sizes in pieces for batch in batches(piece, record_sizes, 3)]
    assert [value for batch in made for value in batch.columns.values] == values
    for batch in made:
        columns = batch.columns
        assert columns.partition == 3
        assert len(columns.values) <= BATCH_RECORDS
        assert len(columns.values) == len(columns.timestamps) == len(columns.keys or [])
        assert batch.size == sum(len(value) + 1 + OVERHEAD for value in columns.values)
        assert batch.size <= BATCH_BYTES or len(columns.values) == 1


def test_many_records_are_checked_in_pieces() -> None:
    values = [b"%d" % number for number in range(2 * PIECE + 1)]
    ids, times = ids_of(values), [1.0] * len(values)
    made = checked(values, ids, timestamps=times, max_record=100, wants_ids=True)
    pieces = [piece for piece, _ in made]
    assert [len(piece.values) for piece in pieces] == [PIECE, PIECE, 1]
    assert [value for piece in pieces for value in piece.values] == values
    assert b"".join(piece.ids or b"" for piece in pieces) == b"".join(ids)
    assert [len(piece.timestamps) for piece in pieces] == [PIECE, PIECE, 1]


async def test_columns_are_stored_as_if_sent_one_by_one(lab: Lab) -> None:
    values = [b"%d" % number for number in range(5_000)]
    keys = [None if number % 3 else b"%d" % (number % 7) for number in range(5_000)]
    headers = [{"n": b"%d" % number} if number % 2 else None for number in range(5_000)]
    times = [number + 0.000_001 * (number % 1_000) for number in range(5_000)]
    async with lab.serve() as server:
        async with lab.producer(server, "many") as producer:
            await producer.send(b"first")
            await producer.send_many(values, keys=keys, headers=headers, timestamps=times)
            await producer.send(b"last")
            await producer.send_many([b"there"] * 3, partition=2)
            await producer.send_many([])
            await producer.flush()
            assert producer.committed == 5_005
        async with lab.producer(server, "single") as producer:
            await producer.send(b"first")
            for at, value in enumerate(values):
                await producer.send(value, key=keys[at], headers=headers[at], timestamp=times[at])
            await producer.send(b"last")
            for _ in range(3):
                await producer.send(b"there", partition=2)
        many, single = await lab.rows(server, "many"), await lab.rows(server, "single")
    shown = ("partition", "offset", "key", "value", "producer_sequence")
    for one, other in zip(many, single, strict=True):
        assert [one[name] for name in shown] == [other[name] for name in shown]
        assert (one["headers"] or []) == (other["headers"] or [])
        if one["value"].isdigit():
            assert one["timestamp"] == other["timestamp"]
            number = int(one["value"])
            assert one["timestamp"].microsecond == number % 1_000


async def test_columns_and_single_records_keep_their_order(lab: Lab) -> None:
    async with lab.serve() as server:
        async with lab.producer(server, max_buffered=100_000) as producer:

            async def one_by_one(name: bytes) -> None:
                for number in range(500):
                    await producer.send(b"%s %d" % (name, number), partition=0)

            async def many(name: bytes) -> None:
                values = [b"%s %d" % (name, number) for number in range(5_000)]
                await producer.send_many(values, partition=0)

            await asyncio.gather(one_by_one(b"a"), many(b"b"), one_by_one(b"c"), many(b"d"))
        rows = await lab.rows(server)
    assert [row["producer_sequence"] for row in rows] == list(range(1, 11_001))
    for name, count in ((b"a", 500), (b"b", 5_000), (b"c", 500), (b"d", 5_000)):
        found = [row["value"] for row in rows if row["value"].startswith(name)]
        assert found == [b"%s %d" % (name, number) for number in range(count)]


@pytest.mark.parametrize(
    ("columns", "error", "sentence"),
    [
        ({"values": [b"x", "y"]}, TypeError, "a record is bytes, not str"),
        ({"values": [b"x"], "keys": ["k"]}, TypeError, "a key is bytes, not str"),
        ({"values": [b"x"], "keys": []}, ValueError, "0 keys for 1 values"),
        ({"values": [b"x"], "headers": [{"a": "b"}]}, TypeError, "header 'a' is bytes, not str"),
        ({"values": [b"x"], "timestamps": ["now"]}, TypeError, "a timestamp is seconds since"),
        ({"values": [b"x"], "timestamps": [1e15]}, IngestError, "outside of the years"),
        ({"values": [b"x"], "timestamps": [None]}, TypeError, "a timestamp is seconds since"),
        ({"values": [b"x"], "partition": 4}, IngestError, "has partitions 0 to 3"),
        ({"values": [b"", bytes(1_001)]}, IngestError, "a record of 1,001 bytes; the server"),
        ({"values": [b""], "keys": [bytes(1_001)]}, IngestError, "a record of 1,001 bytes"),
    ],
)
async def test_invalid_columns_are_rejected(
    lab: Lab, columns: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    async with lab.serve(max_record=1_000) as server:
        async with lab.producer(server) as producer:
            await producer.send(b"good")
            with pytest.raises(error, match=sentence):
                await producer.send_many(**columns)
        assert [row["value"] for row in await lab.rows(server)] == [b"good"]


async def test_columns_of_a_job_are_checked_as_others_are(lab: Lab) -> None:
    async with lab.serve() as server:
        scope = WriteScope("job", 1, RUNS[0], 0)
        async with lab.producer(server, scope=scope) as producer:
            with pytest.raises(IngestError, match="an id is 20 bytes, not 'xxxx"):
                await producer.send_many([b"x"], ids=["x" * 20])  # type: ignore[list-item]
            with pytest.raises(IngestError, match="sends records with ids"):
                await producer.send_many([b"x"], ids=[None])  # type: ignore[list-item]
