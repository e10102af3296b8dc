"""The server: bounded memory and clear errors, and hostile clients do not affect others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections import namedtuple
from typing import Any

import pytest

from aqueduct.api.channels import channel, oneshot
from aqueduct.api.client import connect
from aqueduct.api.handles import Receiver, Sender
from aqueduct.api.server import Refuse
from aqueduct.errors import ChannelError, ConnectError, EndOfChannel
from aqueduct.ingest.client.connection import FATAL
from aqueduct.ingest.dedup.jobs import RECALLERS
from aqueduct.ingest.dedup.recollection import Recollection
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import DiskLow, IngestError
from aqueduct.ingest.protocol import (
    Advance,
    Answer,
    Committed,
    Done,
    EndStep,
    Fetch,
    Listing,
    Offsets,
    Open,
    Refusal,
    Request,
    TopicInfo,
    Topics,
)
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server import token_throttle
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.server.reading import Reading
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.token_throttle import FREE, TokenThrottle
from aqueduct.ingest.server.topic import Topic
from tests.ingest.lab import Lab, RawProducer, eventually, records_channel

HUGE = 2**63


async def check_that_others_are_served(lab: Lab, server: IngestServer) -> None:
    """Write and read one record in another topic."""
    async with lab.producer(server, "other") as producer:
        offset = (await producer.send_and_wait(b"fine", partition=0)).offset
    assert offset is not None
    async with asyncio.timeout(10), lab.reader(server) as reader:
        reading = reader.read("other", 0, offset, offset + 1)
        rows = [row async for batch in reading for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"fine"]


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (RecordColumns(0, [b"x"], [0]), "sequence numbers begin at 1, not at 0"),
        (RecordColumns(-5, [b"x"], [0]), "sequence numbers begin at 1, not at -5"),
        (RecordColumns(2, [b"x"], [0]), "record 2 of producer 'raw' came after 0"),
        (RecordColumns(2**62, [b"x"], [0]), f"record {2**62} of producer 'raw' came after 0"),
        (RecordColumns(2**62 + 1, [b"x"], [0]), f"sequence number {2**62 + 1} exceeds {2**62}"),
        (RecordColumns(HUGE, [b"x"], [0]), f"sequence number {HUGE} exceeds {2**62}"),
        (RecordColumns(1, [b"x", b"y"], [0]), "columns of records are not all of the same length"),
        (RecordColumns(1, [b"x"], [0], []), "columns of records are not all of the same length"),
        (
            RecordColumns(1, [b"x"], [0], None, [[], []]),
            "columns of records are not all of the same",
        ),
        (RecordColumns(1, [b"x"], [0], partition=4), "there is no partition 4; there are 4"),
        (RecordColumns(1, [b"x"], [0], partition=-1), "there is no partition -1; there are 4"),
        (RecordColumns(1, [b"x"], [0], partitions=[4]), "there is no partition 4; there are 4"),
        (RecordColumns(1, [b"x"], [0], partitions=[-1]), "there is no partition -1; there are 4"),
        (
            RecordColumns(1, [b"x"], [0], partitions=[]),
            "columns of records are not all of the same",
        ),
        (RecordColumns(1, [b"x"], [0], None, None, 1, [1]), "to one partition, or each to its own"),
        (
            RecordColumns(1, [b"x"], [HUGE]),
            "record 1 has a timestamp outside of the years 1 to 9999",
        ),
        (
            RecordColumns(1, [b"x"], [-HUGE]),
            "record 1 has a timestamp outside of the years 1 to 9999",
        ),
        (
            RecordColumns(1, [b"", bytes(1001)], [0, 0]),
            r"record 2 has 1,001 bytes, more than 1,000",
        ),
        (RecordColumns(1, [b"x"], [0], [bytes(1000)]), r"record 1 has 1,001 bytes"),
        (RecordColumns(1, [b"x"], [0], None, [[("n", bytes(999))]]), r"record 1 has 1,001 bytes"),
        ("no records", "not a valid message of records"),
        ([1, [b"x"], ["today"]], "not a valid message of records"),
    ],
)
async def test_invalid_records_are_refused_and_other_producers_continue(
    lab: Lab, records: Any, sentence: str
) -> None:
    async with lab.serve(max_record=1_000) as server, lab.connect(server) as connection:
        good = await RawProducer.open(connection.entrypoint, producer_id="good")
        await good.opened()
        await good.records.send(RecordColumns(1, [b"1"], [0]))
        bad = await open_anything(connection.entrypoint, producer_id="raw")
        await bad.opened()
        await bad.records.send(records)
        refusal = await bad.refused()
        assert refusal.code == "refused"
        assert sentence in refusal.reason
        await good.records.send(RecordColumns(2, [b"2"], [0]))
        answers = [await good.answers.receive() for _ in range(2)]
        assert [type(answer) for answer in answers] == [Committed] * 2
        good.leave()
        bad.leave()
        assert sorted(row["value"] for row in await lab.rows(server)) == [b"1", b"2"]


async def test_a_poison_pill_in_a_group_is_refused_and_the_others_are_stored(
    lab: Lab, held: Any
) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        good = await RawProducer.open(connection.entrypoint, producer_id="good")
        await good.opened()
        records, incoming = records_channel()
        outgoing, answers = channel(Answer)
        scope = WriteScope("job", 0, "0" * 32, 0)
        await connection.entrypoint.send(Open("topic", "", incoming, outgoing, scope=scope))
        bad = RawProducer(records, answers)
        await bad.opened()
        held.hold(server)
        await good.records.send(RecordColumns(1, [b"1"], [0]))
        pill = RecordColumns(2**63 - 1, [b"x", b"y"], [0, 0], ids=bytes(20) + bytes(19) + b"1")
        await bad.records.send(pill)
        await good.records.send(RecordColumns(2, [b"2"], [0]))
        await asyncio.sleep(0.05)
        held.release()
        assert f"exceeds {2**62}" in (await bad.refused()).reason
        answered = [await good.answers.receive() for _ in range(2)]
        assert [type(answer) for answer in answered] == [Committed] * 2
        good.leave()
        bad.leave()
        assert sorted(row["value"] for row in await lab.rows(server)) == [b"1", b"2"]


EXTREMES = (-(2**63), -1, 0, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1)


@pytest.mark.parametrize("number", EXTREMES)
async def test_every_integer_of_a_request_is_bounded_where_it_enters(
    lab: Lab, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab.serve(partitions=1) as server:
        async with lab.producer(server) as producer:
            await producer.send(b"x")
        await server._in_writer(server._store.rotate_old, True)
        await server._in(server._upkeep, server._store.roll)  # times are looked up in a segment
        async with lab.connect(server) as connection:
            sending: list[Sender[Any]] = []

            def opened(**more: Any) -> tuple[Any, Receiver[Any]]:
                records, incoming = records_channel()
                sending.append(records)
                outgoing, answers = channel(Answer)
                return Open("topic", "raw", incoming, outgoing, **more), answers

            def asked(kind: Any, *fields: Any) -> tuple[Any, Receiver[Any]]:
                reply, answer = oneshot(Any)
                return kind(*fields, reply), answer

            rows, taken = channel(bytes)
            for request, answer in (
                opened(partitions=number),
                opened(resume_after=number),
                opened(scope=WriteScope("job", number, "0" * 32, 0)),
                opened(scope=WriteScope("job", 0, "0" * 32, number)),
                asked(Offsets, "topic", number),
                asked(Fetch, "topic", number, number, number, rows),
                asked(Advance, "topic", "reader", {number: number}),
                asked(Advance, "topic", "reader", {0: number}),
                asked(EndStep, "topic", "job2", number, "0" * 32),
            ):
                await connection.entrypoint.send(request)
                async with asyncio.timeout(10):
                    await answer.receive()  # any answer will do
                answer.close()
            taken.close()
            for records in sending:
                records.cancel()
        await check_that_others_are_served(lab, server)
    assert "Traceback" not in caplog.text
    assert "failed" not in caplog.text


async def open_anything(entrypoint: Sender[Any], producer_id: str) -> RawProducer:
    """Open a producer that may send anything."""
    records, incoming = records_channel(Any)
    outgoing, answers = channel(Answer)
    request = Open("topic", producer_id, incoming, outgoing)
    await entrypoint.send(request)
    return RawProducer(records, answers)


async def test_a_message_without_records_is_answered(lab: Lab) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        raw = await RawProducer.open(connection.entrypoint)
        await raw.opened()
        await raw.records.send(RecordColumns(1, [], []))
        assert await raw.answers.receive() == Committed(1, 0, {})
        await raw.records.send(RecordColumns(1, [b"x"], [0]))
        assert await raw.answers.receive() == Committed(1, 1, {0: 0})
        raw.leave()


async def test_retransmitted_records_are_acknowledged_and_not_stored_again(lab: Lab) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        raw = await RawProducer.open(connection.entrypoint)
        await raw.opened()
        for values in ([b"1", b"2"], [b"1", b"2"], [b"1", b"2", b"3"]):
            await raw.records.send(RecordColumns(1, values, [0] * len(values), partition=2))
        answers = [await raw.answers.receive() for _ in range(3)]
        raw.leave()
        assert answers == [
            Committed(1, 2, {2: 0}),
            Committed(1, 2, {}, skipped=2),
            Committed(1, 3, {2: 2}, skipped=2),
        ]
        assert [row["value"] for row in await lab.rows(server)] == [b"1", b"2", b"3"]
        assert (server.metrics.records, server.metrics.duplicates) == (3, 4)


async def test_a_refusal_is_the_last_answer(lab: Lab) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        raw = await RawProducer.open(connection.entrypoint)
        await raw.opened()
        for sequence in (1, 3, 2):  # two is missing, and arrives too late
            await raw.records.send(RecordColumns(sequence, [b"%d" % sequence], [0]))
        assert isinstance(await raw.answers.receive(), Committed)
        assert "the records between were not sent" in (await raw.refused()).reason
        with pytest.raises(EndOfChannel):
            await raw.answers.receive()
        raw.leave()


async def test_one_connection_cannot_use_all_streams(lab: Lab) -> None:
    async with lab.serve(max_connection_streams=20) as server, lab.connect(server) as connection:
        raws = [
            await RawProducer.open(connection.entrypoint, producer_id=f"p{number}")
            for number in range(2_000)
        ]
        answers = [await raw.answers.receive() for raw in raws]
        refused = [answer for answer in answers if isinstance(answer, Refusal)]
        assert len(refused) == 1_980
        assert "20 producers send over this connection already" in refused[0].reason
        await check_that_others_are_served(lab, server)
        for raw in raws:
            raw.leave()
        await eventually(lambda: not server._sending, "all have left")
        assert not len(server._leases)


async def test_a_producer_that_never_reads_answers_does_not_block_others(lab: Lab) -> None:
    async with lab.serve(max_waiting=2**20) as server, lab.connect(server) as connection:
        raw = await RawProducer.open(connection.entrypoint)

        async def send() -> None:
            for sequence in range(1, 200_000):
                await raw.records.send(RecordColumns(sequence, [b"x"], [0]))

        sending = asyncio.create_task(send())
        await asyncio.sleep(0.5)
        await check_that_others_are_served(lab, server)
        sending.cancel()
        raw.leave()
    assert not server._sending


async def test_vanished_producers_leave_nothing_behind(lab: Lab, held: Any) -> None:
    async with lab.serve() as server:
        async with lab.connect(server) as connection:
            raws = [
                await RawProducer.open(connection.entrypoint, producer_id=f"p{number}")
                for number in range(10)
            ]
            for raw in raws:
                await raw.opened()
            held.hold(server)
            for raw in raws:
                for sequence in range(1, 101):  # more than may wait
                    await raw.records.send(RecordColumns(sequence, [b"x"], [0]))
            await asyncio.sleep(0.1)
            for raw in raws:
                raw.leave()
        held.release()
        await eventually(lambda: not server._sending, "no producer sends")
        await eventually(lambda: not server._committer._held, "nothing waits")
        rows = await lab.rows(server)
        for raw_id in {row["producer_id"] for row in rows}:
            numbers = [row["producer_sequence"] for row in rows if row["producer_id"] == raw_id]
            assert numbers == list(range(1, len(numbers) + 1))


async def test_the_server_holds_no_more_than_max_waiting(lab: Lab, held: Any) -> None:
    limit = 200_000
    async with lab.serve(max_waiting=limit, max_record=100_000) as server:
        async with lab.connect(server) as connection:
            held.hold(server)
            raws = []
            for number in range(20):
                raw = await RawProducer.open(connection.entrypoint, producer_id=f"p{number}")
                raws.append(raw)
            held.release()
            for raw in raws:
                await raw.opened()
            most = 0
            for raw in raws:
                for sequence in range(1, 6):
                    await raw.records.send(RecordColumns(sequence, [bytes(90_000)], [0]))
                    most = max(most, server._committer._held)
            for raw in raws:
                for _ in range(5):
                    assert isinstance(await raw.answers.receive(), Committed)
                    most = max(most, server._committer._held)
                raw.leave()
            assert most <= limit
        assert len(await lab.rows(server)) == 100


async def test_a_batch_above_max_waiting_is_stored_alone(lab: Lab) -> None:
    async with lab.serve(max_waiting=10_000, max_record=5_000) as server:
        async with lab.connect(server) as connection:
            raw = await RawProducer.open(connection.entrypoint)
            await raw.opened()
            await raw.records.send(RecordColumns(1, [bytes(5_000)] * 500, [0] * 500))
            assert isinstance(await raw.answers.receive(), Committed)
            raw.leave()
        assert len(await lab.rows(server)) == 500


@pytest.mark.parametrize(
    ("partition", "start", "end", "sentence"),
    [
        (0, 0, 11, "has offsets from 0 up to 10, not from 0 up to 11"),
        (0, -1, 5, "not from -1 up to 5"),
        (0, 5, 4, "not from 5 up to 4"),
        (0, HUGE, HUGE + 5, "has offsets from 0 up to 10"),
        (4, 0, 1, "topic has partitions 0 to 3, not 4"),
        (-1, 0, 1, "topic has partitions 0 to 3, not -1"),
        (HUGE, 0, 1, "topic has partitions 0 to 3"),
    ],
)
async def test_a_missing_range_is_rejected(
    lab: Lab, partition: int, start: int, end: int, sentence: str
) -> None:
    async with lab.serve() as server:
        async with lab.producer(server) as producer:
            for _ in range(10):
                await producer.send(b"x", partition=0)
        async with lab.connect(server) as connection:
            rows, reply, _ = await fetch(connection.entrypoint, partition, start, end)
            refusal = await reply.receive()
            assert isinstance(refusal, Refusal)
            assert refusal.code == "unknown"
            assert sentence in refusal.reason
            with pytest.raises(ChannelError):
                await rows.receive()
        await check_that_others_are_served(lab, server)


async def fetch(
    entrypoint: Sender[Request], partition: int, start: int, end: int
) -> tuple[Receiver[bytes], Receiver[Done | Refusal], Sender[bytes]]:
    sender, rows = channel(bytes)
    reply, answer = oneshot(Done | Refusal)
    await entrypoint.send(Fetch("topic", partition, start, end, sender, reply))
    return rows, answer, sender


async def fill(lab: Lab, server: IngestServer, megabytes: int) -> int:
    """Store rows in partition 0; return their number."""
    count = megabytes * 16
    async with lab.producer(server) as producer:
        for _ in range(count):
            await producer.send(os.urandom(65_536), partition=0)
    return count


async def test_rows_that_a_client_does_not_take_do_not_block_others(lab: Lab) -> None:
    async with lab.serve(max_connection_fetches=2, max_fetches=3) as server:
        count = await fill(lab, server, 4)
        async with lab.connect(server) as connection:
            stalled = [await fetch(connection.entrypoint, 0, 0, count) for _ in range(100)]
            await asyncio.sleep(0.2)
            await check_that_others_are_served(lab, server)
            for rows, reply, _ in stalled:
                rows.close()
                reply.close()
        await eventually(lambda: server._reading._slots.free == 3, "all slots are free")


async def test_an_idle_reader_yields_and_resumes_later(lab: Lab) -> None:
    async with lab.serve(max_fetches=1) as server:
        count = await fill(lab, server, 4)
        async with lab.connect(server) as connection:
            rows, reply, _ = await fetch(connection.entrypoint, 0, 0, count)
            await check_that_others_are_served(lab, server)
            assert len([data async for data in rows]) >= 4
            assert await reply.receive() == Done()
        assert server.metrics.rows_read == count + 1


async def test_a_reader_that_disconnects_stops_its_read(lab: Lab) -> None:
    async with lab.serve() as server:
        count = await fill(lab, server, 6)
        async with lab.reader(server) as reader:
            async for _ in reader.read("topic", 0, 0, count):
                break
            gc.collect()
            limit = server.limits.max_fetches
            await eventually(lambda: server._reading._slots.free == limit, "it stops")
            assert server.metrics.rows_read < count
            assert len(await reader.topics()) == 1


async def test_readers_with_endless_names_are_refused(lab: Lab) -> None:
    async with lab.serve(max_readers=2) as server:
        await fill(lab, server, 1)
        async with lab.connect(server) as connection:
            outcomes = []
            for name in ("one", "two", "three", "x" * 1_000, "one", "../up"):
                reply, answer = oneshot(Done | Refusal)
                await connection.entrypoint.send(Advance("topic", name, {0: 1}, reply))
                outcomes.append(await answer.receive())
        refused = [one.reason for one in outcomes if isinstance(one, Refusal)]
        assert outcomes[0] == outcomes[1] == outcomes[4] == Done()
        assert "has 2 readers already (max_readers)" in refused[0]
        assert "cannot be the name of a reader" in refused[1]
        assert "cannot be the name of a reader" in refused[2]


async def test_a_malformed_request_is_logged_and_the_next_is_served(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab.serve() as server, lab.connect(server) as connection:
        entrypoint: Any = connection.entrypoint
        raw = await RawProducer.open(entrypoint)
        await raw.opened()
        other: Any
        async with connect(server.address, Any, trust=lab.trust) as other:
            await other.entrypoint.send({"type": "Nonsense"})
            await other.entrypoint.send(17)
            good = await RawProducer.open(other.entrypoint, producer_id="good")
            await good.opened()
            good.leave()
        raw.leave()
    assert caplog.text.count("a request from") == 2


async def test_a_request_that_fails_is_logged_and_the_next_is_served(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab.serve() as server, lab.reader(server) as reader:

        def fail(*_: Any) -> None:
            raise ZeroDivisionError("a fault of the server")

        with monkeypatch.context() as patch:
            patch.setattr(server._reading, "_list", fail)
            with pytest.raises(ChannelError):
                await reader.topics()
        assert await reader.topics() == []
    assert "a fault of the server" in caplog.text


async def test_a_full_disk_refuses_records_and_still_serves_readers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab.serve(low_water=1_000) as server:
        producer = lab.producer(server)
        await producer.open()
        await producer.send_and_wait(b"in time")
        found = namedtuple("found", "f_bavail f_frsize")
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _: found(1, 999))
            with pytest.raises(DiskLow, match=r"has 999 bytes left, less than 1,000 \(low_water\)"):
                await producer.send_and_wait(b"too late")
            await producer.abandon()
            with pytest.raises(DiskLow):
                await lab.producer(server, "new").open()
            assert [row["value"] for row in await lab.rows(server)] == [b"in time"]
        await check_that_others_are_served(lab, server)


async def test_closing_ends_within_its_grace_and_loses_nothing_that_was_answered(lab: Lab) -> None:
    server = lab.serve()
    await server.open()
    address = server.address
    producers = [lab.producer(server, producer_id=f"p{number}") for number in range(3)]

    async def produce(number: int) -> None:
        producer = producers[number]
        await producer.open()
        while True:
            await producer.send(b"%d" % number, key=b"%d" % number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(produce(number)) for number in range(3)]
    await eventually(lambda: all(one.committed > 10 for one in producers), "records are stored")
    before = time.monotonic()
    await server.close(grace=0.3)
    assert time.monotonic() - before < 60.0
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    committed = {producer.producer_id: producer.committed for producer in producers}
    for producer in producers:
        await producer.abandon()
    async with lab.serve(address) as again:
        rows = await lab.rows(again)
    for name, least in committed.items():
        numbers = sorted(row["producer_sequence"] for row in rows if row["producer_id"] == name)
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= least


async def test_closing_waits_for_threads_before_another_may_have_the_directory(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    close = Store.close

    def note(store: Store) -> None:
        events.append("given up")
        close(store)

    monkeypatch.setattr(Store, "close", note)
    server = lab.serve()
    await server.open()

    def roll() -> None:
        time.sleep(0.3)
        events.append("rolled")

    server._others.submit(roll)
    await server.close(grace=0.0)
    assert events == ["rolled", "given up"]
    await server.close()  # again: a no-op


async def test_a_directory_belongs_to_one_server(lab: Lab) -> None:
    async with lab.serve():
        with pytest.raises(IngestError, match="a directory is for one"):
            await lab.serve().open()
    async with lab.serve() as server:
        await check_that_others_are_served(lab, server)


async def test_logs_become_segments_while_records_arrive(lab: Lab) -> None:
    async with lab.serve(roll_size=20_000, roll_age=0.3) as server:
        async with lab.producer(server) as producer:
            for number in range(2_000):
                await producer.send(b"%d" % number, key=b"%d" % (number % 9))
            await producer.flush()
            await eventually(lambda: server.metrics.segments >= 4, "all partitions have segments")
        rows = await lab.rows(server)
        assert len(list(lab.directory.glob("topic/*/*.parquet"))) >= 4
    assert sorted(int(row["value"]) for row in rows) == list(range(2_000))


async def test_upkeep_continues_after_an_unexpected_error(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aqueduct.ingest.server.server._UPKEEP", 0.01)
    async with lab.serve(roll_age=0.0) as server:
        with monkeypatch.context() as patch:
            patch.setattr(server._store, "rotate_old", lambda: 1 // 0)
            await eventually(lambda: "ZeroDivisionError" in caplog.text, "it fails")
        async with lab.producer(server) as producer:
            await producer.send(b"x")
        await eventually(lambda: server.metrics.segments, "upkeep continues")


async def test_a_server_whose_committer_has_ended_rejects_records(lab: Lab) -> None:
    async with lab.serve() as server:
        producer = lab.producer(server)
        await producer.open()
        closed = asyncio.create_task(server.wait_closed())
        server._tasks[0].cancel()
        with pytest.raises(IngestError, match="the server stopped without being closed"):
            await closed
        with pytest.raises(IngestError, match="is closing and stores no more records"):
            await producer.send_and_wait(b"x")
        await producer.abandon()


TOKEN = "a-token-that-is-good"
GUESS = "a-token-that-is-guessed"


async def test_wrong_tokens_are_logged_without_them_counted_and_slowed_down(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts the pauses instead of waiting."""
    pauses: list[float] = []
    pause = TokenThrottle.pause

    def note(door: TokenThrottle, host: str) -> float:
        pauses.append(pause(door, host))
        return min(pauses[-1], 0.01)

    monkeypatch.setattr(TokenThrottle, "pause", note)
    monkeypatch.setattr(token_throttle, "FORGIVEN", 1e9)
    tokens = Permissions({TOKEN: Grant(["*"], ["*"])})
    async with lab.serve(permissions=tokens) as server:
        for token in (None, *[GUESS] * (FREE + 1)):
            with pytest.raises(ConnectError, match="wants a token that it knows"):
                async with lab.reader(server, token=token) as reader:
                    await reader.topics()
        assert sum(bool(each) for each in pauses) == 2
        async with lab.reader(server, token=TOKEN) as reader:  # a valid one is accepted
            assert await reader.topics() == []
        text = server.metrics_text()
    assert server.statistics().tokens_refused == FREE + 2
    assert f"aqueduct_ingest_tokens_refused_total {FREE + 2}\n" in text
    assert "aqueduct_ingest_tokens_turned_away_total 0\n" in text
    assert "rejected a client at 127.0.0.1: it sent no token (1 from this" in caplog.text
    assert "rejected a client at 127.0.0.1: it sent a wrong token (2 from" in caplog.text
    assert GUESS not in caplog.text + text


