"""Jobs that survive the loss of the message that carried their channel.

Each job is sent in a datagram with the channel for its result. When the network loses the datagram,
the worker never learns of that channel. The client's half then ends with `ChannelLostInTransit`,
and the client sends the job again. This needs no timeout.
"""

import asyncio

import msgspec

import aqueduct
from aqueduct import Mode, Receiver, Request, Sender
from aqueduct.testing.relay import Impairments, Relay

JOBS = 40


class Job(Request[int]):
    number: int


class Work(msgspec.Struct):
    jobs: Receiver[Job]


async def worker(work: Work) -> None:
    await work.jobs.serve(square)


async def square(job: Job) -> int:
    return job.number**2


async def run_job(jobs: Sender[Job], number: int) -> int:
    """Run a job, and return how often it was sent."""
    await asyncio.sleep(number / 200)  # so that jobs use several packets
    attempts = 1
    while True:
        try:
            assert await jobs.call(Job(number)) == number**2
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
        serving = asyncio.create_task(server.serve(worker))
        async with Relay(server.address, Impairments(loss=0.2, delay=0.005), seed=3) as relay:
            await client(relay.address)
        serving.cancel()


asyncio.run(main())
