"""A connection that producers share, and parts of jobs sent over it, with a real server."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from typing import Any

import pytest

from aqueduct.api.channels import channel
from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client.connection import Client, end_step
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import IngestError, NotAllowed, RefusedRecords, TopicReplaced
from aqueduct.ingest.protocol import Answer, Committed, Open, Opened
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.server.server import IngestServer
from tests.ingest.jobbing import RUNS, ids_of, unique_ids_of
from tests.ingest.lab import Lab, RawProducer, eventually, records_channel


def client_of(lab: Lab, server: IngestServer, **options: Any) -> Client:
    return Client(server.address, trust=lab.trust, **options)


def part(client: Client, number: int = 0, run: int = 0, step: int = 1, **other: Any) -> Producer:
    scope = WriteScope("job", step, RUNS[run], number, **other)
    return Producer(client.address, "topic", scope=scope, client=client)


async def send_and_flush(producer: Producer) -> None:
    await producer.send(b"x")
    await producer.flush()


async def send(producer: Producer, values: list[bytes], begin: int = 0) -> None:
    """Send the rest of a part, and complete it."""
    await producer.send_many(values[begin:], ids=ids_of(values)[begin:])
    await producer.complete()


async def write(client: Client, values: list[bytes], number: int = 0, **other: Any) -> None:
    """Write a whole part."""
    async with part(client, number, **other) as producer:
        assert not producer.is_done
        await send(producer, values)
        assert producer.is_done


async def values_of(lab: Lab, server: IngestServer) -> Counter[bytes]:
    return Counter(row["value"] for row in await lab.rows(server))


async def test_producers_of_many_topics_share_a_connection(lab: Lab) -> None:
    async with lab.serve() as server, client_of(lab, server) as client:

        async def send_to(topic: str) -> None:
            async with Producer(client.address, topic, client=client) as producer:
                await producer.send_many([b"%d" % number for number in range(100)])

        await asyncio.gather(*(send_to(f"topic-{number % 3}") for number in range(30)))
        assert len(server._server.connections) == 1
        assert [len(await lab.rows(server, f"topic-{number}")) for number in range(3)] == [1000] * 3
        await eventually(lambda: not server._sending, "no producer sends")


async def test_a_lost_connection_is_reestablished_once_for_all_users(lab: Lab) -> None:
    async with lab.serve() as server, client_of(lab, server) as client:
        async with (
            Producer(client.address, "topic", client=client) as one,
            Producer(client.address, "topic", client=client) as other,
        ):
            for _ in range(3):
                assert client._connection is not None
                await client._connection.close()
                await one.send(b"x")
                await other.send(b"y")
                await asyncio.gather(one.flush(), other.flush())
            assert one.reconnects == other.reconnects == 3
        await eventually(lambda: len(server._server.connections) == 1, "one is left")
        assert await values_of(lab, server) == {b"x": 3, b"y": 3}


async def test_a_closed_client_fails_all_its_users(lab: Lab) -> None:
    async with lab.serve() as server:
        client = client_of(lab, server)
        producer = Producer(client.address, "topic", client=client)
        await producer.open()
        await client.close()
        with pytest.raises(IngestError, match="this client was closed"):
            await send_and_flush(producer)
        await producer.abandon()
        with pytest.raises(IngestError, match="this client was closed"):
            await client.end_step("topic", "job", 1, RUNS[0])
        with pytest.raises(ValueError, match="not to elsewhere:1"):
            Producer("elsewhere:1", "topic", client=client)


async def test_end_step_is_retried_until_the_server_is_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_PAUSE", 0.1)
    server = lab.serve()
    await server.open()
    address = server.address
    async with client_of(lab, server) as client:
        await write(client, [b"x"])
        await server.close()
        ending = asyncio.create_task(client.end_step("topic", "job", 1, RUNS[0]))
        await asyncio.sleep(0.2)
        async with lab.serve(address) as again:
            await ending
            async with part(client, run=5) as producer:
                assert producer.is_done
            assert await values_of(lab, again) == {b"x": 1}
    with pytest.raises(IngestError, match=r"could not be reached for 0.1 s"):
        await Client(address, trust=lab.trust, give_up_after=0.1).end_step("t", "j", 1, RUNS[0])


async def test_a_reconnecting_part_is_rejected_by_a_server_that_does_not_know_it(lab: Lab) -> None:
    server = lab.serve()
    await server.open()
    async with client_of(lab, server) as client:
        producer = part(client)
        await producer.open()
        await producer.send(b"stored", id=ids_of([b"stored"])[0])
        await producer.flush()
        await server.close()
        lab.directory = lab.directory / "another"
        async with lab.serve(client.address):
            with pytest.raises(TopicReplaced, match="it is missing, and the offsets belong to"):
                await send(producer, [b"the rest"])
            await producer.abandon()


async def test_a_part_is_deduplicated_when_retried_in_another_order(lab: Lab) -> None:
    values = [b"%d" % (number % 1_000) for number in range(5_000)]
    async with lab.serve() as server, client_of(lab, server) as client:
        dying = part(client)
        await dying.open()
        await dying.send_many(values[:3_000], ids=ids_of(values[:3_000]))
        await dying.flush()
        await dying.abandon()
        await write(client, values[::-1])
        assert server.metrics.duplicates == 3_000
        await write(client, values[:7], number=1)
        assert await values_of(lab, server) == Counter(values + values[:7])


async def test_single_records_are_deduplicated_by_id(lab: Lab) -> None:
    async with lab.serve() as server, client_of(lab, server) as client:
        for _ in range(2):
            async with part(client) as producer:
                for value, row_id in zip([b"a", b"a"], ids_of([b"a", b"a"]), strict=True):
                    await producer.send(value, id=row_id, key=b"k", headers={"h": b"v"})
        (row, _) = await lab.rows(server)
        assert [header["name"] for header in row["headers"]] == ["h", "aqueduct-id"]
        assert await values_of(lab, server) == {b"a": 2}


async def test_two_concurrent_attempts_store_the_rows_of_one(lab: Lab) -> None:
    values = [b"%d" % (number % 300) for number in range(20_000)]
    async with lab.serve() as server, client_of(lab, server) as client:
        async with part(client) as one, part(client) as other:
            await asyncio.gather(
                one.send_many(values, ids=ids_of(values)),
                other.send_many(values[::-1], ids=ids_of(values[::-1])),
            )
            await one.complete()
            await other.complete()
        assert await values_of(lab, server) == Counter(values)


async def test_a_replay_may_distribute_rows_over_other_parts(lab: Lab) -> None:
    values = [b"%d" % (number % 70) for number in range(1_000)]
    async with lab.serve() as server, client_of(lab, server) as client:
        await write(client, values[:400], 0)
        zombie = part(client, 1)
        await zombie.open()
        await zombie.send_many(values[400:600], ids=ids_of(values[400:600]))
        await zombie.flush()
        await write(client, values[500:], 0, run=1)
        await write(client, values[:500], 1, run=1)
        with pytest.raises(RefusedRecords, match="was superseded by run 00000002, which writes"):
            await send(zombie, values[400:], 200)
        await zombie.abandon()
        assert await values_of(lab, server) == Counter(values)


async def test_unique_ids_are_stored_once_in_a_step(lab: Lab) -> None:
    values = [b"%d" % number for number in range(100)]
    async with lab.serve() as server, client_of(lab, server) as client:
        for run, number in ((0, 0), (0, 1), (1, 0), (2, 3)):
            async with part(client, number, run, unique=True) as producer:
                await producer.send_many(values, ids=unique_ids_of(values))
                await producer.complete()
        assert await values_of(lab, server) == Counter(values)


async def test_an_attempt_of_a_complete_part_is_done_at_once(lab: Lab) -> None:
    async with lab.serve() as server, client_of(lab, server) as client:
        await write(client, [b"a"])
        async with part(client) as again:
            assert again.is_done
            await again.send_many([b"z"], ids=ids_of([b"z"]))
            await again.send(b"z", id=ids_of([b"z"])[0])
            await again.complete()
        late = part(client, 1)
        await late.open()
        await end_step(server.address, "topic", "job", 1, RUNS[0], trust=lab.trust)
        await late.send_many([b"late"], ids=ids_of([b"late"]))
        await late.close()
        for run in (0, 7):
            async with part(client, 1, run) as other:
                assert other.is_done
        await write(client, [b"b"], step=2)
        with pytest.raises(RefusedRecords, match="came after its step 2 had begun"):
            await part(client, 1).open()
        assert await values_of(lab, server) == {b"a": 1, b"b": 1}


async def test_jobs_and_ordinary_producers_write_side_by_side(lab: Lab) -> None:
    values = [b"%d" % number for number in range(10_000)]
    async with lab.serve() as server, client_of(lab, server) as client:

        async def plainly(name: str) -> None:
            async with lab.producer(server, producer_id=name) as producer:
                await producer.send_many(values, keys=values)
                for value in values[:100]:
                    await producer.send(value)

        await asyncio.gather(
            plainly("one"), plainly("two"), write(client, values, 0), write(client, values, 1)
        )
        stored = await values_of(lab, server)
        assert stored == Counter(4 * values + 2 * values[:100])
        async with lab.producer(server, producer_id="one") as producer:
            assert producer.committed == 10_100
        with pytest.raises(RefusedRecords, match="belongs to a job"):
            await lab.producer(server, producer_id="job.1.00000001.0").open()


async def test_a_group_that_fails_fails_the_attempt_and_the_next_one_stores_the_rest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    values = [b"%d" % (number % 50) for number in range(1_000)]
    async with lab.serve() as server, client_of(lab, server) as client:
        dying = part(client)
        await dying.open()
        await dying.send_many(values[:100], ids=ids_of(values[:100]))
        await dying.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            with pytest.raises(IngestError, match="nothing of these records was stored"):
                await send(dying, values, 100)
        await dying.abandon()
        await write(client, values)
        assert await values_of(lab, server) == Counter(values)


async def test_ending_a_step_requires_write_permission(lab: Lab) -> None:
    permissions = Permissions({"a token of a reader": Grant(read=["*"])})
    async with lab.serve(permissions=permissions) as server:
        async with client_of(lab, server, token="a token of a reader") as client:
            with pytest.raises(NotAllowed, match="may not write to topic 'topic'"):
                await part(client).open()
            with pytest.raises(NotAllowed, match="may not write to topic 'topic'"):
                await client.end_step("topic", "job", 1, RUNS[0])
        assert not (lab.directory / "topic").exists()


async def test_invalid_ids_are_rejected_by_the_producer(lab: Lab) -> None:
    good = ids_of([b"x"])
    async with lab.serve() as server, client_of(lab, server) as client:
        async with part(client) as producer:
            with pytest.raises(IngestError, match="an id is 20 bytes, not b'short'"):
                await producer.send_many([b"x"], ids=[b"short"])
            with pytest.raises(IngestError, match="an id is 20 bytes, not b'short'"):
                await producer.send(b"x", id=b"short")
            with pytest.raises(IngestError, match="sends records with ids"):
                await producer.send(b"x")
            with pytest.raises(IngestError, match="sends records with ids"):
                await producer.send_many([b"x"])
            with pytest.raises(ValueError, match="1 ids for 2 values"):
                await producer.send_many([b"x", b"y"], ids=good)
            with pytest.raises(IngestError, match="does not learn where records are"):
                await producer.send_and_wait(b"x")
        async with lab.producer(server) as plain:
            with pytest.raises(IngestError, match="ids of records are for producers with scope"):
                await plain.send(b"x", id=good[0])
            with pytest.raises(IngestError, match="ids of records are for producers with scope"):
                await plain.send_many([b"x"], ids=good)
            with pytest.raises(IngestError, match="only a producer with scope"):
                await plain.complete()
        scope = WriteScope("a/b", 1, RUNS[0], 0)
        with pytest.raises(RefusedRecords, match="cannot be the name of a job"):
            await Producer(client.address, "topic", scope=scope, client=client).open()
        with pytest.raises(RefusedRecords, match="steps are numbered"):
            part(client, step=-1)
        with pytest.raises(ValueError, match="derives its producer_id from the scope"):
            lab.producer(server, producer_id="x", scope=WriteScope("job", 1, RUNS[0], 0))
        assert not await lab.rows(server)


@pytest.mark.parametrize(
    ("scope", "records", "sentence"),
    [
        (
            None,
            RecordColumns(1, [b"x"], [0], ids=bytes(20)),
            "row ids are only valid for a producer with a scope",
        ),
        (
            None,
            RecordColumns(1, [], [], is_last=True),
            "row ids are only valid for a producer with a scope",
        ),
        (
            WriteScope("job", 1, RUNS[0], 0),
            RecordColumns(1, [b"x"], [0]),
            "1 rows of a job have 0 bytes",
        ),
        (
            WriteScope("job", 1, RUNS[0], 0),
            RecordColumns(1, [b"x"], [0], ids=bytes(21)),
            "1 rows of a job have 21 bytes of ids, not 20 for each",
        ),
    ],
)
async def test_messages_with_invalid_ids_are_rejected(
    lab: Lab, scope: WriteScope | None, records: RecordColumns, sentence: str
) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        sender, incoming = records_channel()
        outgoing, answers = channel(Answer)
        await connection.entrypoint.send(Open("topic", "raw", incoming, outgoing, scope=scope))
        raw = RawProducer(sender, answers)
        await raw.opened()
        await raw.records.send(records)
        assert sentence in (await raw.refused()).reason
        raw.leave()


async def test_an_invalid_scope_is_also_rejected_by_the_server(lab: Lab) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        for scope in (
            WriteScope("job", -1, RUNS[0], 0),
            WriteScope("job", 1, "?", 0),
            WriteScope("", 1, RUNS[0], 0),
        ):
            sender, incoming = records_channel()
            outgoing, answers = channel(Answer)
            await connection.entrypoint.send(Open("topic", "", incoming, outgoing, scope=scope))
            raw = RawProducer(sender, answers)
            assert (await raw.refused()).code == "refused"
            raw.leave()


async def test_an_answer_counts_the_duplicates(lab: Lab) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        sender, incoming = records_channel()
        outgoing, answers = channel(Answer)
        scope = WriteScope("job", 1, RUNS[0], 0)
        await connection.entrypoint.send(Open("topic", "", incoming, outgoing, scope=scope))
        opened = await answers.receive()
        assert isinstance(opened, Opened)
        assert (opened.partitions, opened.committed, opened.is_done) == (4, 0, False)
        assert opened.topic_id == server.topics()[0].id != ""
        ids = ids_of([b"1", b"2", b"3"])
        for values, sent in (([b"2"], ids[1:2]), ([b"1", b"2", b"3"], ids)):
            message = RecordColumns(1, values, [0] * len(values), partition=0, ids=b"".join(sent))
            await sender.send(message)
        assert await answers.receive() == Committed(1, 1, {0: 0})
        assert await answers.receive() == Committed(1, 3, {0: 1}, skipped=1)
        sender.cancel()
        answers.close()
