"""Telemetry: what a server that restarts has missed arrives later, once."""

from __future__ import annotations

import asyncio

import aqueduct
from examples.reconnect import Device, Store, Stream
from tests.examples.running import serving

NAME = "memory://telemetry"


async def test_readings_survive_restarts_of_the_server_each_once_and_in_order() -> None:
    store = Store()
    device = Device("boiler", [NAME], aqueduct.dev_trust())
    running = asyncio.create_task(device.run(least=0.001, most=0.01))
    device.measure(0.0)  # before any server runs
    for _ in range(3):
        async with serving(store.handle, Stream, NAME):
            await device.is_stored.wait()
            for _ in range(10):  # the server ends while they are on their way
                device.measure(20.0)
        device.measure(20.0)
    async with serving(store.handle, Stream, NAME):
        await device.is_stored.wait()
    running.cancel()
    assert [reading.number for reading in store.readings["boiler"]] == list(range(1, 35))
    assert device.connects >= 4


async def test_readings_that_were_stored_without_the_device_knowing_are_not_sent_again() -> None:
    store = Store()
    received: list[int] = []
    has_all = asyncio.Event()

    async def store_and_fail(request: Stream) -> None:
        await request.reply.send(store.last("boiler"))
        async for reading in request.readings:
            received.append(reading.number)
            store.readings.setdefault("boiler", []).append(reading)
            if reading.number == 3:
                has_all.set()
            if reading.number == 2:
                raise aqueduct.CallError("failed", "after it has stored, before it said so")

    device = Device("boiler", [NAME], aqueduct.dev_trust())
    for _ in range(3):
        device.measure(20.0)
    running = asyncio.create_task(device.run(least=0.001, most=0.01))
    async with serving(store_and_fail, Stream, NAME):
        await has_all.wait()
    async with serving(store.handle, Stream, NAME):
        await device.is_stored.wait()
    running.cancel()
    assert received == [1, 2, 3]
    assert [reading.number for reading in store.readings["boiler"]] == [1, 2, 3]


async def test_a_device_tries_again_when_its_request_fails() -> None:
    store = Store()
    failed = asyncio.Event()

    async def fail(request: Stream) -> int:
        failed.set()
        raise aqueduct.CallError("busy", "come back later")

    device = Device("boiler", [NAME], aqueduct.dev_trust())
    device.measure(20.0)
    running = asyncio.create_task(device.run(least=0.001, most=0.01))
    async with serving(fail, Stream, NAME):
        await failed.wait()
    async with serving(store.handle, Stream, NAME):
        await device.is_stored.wait()
    running.cancel()
    assert [reading.number for reading in store.readings["boiler"]] == [1]


async def test_a_device_without_a_server_keeps_the_newest_readings() -> None:
    device = Device("boiler", [NAME], aqueduct.dev_trust())
    for number in range(10_005):
        device.measure(float(number))
    assert (len(device.kept), device.kept[0].number) == (10_000, 6)
