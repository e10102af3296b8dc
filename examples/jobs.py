"""A job queue: workers offer themselves, jobs are retried elsewhere, and callers may cancel.

A client submits a job with a call, and the queue runs it with a call to a worker: a worker sends
the queue a channel on which it serves requests. If the worker dies, the call raises, and the queue
calls another one. If the client gives up, its handler is cancelled, which cancels the worker's.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

import aqueduct
from aqueduct import Sender

ATTEMPTS = 3


class Run(aqueduct.Request[str]):
    """The queue asks a worker to run a job."""

    job: str
    attempt: int


class Submit(aqueduct.Request[str]):
    """A client asks the queue for the result of a job."""

    job: str


class Offer(msgspec.Struct, tag=True):
    """A worker offers to run jobs, one at a time."""

    jobs: Sender[Run]


class Queue:
    """The server: it gives each job to an idle worker."""

    def __init__(self, backoff: float = 0.05) -> None:
        self.backoff = backoff
        self.idle: asyncio.Queue[Sender[Run]] = asyncio.Queue()

    async def handle(self, request: Submit | Offer) -> str | None:
        if isinstance(request, Submit):
            return await self.run(request.job)
        self.idle.put_nowait(request.jobs)
        await request.jobs.wait_closed()  # the worker is ours until it leaves
        return None

    async def run(self, job: str) -> str:
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            worker = await self.next_worker()
            try:
                return await worker.call(Run(job=job, attempt=attempt))
            except aqueduct.CallError as error:  # the job failed: the worker says why
                reason = error.text
            except aqueduct.ChannelError as error:  # the worker died, or its connection did
                reason = f"lost the worker: {error}"
            finally:
                self.idle.put_nowait(worker)
            await asyncio.sleep(self.backoff * 2**attempt)
        raise aqueduct.CallError("job-failed", f"{ATTEMPTS} attempts, the last one: {reason}")

    async def next_worker(self) -> Sender[Run]:
        while True:
            worker = await self.idle.get()
            if not worker.is_closed:
                return worker


async def work(address: str, trust: aqueduct.Trust, run: Callable[[Run], Awaitable[str]]) -> None:
    """Offer to run jobs, and run them until the queue ends."""
    async with aqueduct.connect(address, Submit | Offer, trust=trust) as connection:
        theirs, jobs = aqueduct.channel(Run)
        await connection.entrypoint.send(Offer(theirs))
        async with jobs:
            with contextlib.suppress(aqueduct.ConnectionLost):
                await jobs.serve(run, concurrency=1)


async def run_job(request: Run) -> str:
    """Run a job. One that raises `CallError` is retried."""
    if request.job == "flaky" and request.attempt < 3:
        raise aqueduct.CallError("try-again", "the disk was busy")
    if request.job == "broken":
        raise aqueduct.CallError("broken", "no such file")
    if request.job == "slow":
        await asyncio.sleep(3600)
    return f"{request.job} is done, attempt {request.attempt}"


async def main() -> None:
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with aqueduct.serve("127.0.0.1:0", Submit | Offer, tls=tls) as server:
        serving = asyncio.create_task(server.serve(Queue().handle))
        worker = asyncio.create_task(work(server.address, trust, run_job))
        async with aqueduct.connect(server.address, Submit | Offer, trust=trust) as client:
            for job in ("easy", "flaky"):
                print(await client.entrypoint.call(Submit(job=job)))
            try:
                await client.entrypoint.call(Submit(job="broken"))
            except aqueduct.CallError as error:
                print("broken:", error)
            try:
                await client.entrypoint.call(Submit(job="slow"), timeout=0.2)
            except aqueduct.CallTimeout:
                print("slow: gave up, which cancels the job")
            print(await client.entrypoint.call(Submit(job="next")))
        worker.cancel()
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(main())
