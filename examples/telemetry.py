"""Telemetry over a lossy network: late readings are worthless, so they are not retransmitted.

An unreliable channel sends messages in datagrams. The sender learns which ones were lost: it counts
them, or requests a receipt for a message that matters.
"""

import asyncio

import msgspec

import aqueduct
from aqueduct import Mode, Receiver, Request
from aqueduct.testing.relay import Impairments, Relay

READINGS = 200


class Reading(msgspec.Struct, array_like=True):
    number: int
    celsius: float


class Watch(Request[int]):
    sensor: str
    readings: Receiver[Reading]


async def collect(watch: Watch) -> int:
    """Return how many readings arrived. A sensor that disconnects ends its own request only."""
    arrived = 0
    async for _ in watch.readings:
        arrived += 1
    return arrived


async def measure(address: str) -> None:
    async with aqueduct.connect(address, Watch, trust=aqueduct.dev_trust()) as connection:
        readings, theirs = aqueduct.channel(Reading, mode=Mode.UNRELIABLE)
        counting = asyncio.create_task(connection.entrypoint.call(Watch("boiler", theirs)))
        async with readings:
            for number in range(READINGS - 1):
                await readings.send(Reading(number, 20 + number / 10))
                await asyncio.sleep(0.002)
            receipt = await readings.send(Reading(READINGS - 1, 99.9), receipt=True)
            assert receipt is not None
            fate = await receipt
            counted = readings.statistics()
        arrived = await counting
        print(f"sent {READINGS}, arrived {arrived}, lost {counted['undelivered']}")
        print("everything is accounted for:", arrived + counted["undelivered"] == READINGS)
        print("the last reading was", fate.value)


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", Watch, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(collect))
        async with Relay(server.address, Impairments(loss=0.1, delay=0.005), seed=7) as relay:
            await measure(relay.address)
        serving.cancel()


asyncio.run(main())
