"""Telemetry over a lossy network: late readings are worthless, so none is retransmitted.

An unreliable channel sends each message in its own datagram. Both sides learn which messages were
lost: the sender counts them, or waits for the receipt of an important one.
"""

import asyncio
import contextlib

import msgspec

import aqueduct
from aqueduct import Connection, Mode, Receiver, Sender
from aqueduct.testing.relay import Impairments, Relay

READINGS = 200


class Reading(msgspec.Struct, array_like=True):
    number: int
    celsius: float


class Watch(msgspec.Struct):
    sensor: str
    readings: Receiver[Reading]
    total: Sender[int]


async def collect(connection: Connection[Watch]) -> None:
    async for watch in connection.entrypoint:
        arrived = 0
        with contextlib.suppress(aqueduct.ChannelError):  # this sensor has disconnected
            async for _ in watch.readings:
                arrived += 1
            await watch.total.send(arrived)


async def measure(address: str) -> None:
    async with aqueduct.connect(address, Watch, trust=aqueduct.dev_trust()) as connection:
        readings, theirs = aqueduct.channel(Reading, mode=Mode.UNRELIABLE)
        total, answer = aqueduct.oneshot(int)
        await connection.entrypoint.send(Watch("boiler", theirs, total))
        async with readings:
            for number in range(READINGS - 1):
                await readings.send(Reading(number, 20 + number / 10))
                await asyncio.sleep(0.002)
            receipt = await readings.send(Reading(READINGS - 1, 99.9), receipt=True)
            assert receipt is not None
            fate = await receipt
            counted = readings.statistics()
        arrived = await answer.receive()
        print(f"sent {READINGS}, arrived {arrived}, lost {counted['undelivered']}")
        print("everything is accounted for:", arrived + counted["undelivered"] == READINGS)
        print("the last reading was", fate.value)


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", Watch, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(collect))
        async with Relay(server.address, Impairments(loss=0.1, delay=0.005), seed=7) as relay:
            await measure(relay.address)
        serving.cancel()


asyncio.run(main())
