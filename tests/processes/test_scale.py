"""Many channels on one connection, and many connections at one server."""

from __future__ import annotations

import asyncio
import time

from aqueduct import channel
from tests.processes.lab import Ask, Keep, Request, Vitals
from tests.processes.peers import BOTH, bounded, connect, eventually, lab

SCHEMES = BOTH

CHANNELS = 10_000
CONNECTIONS = 500


@bounded
async def test_one_connection_carries_ten_thousand_channels() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        before = await connection.entrypoint.call(Vitals)
        start = time.perf_counter()
        pairs = []
        for _ in range(CHANNELS // 2):
            sender, receiver = channel()
            sink, source = channel()
            await connection.entrypoint.send(Keep(receiver, sink))
            await sender.send(b"ping")
            pairs.append((sender, source))
        for _, source in pairs:
            assert await source.receive() == b"ping"
        opened = time.perf_counter() - start
        during = await connection.entrypoint.call(Vitals)
        assert during["channels"] >= CHANNELS
        assert connection.statistics()["channels"] >= CHANNELS
        each = (during["rss"] - before["rss"]) / CHANNELS
        for sender, _ in pairs:
            await sender.send(b"pong")
            sender.finish()
        for _, source in pairs:
            assert [payload async for payload in source] == [b"pong"]
        took = time.perf_counter() - start
        print(
            f"\n{CHANNELS} channels: open and used once in {opened:.1f} s, "
            f"ended after {took:.1f} s; "
            f"the server needs {each:,.0f} bytes each, including tasks"
        )
        assert each < 20_000

        async def freed() -> bool:
            after = await connection.entrypoint.call(Vitals)
            return bool(after["channels"] < 10 and after["tasks"] < 3)

        await eventually(freed, "the server has freed the channels")


@bounded
async def test_one_server_serves_five_hundred_connections() -> None:
    async with lab() as server:
        start = time.perf_counter()
        connections = await asyncio.gather(
            *(connect(server.address, Request) for _ in range(CONNECTIONS))
        )
        opened = time.perf_counter() - start
        answers = await asyncio.gather(
            *(
                connection.entrypoint.call(Ask, text=f"n{number}")
                for number, connection in enumerate(connections)
            )
        )
        answered = time.perf_counter() - start
        assert answers == [f"N{number}" for number in range(CONNECTIONS)]
        vitals = await connections[0].entrypoint.call(Vitals)
        assert vitals["connections"] == CONNECTIONS
        await asyncio.gather(*(connection.close() for connection in connections))
        took = time.perf_counter() - start
        print(
            f"\n{CONNECTIONS} connections: open after {opened:.1f} s, answered after "
            f"{answered:.1f} s, closed after {took:.1f} s; the server holds "
            f"{vitals['rss'] / 1e6:.0f} MB"
        )
        async with connect(server.address, Request) as connection:

            async def freed() -> bool:
                after = await connection.entrypoint.call(Vitals)
                return bool(after["connections"] == 1)

            await eventually(freed, "the server has freed the connections")
