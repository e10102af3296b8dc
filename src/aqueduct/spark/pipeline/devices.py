"""The process of the devices: each has a connection to the gateway, with three channels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack

import msgspec

from aqueduct.api.channels import channel, oneshot
from aqueduct.api.client import connect
from aqueduct.api.handles import Sender
from aqueduct.protocol.connection import Mode
from aqueduct.security import dev_trust
from aqueduct.spark.pipeline.fleet import MODES, Device, DeviceReading, make_fleet
from aqueduct.spark.pipeline.messages import (
    ChildProgress,
    Command,
    Counts,
    DevicesPlan,
    Listening,
    RegisterDevice,
    StartSending,
)
from aqueduct.spark.pipeline.process import main, report
from aqueduct.testing.relay import Impairments, Relay

_SEND_INTERVAL = 0.02
_REPORT_INTERVAL = 0.25
_MAX_CONNECTING = 8
"""The most devices that connect concurrently."""

_encode = msgspec.json.Encoder().encode


class Fleet:
    """Connects the devices, sends their records and counts them."""

    def __init__(self, plan: DevicesPlan) -> None:
        self._plan = plan
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._connecting = asyncio.Semaphore(_MAX_CONNECTING)
        self._connected = 0
        self._start = 0.0
        self.sent: Counts = dict.fromkeys(MODES, 0)
        self.arrived: Counts = dict.fromkeys(MODES, 0)
        self.lost: Counts = dict.fromkeys(MODES, 0)
        self.late: Counts = {"buffered": 0, "stale": 0}

    async def run(self, address: str, commands: AsyncIterator[Command]) -> None:
        """Run all devices, from the first connection to the last answer."""
        plan = self._plan
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(self._report())
            listening = tasks.create_task(self._listen(commands))
            fleet = make_fleet(plan.devices, plan.rate, plan.seed)
            working = [tasks.create_task(self._run_device(device, address)) for device in fleet]
            await asyncio.wait(working)
            reporting.cancel()
            listening.cancel()

    def progress(self, done: bool = False) -> ChildProgress:
        """Return the counts."""
        return ChildProgress(self.sent, self.arrived, self.lost, self.late, done)

    async def _listen(self, commands: AsyncIterator[Command]) -> None:
        async for command in commands:
            if not isinstance(command, StartSending):
                break
            self._start = time.monotonic()
            self._started.set()
        self._stop.set()
        self._started.set()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL)
            report(self.progress())

    async def _run_device(self, device: Device, address: str) -> None:
        async with AsyncExitStack() as stack:
            async with self._connecting:
                connection = await stack.enter_async_context(
                    connect(address, RegisterDevice, trust=dev_trust())
                )
            ordered, their_ordered = channel(bytes)
            unordered, their_unordered = channel(bytes, mode=Mode.UNORDERED)
            unreliable, their_unreliable = channel(bytes, mode=Mode.UNRELIABLE)
            total, answer = oneshot(Counts)
            await connection.entrypoint.send(
                RegisterDevice(device.name, their_ordered, their_unordered, their_unreliable, total)
            )
            self._connected += 1
            if self._connected == self._plan.devices:
                report(Listening(address))
            await self._started.wait()
            senders = {"ordered": ordered, "unordered": unordered, "unreliable": unreliable}
            async with ordered, unordered, unreliable:
                await self._measure(device, senders)
            for mode, count in (await answer.receive()).items():
                self.arrived[mode] += count
            await unreliable.flush()  # the last acks and nacks may follow the answer
            self.lost["unreliable"] += unreliable.statistics()["undelivered"]
            connection.entrypoint.finish()

    async def _measure(self, device: Device, senders: dict[str, Sender[bytes]]) -> None:
        while not self._stop.is_set():
            elapsed = time.monotonic() - self._start
            await self._send(device.due(elapsed, time.time()), senders)
            await asyncio.sleep(_SEND_INTERVAL)
        await self._send(device.release(time.time()), senders)

    async def _send(
        self, readings: Iterable[DeviceReading], senders: dict[str, Sender[bytes]]
    ) -> None:
        for reading in readings:
            await senders[reading.mode].send(_encode(reading))
            self.sent[reading.mode] += 1
            if reading.late:
                self.late[reading.late] += 1


async def run(plan: DevicesPlan, commands: AsyncIterator[Command]) -> None:
    """Run the devices, which send between the commands `StartSending` and `Stop`."""
    fleet = Fleet(plan)
    async with AsyncExitStack() as stack:
        address = plan.gateway
        if plan.loss:
            relay = Relay(plan.gateway, Impairments(loss=plan.loss), seed=plan.seed)
            address = (await stack.enter_async_context(relay)).address
        await fleet.run(address, commands)
    report(fleet.progress(done=True))


if __name__ == "__main__":
    main(DevicesPlan, run)
