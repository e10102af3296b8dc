"""The process of the devices: each has a connection to the gateway, and three channels on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack

import msgspec

from aqueduct.api.client import connect
from aqueduct.api.handles import Sender, channel, oneshot
from aqueduct.protocol.connection import Mode
from aqueduct.security import dev_trust
from aqueduct.spark.jobs.pipeline.fleet import MODES, Device, Reading, make_fleet
from aqueduct.spark.jobs.pipeline.messages import (
    Attend,
    Begin,
    Counts,
    DevicesPlan,
    Listening,
    Order,
    Told,
)
from aqueduct.spark.jobs.pipeline.process import main, say
from aqueduct.testing.relay import Impairments, Relay

_TICK = 0.02
_TELL = 0.25
_CONNECTING = 8
"""Devices that connect at the same time."""

_encode = msgspec.json.Encoder().encode


class Fleet:
    """Devices that are connected, and what they have sent."""

    def __init__(self, plan: DevicesPlan) -> None:
        self._plan = plan
        self._begun = asyncio.Event()
        self._stop = asyncio.Event()
        self._turns = asyncio.Semaphore(_CONNECTING)
        self._connected = 0
        self._start = 0.0
        self.sent: Counts = dict.fromkeys(MODES, 0)
        self.arrived: Counts = dict.fromkeys(MODES, 0)
        self.lost: Counts = dict.fromkeys(MODES, 0)
        self.late: Counts = {"buffered": 0, "stale": 0}

    async def run(self, address: str, orders: AsyncIterator[Order]) -> None:
        """All devices, from the first connection to the last answer."""
        plan = self._plan
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell())
            listening = tasks.create_task(self._listen(orders))
            fleet = make_fleet(plan.devices, plan.rate, plan.seed)
            working = [tasks.create_task(self._attend(device, address)) for device in fleet]
            await asyncio.wait(working)
            telling.cancel()
            listening.cancel()

    def told(self, done: bool = False) -> Told:
        """The counts."""
        return Told(self.sent, self.arrived, self.lost, self.late, done)

    async def _listen(self, orders: AsyncIterator[Order]) -> None:
        async for order in orders:
            if not isinstance(order, Begin):
                break
            self._start = time.monotonic()
            self._begun.set()
        self._stop.set()
        self._begun.set()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL)
            say(self.told())

    async def _attend(self, device: Device, address: str) -> None:
        async with AsyncExitStack() as stack:
            async with self._turns:
                connection = await stack.enter_async_context(
                    connect(address, Attend, trust=dev_trust())
                )
            ordered, their_ordered = channel(bytes)
            unordered, their_unordered = channel(bytes, mode=Mode.UNORDERED)
            unreliable, their_unreliable = channel(bytes, mode=Mode.UNRELIABLE)
            total, answer = oneshot(Counts)
            await connection.entrypoint.send(
                Attend(device.name, their_ordered, their_unordered, their_unreliable, total)
            )
            self._connected += 1
            if self._connected == self._plan.devices:
                say(Listening(address))
            await self._begun.wait()
            senders = {"ordered": ordered, "unordered": unordered, "unreliable": unreliable}
            async with ordered, unordered, unreliable:
                await self._measure(device, senders)
            for mode, count in (await answer.receive()).items():
                self.arrived[mode] += count
            await unreliable.flush()  # the last acks and nacks may be behind the answer
            self.lost["unreliable"] += unreliable.statistics()["undelivered"]
            connection.entrypoint.finish()

    async def _measure(self, device: Device, senders: dict[str, Sender[bytes]]) -> None:
        while not self._stop.is_set():
            elapsed = time.monotonic() - self._start
            await self._send(device.due(elapsed, time.time()), senders)
            await asyncio.sleep(_TICK)
        await self._send(device.release(time.time()), senders)

    async def _send(self, readings: Iterable[Reading], senders: dict[str, Sender[bytes]]) -> None:
        for reading in readings:
            await senders[reading.mode].send(_encode(reading))
            self.sent[reading.mode] += 1
            if reading.late:
                self.late[reading.late] += 1


async def run(plan: DevicesPlan, orders: AsyncIterator[Order]) -> None:
    """Have the devices send from `Begin` to `Stop`."""
    fleet = Fleet(plan)
    async with AsyncExitStack() as stack:
        address = plan.gateway
        if plan.loss:
            relay = Relay(plan.gateway, Impairments(loss=plan.loss), seed=plan.seed)
            address = (await stack.enter_async_context(relay)).address
        await fleet.run(address, orders)
    say(fleet.told(done=True))


if __name__ == "__main__":
    main(DevicesPlan, run)
