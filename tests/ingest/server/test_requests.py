"""The memory of decoded requests: bounded over all connections, with a share for each."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import msgspec
import pytest

from aqueduct.api.channels import channel, oneshot
from aqueduct.api.handles import Receiver, Sender
from aqueduct.errors import AqueductError
from aqueduct.ingest.identity import MAX_OFFSETS, MAX_POSITIONS, TopicPosition
from aqueduct.ingest.protocol import Done, EndStep, Fetch, Refusal, Topics
from aqueduct.ingest.server.requests import (
    ALLOWANCE,
    MAX_DECODED,
    MAX_REQUEST,
    SHARE,
    Account,
    Decoded,
    decoded_size,
)
from aqueduct.ingest.server.server import IngestServer
from tests.ingest.lab import Lab, eventually

LARGE = MAX_DECODED // 8
SMALL = 1_000


def position(count: int = MAX_OFFSETS, offset: int = 300) -> TopicPosition:
    return TopicPosition("id", "epoch", {300 + number: offset for number in range(count)})


@pytest.mark.parametrize("count", [1, 43, 86, 171, 342, 683, MAX_OFFSETS])
@pytest.mark.parametrize("offset", [1, 300, 2**62])
@pytest.mark.parametrize("first", [0, 300, 2**40])
def test_the_bound_computed_before_decoding_holds(count: int, offset: int, first: int) -> None:
    each = TopicPosition("id", "epoch", {first + n: offset + n for n in range(count)})
    payload = msgspec.msgpack.encode([each] * MAX_POSITIONS)
    decode = msgspec.msgpack.Decoder(list[TopicPosition]).decode
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        decoded = decode(payload)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(decoded) == MAX_POSITIONS
    assert grown <= decoded_size(len(payload)) + 4_096


async def started(*waits: Any) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(each) for each in waits]
    await asyncio.sleep(0)
    return tasks


async def test_an_allowance_is_available_when_the_budget_is_exhausted() -> None:
    decoded = Decoded()
    for _ in range(8):
        await decoded.reserve(Account(decoded), LARGE + ALLOWANCE)
    assert decoded.used == MAX_DECODED
    other = Account(decoded)
    for _ in range(ALLOWANCE // SMALL):
        await decoded.reserve(other, SMALL)
    (waiting,) = await started(decoded.reserve(other, SMALL))
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert decoded.used == MAX_DECODED


async def test_a_connection_leaves_most_of_the_budget_to_others() -> None:
    decoded = Decoded()
    greedy = Account(decoded)
    rooms = [await decoded.reserve(greedy, LARGE), await decoded.reserve(greedy, LARGE)]
    (waiting,) = await started(decoded.reserve(greedy, LARGE))
    assert not waiting.done()
    assert decoded.used <= MAX_DECODED // SHARE
    others = [Account(decoded) for _ in range(6)]
    for other in others:  # they overtake the one that waits
        await decoded.reserve(other, LARGE)
    rooms.pop().free()
    assert not waiting.done()  # its share has shrunk to a quarter of what the others leave
    rooms.pop().free()
    await waiting
    waiting.result().free()
    waiting.result().free()
    assert greedy.held == 0
    assert decoded.used == 6 * (LARGE - ALLOWANCE)


async def test_a_connection_closed_while_it_waits_holds_no_memory() -> None:
    decoded = Decoded()
    first, second = Account(decoded), Account(decoded)
    room = await decoded.reserve(first, MAX_DECODED)
    (waiting,) = await started(decoded.reserve(second, MAX_DECODED))
    assert not waiting.done()
    room.free()
    waiting.cancel()  # after it was granted
    await asyncio.wait([waiting])
    assert (decoded.used, first.held, second.held) == (0, 0, 0)
    assert not decoded._waiting


async def end_step(entrypoint: Sender[Any], job: str, positions: int) -> Receiver[Any]:
    reply, answer = oneshot(Done | Refusal)
    await entrypoint.send(EndStep("topic", job, 0, "0" * 32, reply, [position()] * positions))
    return answer


async def test_large_requests_of_one_connection_wait_undecoded_and_delay_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts the requests that the server has begun to serve."""
    begun: list[str] = []
    end = IngestServer._end

    async def note(self: IngestServer, request: EndStep, client: Any) -> None:
        begun.append(request.job)
        await end(self, request, client)

    monkeypatch.setattr(IngestServer, "_end", note)
    async with lab.serve(partitions=1) as server:
        async with lab.producer(server) as producer:
            await producer.send(b"value")
        async with lab.connect(server) as hostile, lab.connect(server) as honest:
            async with server._turn("topic", "held"):
                sending = asyncio.gather(
                    *(end_step(hostile.entrypoint, "held", MAX_POSITIONS) for _ in range(40))
                )
                await eventually(lambda: bool(server._decoded._waiting), "the next one waits")
                assert 0 < server._decoded.used <= MAX_DECODED // SHARE
                assert len(begun) < 10
                for _ in range(20):
                    answer = await end_step(honest.entrypoint, "other", 1)
                    assert isinstance(await answer.receive(), Refusal)
                await honest.entrypoint.call(Topics, timeout=10)
            for answer in await sending:  # none is lost
                assert isinstance(await answer.receive(), Refusal)
            assert begun.count("held") == 40
            await eventually(lambda: not server._decoded.used, "all memory is free")


async def test_a_range_keeps_no_position(lab: Lab) -> None:
    async with lab.serve(partitions=1) as server:
        async with lab.producer(server) as producer:
            for _ in range(40):
                await producer.send(bytes(100_000))
        async with lab.connect(server) as connection, lab.reader(server) as reader:
            (info,) = await reader.topics("topic")
            known = TopicPosition(info.id, info.epoch, {0: 1})
            kept = []
            for _ in range(64):
                rows, incoming = channel(bytes)
                reply, answer = oneshot(Done | Refusal)
                await connection.entrypoint.send(Fetch("topic", 0, 0, 40, rows, reply, known))
                kept += [incoming, answer]
            slots = server._reading._slots
            await eventually(lambda: bool(slots._idle), "they take nothing")
            await connection.entrypoint.call(Topics, timeout=10)
            requests = server._decoded
            assert (requests.used, requests._waiting) == (0, {})


async def test_a_request_that_is_too_large_closes_its_connection(lab: Lab) -> None:
    async with (
        lab.serve(partitions=1) as server,
        lab.connect(server) as hostile,
        lab.connect(server) as honest,
    ):
        with pytest.raises(AqueductError, match="larger than"):
            await hostile.entrypoint.call(Topics, topic="x" * MAX_REQUEST, timeout=10)
        await honest.entrypoint.call(Topics, timeout=10)
        assert not server._decoded.used
