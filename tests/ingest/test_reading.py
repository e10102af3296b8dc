"""Serving readers: who may know what, and who has to make room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aqueduct.channel.handles import channel, oneshot
from aqueduct.ingest.faults import UnknownTopic
from aqueduct.ingest.messages import Done, Fetch, Refusal
from aqueduct.ingest.permissions import Grant, Permissions
from tests.ingest.lab import Lab, eventually


async def test_an_unknown_topic_names_ten_others_and_none_that_may_not_be_read(lab: Lab) -> None:
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


async def test_a_reader_takes_its_time_for_as_long_as_nobody_else_waits(lab: Lab) -> None:
    async with lab.serve(max_fetches=1, reader_patience=0.1, partitions=1) as server:
        async with lab.producer(server) as producer:
            for _ in range(40):
                await producer.send(bytes(100_000))
        async with lab.connect(server) as connection:

            async def fetch() -> tuple[Any, Any]:
                rows, incoming = channel(bytes)
                reply, answer = oneshot(Done | Refusal)
                await connection.entrypoint.send(Fetch("topic", 0, 0, 40, rows, reply))
                return incoming, answer

            slow, outcome = await fetch()
            await asyncio.sleep(0.5)
            taken = [data async for data in slow]
            assert len(taken) > 1
            assert await outcome.receive() == Done()
            slow, outcome = await fetch()
            await eventually(lambda: server._reading._fetches.locked(), "it has the place")
            quick, other = await fetch()
            assert len([data async for data in quick]) == len(taken)
            assert await other.receive() == Done()
            refusal = await outcome.receive()
            assert isinstance(refusal, Refusal)
            assert "no rows were taken for 0.1 s, and others wait" in refusal.reason
            slow.close()
