"""The work of the channel layer is linear, counted in steps instead of seconds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aqueduct.protocol.events import Delivered
from aqueduct.runtime.ports import Outcome
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.runtime.waiters import Waiters
from tests.api.joined import joined
from tests.protocol.test_complexity import FACTOR, SLACK, steps


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
        first = steps(client._driver._is_sent)
        taken = steps(lambda: [client._driver._is_sent() for _ in range(turns)])
        assert taken < first + 40 * turns
        last.delivered = 1
        assert client._driver._is_sent()
        for port in (*idle, last):
            del client._driver.ports[port.channel]
        assert core.channel_count == 1