async def test_wrong_tokens_from_an_address_do_not_disconnect_a_valid_client(lab: Lab) -> None:
    other = "another-token-that-is-good"
    tokens = Permissions({token: Grant(["*"], ["*"]) for token in (TOKEN, other)})
    async with lab.serve(permissions=tokens) as server:
        async with lab.reader(server, token=TOKEN) as reader:
            assert await reader.topics() == []
        for _ in range(FREE + 10):
            server._throttle.record_invalid("127.0.0.1", has_token=True)
        with contextlib.suppress(Refuse):
            while True:
                server._throttle.pause("127.0.0.1")
        async with lab.reader(server, token=TOKEN) as reader:  # it was valid before
            assert await reader.topics() == []
        with pytest.raises(ConnectError, match="retry in 10 s") as caught:
            async with lab.reader(server, token=other) as reader:
                await reader.topics()
        assert not isinstance(caught.value, FATAL)  # a producer retries


async def test_a_client_that_disconnects_while_it_waits_is_not_logged_as_a_failure(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenThrottle, "pause", lambda *_: 0.3)
    tokens = Permissions({TOKEN: Grant(["*"], ["*"])})
    async with lab.serve(permissions=tokens) as server:
        for token in (TOKEN, GUESS):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), lab.reader(server, token=token) as reader:
                    await reader.topics()
        await asyncio.sleep(0.5)
        monkeypatch.undo()
        async with lab.reader(server, token=TOKEN) as reader:
            assert await reader.topics() == []
    assert "callback" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_requests_of_one_connection_do_not_starve_records(
    lab: Lab, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts syncs: of 100 requests, one or two are ahead of another client's record."""
    done: list[str] = []

    def noted(name: str) -> None:
        call = getattr(Store, name)

        def note(*arguments: Any, **more: Any) -> Any:
            done.append(name)
            return call(*arguments, **more)

        monkeypatch.setattr(Store, name, note)

    noted("end_step")
    noted("commit")
    async with lab.serve(partitions=1) as server, lab.producer(server, "mine") as producer:
        await producer.send_and_wait(b"first")
        async with lab.connect(server) as connection:
            held.hold(server)
            await eventually(lambda: held.is_reached, "the writer is busy")
            done.clear()
            answers = []
            for number in range(100):
                reply, answer = oneshot(Done | Refusal)
                request = EndStep("mine", f"job-{number}", 0, "0" * 32, reply)
                await connection.entrypoint.send(request)
                answers.append(answer)
            await asyncio.sleep(0.1)
            sending = asyncio.create_task(producer.send_and_wait(b"second"))
            await asyncio.sleep(0.1)
            held.release()
            await sending
            assert done.index("commit") <= 2
            for answer in answers:
                assert await answer.receive() == Done()


async def test_recalling_the_rows_of_steps_does_not_block_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    begun: list[str] = []
    read = Recollection.read

    def slow(self: Recollection, partitions: Any) -> None:
        begun.append(self.scope.job)
        go_on.wait(60)
        read(self, partitions)

    monkeypatch.setattr(Recollection, "read", slow)
    jobs = [f"job-{number}" for number in range(RECALLERS + 2)]
    first, second = f"{1:032x}", f"{2:032x}"
    async with lab.serve() as server, lab.connect(server) as connection:
        for job in jobs:
            async with lab.producer(server, scope=WriteScope(job, 0, first, 0)) as producer:
                await producer.send(b"x", id=bytes(20))
        entrypoint = connection.entrypoint
        mine = [  # one at a time per connection
            await RawProducer.open(entrypoint, scope=WriteScope(job, 0, second, 0))
            for job in jobs[:3]
        ]
        others = [lab.producer(server, scope=WriteScope(job, 0, second, 0)) for job in jobs[3:]]
        opening = [asyncio.create_task(each.open()) for each in others]
        try:
            await eventually(lambda: len(begun) == RECALLERS, "as many as may are being read")
            assert sorted(begun) == ["job-0", *jobs[3:]]
            await check_that_others_are_served(lab, server)
        finally:
            go_on.set()
        await asyncio.gather(*opening)
        for each in others:
            await each.close()
        for raw in mine:
            await raw.opened()
            raw.leave()
        assert sorted(begun) == jobs


async def test_one_connection_does_not_delay_the_advances_of_another(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each topic that readers advance in costs syncs, one topic after the other."""
    monkeypatch.setattr("aqueduct.ingest.server.server._ADVANCES", 5)
    topics = [f"topic-{number}" for number in range(40)]
    async with lab.serve(partitions=1) as server:
        writes: list[str] = []
        write = server._progress._write_topic

        async def note(topic: Topic, moves: Any) -> None:
            writes.append(topic.name)
            await write(topic, moves)

        server._progress._write_topic = note  # type: ignore[method-assign]
        async with lab.reader(server) as greedy, lab.reader(server) as modest:
            for topic in [*topics, "mine"]:
                async with lab.producer(server, topic) as producer:
                    await producer.send_and_wait(b"x")
            asked = [asyncio.create_task(greedy.advance("r", topic, {0: 1})) for topic in topics]
            await eventually(lambda: writes, "the first is written")
            await modest.advance("r", "mine", {0: 1})
            assert len(writes) <= 30
            await asyncio.gather(*asked)
        assert sorted(writes) == sorted([*topics, "mine"])


async def test_listings_for_one_connection_are_made_one_at_a_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of many topics takes megabytes until it is sent."""
    at_once = [0, 0]
    answer = Reading.answer

    async def counted(*arguments: Any) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await answer(*arguments)
        at_once[0] -= 1

    large = Listing([TopicInfo("topic", [], fault="x" * 4_000_000)])
    monkeypatch.setattr(Reading, "answer", counted)
    monkeypatch.setattr(Reading, "_list", lambda *_: large)
    async with lab.serve() as server, lab.connect(server) as connection:
        answers = []
        for _ in range(10):
            reply, listing = oneshot(Listing | Refusal)
            await connection.entrypoint.send(Topics(reply))
            answers.append(listing)
        assert {type(await each.receive()) for each in answers} == {Listing}
    assert at_once == [0, 1]
