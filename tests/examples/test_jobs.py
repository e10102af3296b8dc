"""The job queue: workers that die, jobs that fail, callers that give up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aqueduct
from examples.jobs import Offer, Queue, Run, Submit, run_job, work
from tests.examples.running import connect, serving

KIND = Submit | Offer

WORKER = """
import asyncio, sys
import aqueduct
from examples.jobs import Offer, Run, Submit

async def run(request):
    print("working", flush=True)
    await asyncio.sleep(3600)

async def main():
    # The server notices within this time that the process was killed.
    options = aqueduct.QuicSettings(idle_timeout=1)
    trust = aqueduct.dev_trust()
    async with aqueduct.connect(sys.argv[1], Submit | Offer, trust=trust, options=options) as queue:
        theirs, jobs = aqueduct.channel(Run)
        await queue.entrypoint.send(Offer(theirs))
        await jobs.serve(run)

asyncio.run(main())
"""


@asynccontextmanager
async def worker(server: aqueduct.Server[Any], run: Any = run_job) -> AsyncIterator[None]:
    task = asyncio.create_task(work(server.address, aqueduct.dev_trust(), run))
    try:
        yield
    finally:
        task.cancel()


async def test_a_job_of_a_worker_that_is_killed_runs_on_another_one() -> None:
    queue = Queue(backoff=0.001)
    async with (
        serving(queue.handle, KIND, "127.0.0.1:0") as server,
        connect(server, KIND) as client,
    ):
        command = [sys.executable, "-c", WORKER, server.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220 -- starts at once
            assert process.stdout is not None
            try:
                result = asyncio.create_task(client.entrypoint.call(Submit(job="precious")))
                line = await asyncio.to_thread(process.stdout.readline)
                assert line == b"working\n"
            finally:
                process.kill()
        async with worker(server):
            assert await result == "precious is done, attempt 2"


async def test_a_caller_that_gives_up_cancels_the_job_and_the_worker_takes_the_next() -> None:
    cancelled = asyncio.Event()
    began = asyncio.Event()

    async def run(request: Run) -> str:
        if request.job == "next":
            return "done"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with (
        serving(Queue().handle, KIND) as server,
        connect(server, KIND) as client,
        worker(server, run),
    ):
        calling = asyncio.create_task(client.entrypoint.call(Submit(job="slow")))
        await began.wait()
        calling.cancel()
        await cancelled.wait()
        assert await client.entrypoint.call(Submit(job="next")) == "done"


async def test_a_job_that_fails_is_retried_and_the_caller_learns_the_last_reason() -> None:
    attempts: list[int] = []

    async def run(request: Run) -> str:
        attempts.append(request.attempt)
        return await run_job(request)

    queue = Queue(backoff=0.001)
    async with (
        serving(queue.handle, KIND) as server,
        connect(server, KIND) as client,
        worker(server, run),
    ):
        with pytest.raises(aqueduct.CallError, match="no such file") as caught:
            await client.entrypoint.call(Submit(job="broken"))
        assert caught.value.code == "job-failed"
        assert attempts == [1, 2, 3]
        assert await client.entrypoint.call(Submit(job="flaky")) == "flaky is done, attempt 3"


async def test_a_job_waits_for_a_worker() -> None:
    async with serving(Queue().handle, KIND) as server, connect(server, KIND) as client:
        calling = asyncio.create_task(client.entrypoint.call(Submit(job="early")))
        await client.entrypoint.flush()
        async with worker(server):
            assert await calling == "early is done, attempt 1"
