"""Jobs that survive the loss of the message that carried their channel.

Jobs are sent in datagrams, each with the channel for its result. When the network drops a datagram,
the server never learns of the channel and cannot answer on it. The receiver of the client then
raises `ChannelLostInTransit` as soon as the loss is known, and the client retries the job without a
timeout.
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
            with contextlib.suppress(aqueduct.ChannelError):  # the client no longer waits for it
                await job.result.send(job.number**2)


async def run_job(jobs: Sender[Job], number: int) -> int:
    """Run a job, and return the number of attempts."""
    await asyncio.sleep(number / 200)  # so that the jobs do not share one packet
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
