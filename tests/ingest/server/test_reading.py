"""Serving readers: what errors reveal, and which readers are evicted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest

from aqueduct.api.channels import channel, oneshot
from aqueduct.api.handles import Receiver, Sender
from aqueduct.ingest.errors import UnknownTopic
from aqueduct.ingest.protocol import Advance, Done, Fetch, Refusal, Request
from aqueduct.ingest.records import STORED
from aqueduct.ingest.server import named_readers, reading
from aqueduct.ingest.server import server as servers
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.storage.base import Blob
from aqueduct.ingest.storage.checked import write_blob
from tests.ingest.lab import Lab, eventually
from tests.ingest.storing import opened


async def test_the_error_for_an_unknown_topic_names_ten_readable_ones(lab: Lab) -> None:
    grant = Grant(write=["*"], read=["mine.*"])
    async with lab.serve(permissions=Permissions({"sesame": grant}), partitions=1) as server:
        for name in ("yours.1", *(f"mine.{number:02}" for number in range(12))):
            async with lab.producer(server, name, token="sesame"):
                pass
        async with lab.reader(server, token="sesame") as reader:
            with pytest.raises(UnknownTopic) as caught:
                await reader.topics("mine.none")
    ten = ", ".join(f"mine.{number:02}" for number in range(10))
    assert str(caught.value) == f"there is no topic 'mine.none'; topics: {ten} and 2 more"


class Client:
    """A connection that fetches, and takes rows when the test does."""

    def __init__(self, entrypoint: Sender[Request]) -> None:
        self._entrypoint = entrypoint

    async def fetch(self, start: int, end: int) -> tuple[Receiver[bytes], Receiver[Any]]:
        rows, incoming = channel(bytes)
        reply, answer = oneshot(Done | Refusal)
        await self._entrypoint.send(Fetch("topic", 0, start, end, rows, reply))
        return incoming, answer


def counted(values: list[bytes]) -> int:
    return sum(pa.ipc.read_record_batch(pa.py_buffer(data), STORED).num_rows for data in values)


async def test_idle_readers_yield_their_slots_to_a_small_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts reads: the row arrives after one, while 32 other ranges are half read."""
    slots = 8
    async with lab.serve(max_fetches=slots, max_connection_fetches=slots, partitions=1) as server:
        async with lab.producer(server) as producer:
            for _ in range(16):
                await producer.send(bytes(100_000))
        reads: list[int] = []
        read = reading._Range.read

        def note(wanted: reading._Range) -> int:
            reads.append(wanted.end)
            return read(wanted)

        monkeypatch.setattr(reading._Range, "read", note)
        async with lab.connect(server) as first, lab.connect(server) as second:
            slow = [await Client(first.entrypoint).fetch(0, 16) for _ in range(32)]
            await eventually(lambda: len(server._reading._slots._idle) == slots, "all drip")
            rest = server._reading._slots
            await eventually(lambda: not rest.free and len(reads) >= 32, "all have begun")
            before = len(reads)
            rows, answer = await Client(second.entrypoint).fetch(7, 8)
            assert counted([data async for data in rows]) == 1
            assert await answer.receive() == Done()
            assert reads[before:].count(8) == 1
            assert len(reads) - before <= 1 + slots

            async def take(rows: Receiver[bytes], answer: Receiver[Any]) -> None:
                assert counted([data async for data in rows]) == 16
                assert await answer.receive() == Done()

            await asyncio.gather(*(take(*each) for each in slow))  # none has lost a row
        await eventually(lambda: server._reading._slots.free == slots, "all slots are free")


async def test_memory_of_reread_rows_is_released_while_slow_readers_continue(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep comes too late: in half a second slow readers can read hundreds of megabytes."""
    trims: list[None] = []
    monkeypatch.setattr(servers, "_UPKEEP", 60.0)
    monkeypatch.setattr(reading, "MIN_READ", 4_000_000)
    monkeypatch.setattr(reading, "release_free_memory", lambda: trims.append(None))
    async with lab.serve(max_fetches=1, max_connection_fetches=1, partitions=1) as server:
        async with lab.producer(server) as producer:
            for _ in range(40):
                await producer.send(bytes(100_000))
        async with lab.connect(server) as connection:
            client = Client(connection.entrypoint)
            slow = [await client.fetch(0, 40) for _ in range(8)]
            await eventually(lambda: bool(trims), "memory is returned")
            for rows, answer in slow:
                rows.close()
                answer.close()


async def test_an_idle_reader_keeps_its_range_open_while_no_other_waits(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab.serve(max_fetches=1, partitions=1) as server:
        async with lab.producer(server) as producer:
            for _ in range(40):
                await producer.send(bytes(100_000))
        evicted: list[reading._Range] = []
        evict = reading._Range.evict

        def count(self: reading._Range) -> None:
            if self.next < self.end:
                evicted.append(self)
            evict(self)

        monkeypatch.setattr(reading._Range, "evict", count)
        async with lab.connect(server) as connection:
            slow, outcome = await Client(connection.entrypoint).fetch(0, 40)
            await eventually(lambda: bool(server._reading._slots._idle), "it drips")
            await asyncio.sleep(0.05)
            assert counted([data async for data in slow]) == 40
            assert await outcome.receive() == Done()
        assert evicted == []


async def test_reader_offsets_are_batched_and_not_written_by_the_writer_thread(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 moves take a few writes, and none in the thread that stores records."""
    writes: list[str] = []

    def note(blob: Blob, content: object) -> None:
        writes.append(threading.current_thread().name)
        write_blob(blob, content)

    async with lab.serve(partitions=1) as server:
        async with lab.producer(server) as producer:
            for _ in range(300):
                await producer.send(b"x")
        monkeypatch.setattr(named_readers, "write_blob", note)
        async with lab.connect(server) as connection:
            answers = []
            for number in range(300):
                reply, answer = oneshot(Done | Refusal)
                move = Advance("topic", f"r{number % 3}", {0: number}, reply)
                await connection.entrypoint.send(move)
                answers.append(answer)
            wrong, refused = oneshot(Done | Refusal)
            await connection.entrypoint.send(Advance("topic", "r0", {0: 301}, wrong))
            assert {type(await answer.receive()) for answer in answers} == {Done}
            assert isinstance(await refused.receive(), Refusal)
        assert server.topics()[0].readers == {"r0": {0: 297}, "r1": {0: 298}, "r2": {0: 299}}
        assert len(writes) < 150
        assert {name.rsplit("_", 1)[0] for name in writes} == {"aqueduct-readers"}
    with opened(lab.directory) as store:
        assert store.topics["topic"].readers.offsets["r2"] == {0: 299}
