"""Jobs that survive the loss of the message that carried their channel.

Each job is sent in a datagram with the channel for its result. When the network loses the datagram,
the worker never learns of that channel. The client's half then ends with `ChannelLostInTransit`,
and the client sends the job again. This needs no timeout.
"""

import asyncio
import contextlib

import msgspec

import aqueduct
from aqueduct import Connection, Mode, Receiver, Sender
from aqueduct.testing.relay import Impairments, Relay

JOBS = 40


class Job(msgspec.Struct):
    number: int
    result: Sender[int]


class Work(msgspec.Struct):
    jobs: Receiver[Job]


async def worker(connection: Connection[Work]) -> None:
    async for work in connection.entrypoint:
        async for job in work.jobs:
            with contextlib.suppress(aqueduct.ChannelError):  # the client gave up
                await job.result.send(job.number**2)


async def run_job(jobs: Sender[Job], number: int) -> int:
    """Run a job, and return how often it was sent."""
    await asyncio.sleep(number / 200)  # so that jobs use several packets
    attempts = 1
    while True:
        theirs, result = aqueduct.oneshot(int)
        async with result:
            await jobs.send(Job(number, theirs))
            try:
                assert await result.receive() == number**2
            except aqueduct.ChannelLostInTransit:
                attempts += 1
            else:
                return attempts


async def client(address: str) -> None:
    async with aqueduct.connect(address, Work, trust=aqueduct.dev_trust()) as connection:
        jobs, theirs = aqueduct.channel(Job, mode=Mode.UNRELIABLE)
        await connection.entrypoint.send(Work(theirs))
        async with jobs:
            attempts = await asyncio.gather(*(run_job(jobs, number) for number in range(JOBS)))
        again = sum(attempts) - JOBS
        print(f"{JOBS} jobs done, {sum(attempts)} messages sent")
        print("some were lost and sent again:", again > 0)


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", Work, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(worker))
        async with Relay(server.address, Impairments(loss=0.2, delay=0.005), seed=3) as relay:
            await client(relay.address)
        serving.cancel()


asyncio.run(main())
