"""The work of the channel layer is linear, counted in steps instead of seconds."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import aqueduct
from aqueduct.protocol.events import Delivered
from aqueduct.runtime.closing import Closing
from aqueduct.runtime.ports import Outcome
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.runtime.turns import TURN_BYTES
from aqueduct.runtime.waiters import Waiters
from tests.api.joined import joined
from tests.protocol.test_complexity import FACTOR, SLACK, steps


async def drain(receiver: aqueduct.Receiver[bytes]) -> None:
    async for _ in receiver:
        pass


class Compared(asyncio.Future[None]):
    """A future that counts how often it was compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return self is other

    __hash__ = object.__hash__


def settle_receipts(count: int) -> int:
    """Return the steps for as many acks as receipts."""
    line: Any = SimpleNamespace(core=SimpleNamespace(priority_of=lambda channel: 0))
    port = NetworkSendPort(line, 4, bytes)
    loop = asyncio.get_running_loop()
    receipts = [loop.create_future() for _ in range(count)]
    port.receipts = {(True, number): receipt for number, receipt in enumerate(receipts)}

    def work() -> None:
        for number in range(count):
            port.handle_fate(Delivered(4, True, ((number, number + 1),)))

    taken = steps(work)
    assert all(receipt.result() is Outcome.DELIVERED for receipt in receipts)
    return taken


async def test_an_ack_does_not_scan_all_receipts() -> None:
    few, many = settle_receipts(100), settle_receipts(FACTOR * 100)
    assert many < SLACK * FACTOR * few


async def test_a_cancelled_wait_does_not_scan_all_waiting_tasks(monkeypatch: Any) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_future", lambda: Compared(loop=loop))
    waiters = Waiters()
    tasks = [asyncio.create_task(waiters.wait()) for _ in range(200)]
    await asyncio.sleep(0)
    monkeypatch.undo()
    Compared.comparisons = 0
    for task in reversed(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not waiters
    assert Compared.comparisons < 2 * len(tasks)


async def test_a_close_does_not_scan_all_senders_in_each_turn() -> None:
    async with joined() as (client, _):
        core: Any = client._driver.core
        idle = [NetworkSendPort(client._driver, 4 * number, bytes) for number in range(1, 400)]
        last = NetworkSendPort(client._driver, 4_000, bytes)
        last.sent = 1
        client._driver.ports.update({port.channel: port for port in (*idle, last)})
        turns = 50
        closing = Closing(client._driver)
        first = steps(closing._is_sent)
        taken = steps(lambda: [closing._is_sent() for _ in range(turns)])
        assert taken < first + 40 * turns
        last.delivered = 1
        assert closing._is_sent()
        for port in (*idle, last):
            del client._driver.ports[port.channel]
        assert core.channel_count == 1


async def test_a_task_that_sends_on_many_connections_yields_before_a_turn_of_each() -> None:
    """The longest time between two turns is counted in messages."""
    connections, size = 20, 100
    counted = longest = 0

    async def count_turns() -> None:
        nonlocal counted, longest
        while True:
            longest, counted = max(longest, counted), 0
            await asyncio.sleep(0)

    async with (
        asyncio.timeout(60),
        aqueduct.serve("memory://publisher", tls=aqueduct.dev_tls()) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        trust = aqueduct.dev_trust()
        clients = [
            await stack.enter_async_context(aqueduct.connect(server.address, trust=trust))
            for _ in range(connections)
        ]
        theirs = [await server.accept() for _ in range(connections)]
        readers = [asyncio.create_task(drain(one.entrypoint)) for one in theirs]
        counting = asyncio.create_task(count_turns())
        await asyncio.sleep(0)
        for _ in range(2 * TURN_BYTES // size):
            for client in clients:
                await client.entrypoint.send(bytes(size))
                counted += 1
        counting.cancel()
        for client in clients:
            client.entrypoint.finish()
        await asyncio.gather(*readers)
    assert longest < connections * TURN_BYTES / size / 2
