"""Unacknowledged records: their partitions, and the receipts of callers that wait."""

from __future__ import annotations

import asyncio

from aqueduct.ingest.client.outbox import Batch, Outbox, Stored
from aqueduct.ingest.partitioning import partition_of
from aqueduct.ingest.records import RecordColumns


def filled(*partitions: int | None) -> Batch:
    batch = Batch(RecordColumns(1, [], [], partition=partitions[0]))
    for number, partition in enumerate(partitions, 1):
        batch.add(b"value", 0, b"%d" % number, None, partition, 4)
    return batch


def test_partitions_are_listed_only_if_they_differ() -> None:
    keyed = [partition_of(b"%d" % number, number, 4) for number in (1, 2, 3)]
    for partitions, one, each in (
        ((None, None), None, None),
        ((2, 2, 2), 2, None),
        ((2, 2, 3), None, [2, 2, 3]),
        ((2, None, 2), None, [2, keyed[1], 2]),
        ((None, None, 1), None, [*keyed[:2], 1]),
    ):
        message = filled(*partitions).columns
        assert (message.partition, message.partitions) == (one, each)


async def test_a_receipt_of_a_duplicate_has_no_offset() -> None:
    batch = Batch(RecordColumns(1, [b"1", b"2", b"3"], [0, 0, 0]))
    receipts = [asyncio.get_running_loop().create_future() for _ in range(3)]
    batch.receipts = dict(enumerate(receipts))
    batch.settle({0: 7}, 2, 1)
    assert [receipt.result() for receipt in receipts] == [
        Stored(0, None),
        Stored(0, None),
        Stored(0, 7),
    ]


async def test_the_end_of_a_part_without_rows_is_sent_again_after_a_reconnect() -> None:
    outbox = Outbox(1_000_000)
    outbox.begin(0)
    batch = Batch(RecordColumns(0, [], [], is_last=True))
    batch.completion = asyncio.get_running_loop().create_future()
    outbox.append(batch)
    assert (await outbox.next_batch()).is_last
    outbox.resend(0, is_done=False)
    assert not batch.completion.done()
    assert (await outbox.next_batch()).is_last
    outbox.resend(0, is_done=True)
    assert batch.completion.done()
