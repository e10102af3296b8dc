"""Readers: ranges, offsets by time, names, errors; from a server and from its directory."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

from aqueduct.errors import ChannelError, ConnectError, Unauthenticated
from aqueduct.ingest.client.reader import DirectoryReader, Reader
from aqueduct.ingest.errors import IngestError, NotAllowed, RefusedRecords, UnknownTopic
from aqueduct.ingest.records import ROWS
from aqueduct.ingest.server import server as servers
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.server.server import IngestServer
from tests.ingest.lab import Lab, eventually


async def fill(lab: Lab, server: IngestServer, count: int = 100, topic: str = "topic") -> None:
    """Store rows in partition 1 of two, each with its number."""
    async with lab.producer(server, topic, partitions=2) as producer:
        for number in range(count):
            await producer.send(b"%d" % number, partition=1)


async def numbers(reader: Reader, start: int, end: int, topic: str = "topic") -> list[int]:
    reading = reader.read(topic, 1, start, end)
    return [int(row["value"]) async for batch in reading for row in batch.to_pylist()]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (99, 100), (37, 61), (50, 50)])
async def test_exactly_the_requested_range_is_read(lab: Lab, start: int, end: int) -> None:
    async with lab.serve() as server:
        await fill(lab, server)
        async with lab.reader(server) as reader:
            assert await numbers(reader, start, end) == list(range(start, end))
        directory = DirectoryReader(lab.directory)
    rows = [row for batch in directory.read("topic", 1, start, end) for row in batch.to_pylist()]
    assert [int(row["value"]) for row in rows] == list(range(start, end))


async def test_ranges_go_over_segments_and_the_log(lab: Lab) -> None:
    async with lab.serve(roll_size=5_000, roll_age=60.0) as server:
        await fill(lab, server, 300)
        await eventually(lambda: server.metrics.segments, "there is a segment")
        await fill(lab, server, 5)
        async with lab.reader(server) as reader:
            (info,) = await reader.topics("topic")
            assert info.partitions[1].next_offset == 305
            assert await numbers(reader, 0, 305) == [*range(300), *range(5)]
            assert await numbers(reader, 290, 303) == [*range(290, 300), 0, 1, 2]
            async for batch in reader.read("topic", 1, 0, 305):
                assert batch.schema == ROWS


async def test_many_ranges_at_once_are_read_over_one_connection(lab: Lab) -> None:
    async with lab.serve() as server:
        await fill(lab, server)
        async with lab.reader(server) as reader:
            found = await asyncio.gather(*(numbers(reader, at, at + 10) for at in range(90)))
    assert found == [list(range(at, at + 10)) for at in range(90)]


async def test_topics_lists_partitions_and_offsets(lab: Lab) -> None:
    async with lab.serve() as server, lab.reader(server) as reader:
        assert await reader.topics() == []
        before = time.time() * 1e6 - 1
        await fill(lab, server, 10, "b")
        await fill(lab, server, 20, "a")
        first, second = await reader.topics()
        assert (first.topic, second.topic) == ("a", "b")
        empty, full = first.partitions
        assert (empty.first_offset, empty.next_offset, empty.first_time) == (0, 0, None)
        assert (full.first_offset, full.next_offset) == (0, 20)
        assert full.first_time is not None
        assert full.last_time is not None
        assert before <= full.first_time <= full.last_time <= time.time() * 1e6
        assert full.size > 0
        assert await reader.topics("a") == [first]
        with pytest.raises(UnknownTopic, match="there is no topic 'c'; topics: a, b"):
            await reader.topics("c")


async def test_an_offset_is_found_by_time_in_segments_between_them_and_in_the_log(
    lab: Lab,
) -> None:
    async with lab.serve(roll_age=0.05) as server, lab.reader(server) as reader:
        times = [time.time()]
        for round_ in range(3):
            await fill(lab, server, 10)
            if round_ < 2:
                rolled = server.metrics.segments
                await eventually(lambda: server.metrics.segments > rolled, "it rolls")  # noqa: B023
            times.append(time.time())
        for source in (reader, DirectoryReader(lab.directory)):
            for at, moment in enumerate(times[:3]):
                found: Any = source.offsets_at("topic", moment)
                found = await found if isinstance(source, Reader) else found
                assert found == {0: 0, 1: 10 * at}
        assert await reader.offsets_at("topic", times[3]) == {0: 0, 1: 30}
        assert await reader.offsets_at("topic", 0) == {0: 0, 1: 0}
        rows = [row async for batch in reader.read("topic", 1, 0, 30) for row in batch.to_pylist()]
        within = [row["ingest_time"].timestamp() for row in rows]
        for row, moment in zip(rows, within, strict=True):
            assert await reader.offsets_at("topic", moment) == {0: 0, 1: within.index(moment)}
            assert row["offset"] >= within.index(moment)


async def test_a_named_reader_commits_offsets_and_can_be_forgotten(lab: Lab) -> None:
    async with lab.serve() as server:
        await fill(lab, server)
        async with lab.reader(server) as reader:
            await reader.advance("report", "topic", {1: 30})
            await reader.advance("report", "topic", {0: 0, 1: 20})
            await reader.advance("other", "topic", {1: 5})
            await reader.advance("gone", "topic", {1: 5})
            await reader.advance("gone", "topic", {})
            (info,) = await reader.topics()
            assert info.readers == {"report": {0: 0, 1: 20}, "other": {1: 5}}
            with pytest.raises(RefusedRecords, match="topic has no partition 2"):
                await reader.advance("report", "topic", {2: 1})
    async with lab.serve() as server, lab.reader(server) as reader:
        (info,) = await reader.topics()
        assert info.readers == {"report": {0: 0, 1: 20}, "other": {1: 5}}
    assert DirectoryReader(lab.directory).topics()[0].readers == info.readers


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (("other", 0, 0, 1), "there is no topic 'other'"),
        (("topic", 2, 0, 1), "topic has "),
        (("topic", 1, 0, 101), "topic partition 1 has offsets from 0 up to 100, not from 0 up"),
        (("topic", 1, -1, 5), "not from -1 up to 5"),
        (("topic", 1, 7, 6), "not from 7 up to 6"),
    ],
)
async def test_an_unknown_topic_or_range_is_an_error(
    lab: Lab, where: tuple[str, int, int, int], sentence: str
) -> None:
    async with lab.serve() as server:
        await fill(lab, server)
        async with lab.reader(server) as reader:
            with pytest.raises(UnknownTopic, match=sentence):
                _ = [batch async for batch in reader.read(*where)]
            assert await numbers(reader, 0, 3) == [0, 1, 2]
    with pytest.raises(UnknownTopic, match=sentence):
        list(DirectoryReader(lab.directory).read(*where))


async def test_a_cancelled_read_leaves_the_connection_usable(
    lab: Lab,
) -> None:
    async with lab.serve() as server:
        await fill(lab, server, 50_000)
        async with lab.reader(server) as reader:
            for pause in (0.0, 0.001, 0.01):
                reading = asyncio.create_task(numbers(reader, 0, 50_000))
                await asyncio.sleep(pause)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            gc.collect()
            assert await numbers(reader, 49_990, 50_000) == list(range(49_990, 50_000))


async def test_a_server_that_closes_during_a_read_is_an_error(lab: Lab) -> None:
    async with lab.serve() as server:
        async with lab.producer(server) as producer:
            for _ in range(200):
                await producer.send(bytes(50_000), partition=0)
        async with lab.reader(server) as reader:
            reading = reader.read("topic", 0, 0, 200)
            first = await anext(reading)
            assert first["offset"][0].as_py() == 0
            await server.close(grace=0.0)
            with pytest.raises(ChannelError):
                async for _ in reading:
                    pass
            with pytest.raises(ChannelError):
                await reader.topics()


async def test_a_reader_sees_what_its_token_allows(lab: Lab) -> None:
    permissions = Permissions(
        {
            "all of it": Grant(["*"], ["*"]),
            "reads a": Grant(read=["a*"]),
        }
    )
    async with lab.serve(permissions=permissions) as server:
        for topic in ("a1", "a2", "b"):
            async with lab.producer(server, topic, token="all of it") as producer:
                await producer.send(b"x")
        async with lab.reader(server, token="reads a") as reader:
            assert [topic.topic for topic in await reader.topics()] == ["a1", "a2"]
            assert await numbers(reader, 0, 0, "a1") == []
            for refused in (
                reader.topics("b"),
                reader.offsets_at("b", 0),
                reader.advance("me", "b", {}),
                numbers(reader, 0, 0, "b"),
            ):
                with pytest.raises(NotAllowed, match="this token may not read topic 'b'"):
                    await refused
        with pytest.raises(Unauthenticated, match="this server wants a token that it knows"):
            await lab.reader(server, token="guessed").__aenter__()
        with pytest.raises(Unauthenticated):
            await lab.reader(server).__aenter__()


async def test_an_unreachable_server_is_an_error(lab: Lab) -> None:
    async with lab.serve() as server:
        reader = lab.reader(server)
    with pytest.raises(ConnectError):
        await reader.__aenter__()


async def test_a_directory_is_read_while_a_server_writes_and_rolls_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_UPKEEP", 0.01)
    async with lab.serve(roll_size=3_000, roll_age=0.05) as server:
        stop = False

        async def produce() -> int:
            sent = 0
            async with lab.producer(server, partitions=2) as producer:
                while not stop:
                    for _ in range(20):
                        await producer.send(b"%d" % sent, partition=1)
                        sent += 1
                    await producer.flush()
            return sent

        producing = asyncio.create_task(produce())
        await eventually(lambda: server.metrics.records > 100, "records are stored")
        directory = DirectoryReader(lab.directory)

        def look() -> int:
            end = directory.topics("topic")[0].partitions[1].next_offset
            batches = directory.read("topic", 1, 0, end)
            values = [int(row["value"]) for batch in batches for row in batch.to_pylist()]
            assert values == list(range(end))
            return end

        ends = [await asyncio.to_thread(look) for _ in range(25)]
        assert ends == sorted(ends)
        await eventually(lambda: server.metrics.segments > 1, "logs are rolled")
        stop = True
        sent = await producing
    assert look() == sent


async def test_a_missing_directory_is_an_error(lab: Lab) -> None:
    with pytest.raises(IngestError, match="there is no directory"):
        DirectoryReader(lab.directory)
    lab.directory.mkdir()
    assert DirectoryReader(lab.directory).topics() == []
    with pytest.raises(UnknownTopic, match="topics: there are none"):
        DirectoryReader(lab.directory).topics("topic")
    with pytest.raises(IngestError, match="cannot be the name of a topic"):
        DirectoryReader(lab.directory).topics("../other")
