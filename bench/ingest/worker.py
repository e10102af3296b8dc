"""One process of a crowd: reads commands as lines of JSON, and answers in the same form.

python -m bench.ingest.worker server|producer|fill|recover NAME '{"authority": ..., ...}'
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.ingest.store import Producer, Server
from bench.network.machine import peak_megabytes
from bench.network.peer import Json, Setting
from bench.network.roster import INGEST_PEERS
from bench.network.worker import Control, Usage, loop_factory

STEP = 64
"""Records between two reads of the clock."""
TICK = 0.001
"""Seconds between two batches of records at a fixed rate."""
STOP_SECONDS = 5.0
POOL = 2 * 1024 * 1024
"""Bytes of distinct records: more than the window of a compressor."""


class Payloads:
    """Random records from a pool that repeats, because generating them takes time."""

    def __init__(self, size: int) -> None:
        self._pool = [os.urandom(size) for _ in range(POOL // size)]
        self._at = 0

    def next(self, count: int) -> list[bytes]:
        """Return the next records of the pool, which wraps around."""
        found = self._pool[self._at : self._at + count]
        self._at += count
        if len(found) < count:
            self._at = count - len(found)
            found += self._pool[: self._at]
        return found


async def serve(control: Control, server: Server) -> None:
    control.write(info=await server.start())
    while (await control.read())["order"] != "quit":
        count = await server.stored()
        control.write(count=count, peak=server.peak, processor=server.processor)
    await asyncio.wait_for(server.stop(), STOP_SECONDS)


async def produce(control: Control, producer: Producer) -> None:
    await producer.open((await control.read())["info"])
    control.write(ready=True)
    while (order := await control.read())["order"] != "quit":
        usage = Usage()
        payloads = Payloads(order["size"])
        if order["order"] == "store":
            answer = await pour(producer, payloads, order["seconds"])
        else:
            answer = await keep_pace(producer, payloads, order["rate"], order["seconds"])
        control.write(**answer, usage=usage.now())
    await asyncio.wait_for(producer.close(), STOP_SECONDS)


async def pour(producer: Producer, payloads: Payloads, seconds: float) -> Json:
    """Send records for this long, and wait until the last is stored."""
    began = time.monotonic_ns()
    deadline = began + seconds * 1e9
    count = 0
    while time.monotonic_ns() < deadline:
        await producer.pour(payloads.next(STEP))
        count += STEP
    await producer.flush()
    return {"count": count, "began": began, "ended": time.monotonic_ns()}


async def keep_pace(producer: Producer, payloads: Payloads, rate: float, seconds: float) -> Json:
    """Send records at a fixed rate; time one per batch from when it was due until it is stored."""
    times: list[float] = []

    async def deliver(due: float) -> None:
        await producer.deliver(payloads.next(1)[0])
        times.append(time.monotonic() - due)

    began = time.monotonic()
    count = 0
    async with asyncio.TaskGroup() as group:
        for tick in range(round(seconds / TICK)):
            due = began + tick * TICK
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            wanted = int(rate * (tick + 1) * TICK) - count
            if wanted > 0:
                await producer.pour(payloads.next(wanted - 1))
                group.create_task(deliver(due))
                count += wanted
    await producer.flush()
    return {"count": count, "seconds": time.monotonic() - began, "times": times}


async def once(control: Control, work: Callable[[Json], Json]) -> None:
    """Run one command in this process, so that its memory is measured alone."""
    control.write(info={})
    control.write(**work(await control.read()))


def main(role: str, name: str, setting: Setting) -> None:
    (peer,) = (peer for peer in INGEST_PEERS if peer.name == name)
    module = importlib.import_module(peer.module)
    control = Control()
    with asyncio.Runner(loop_factory=loop_factory(peer.uvloop)) as runner:
        if role == "server":
            runner.run(serve(control, module.Server(setting)))
        elif role == "producer":
            runner.run(produce(control, module.Producer(setting)))
        else:
            directory = Path(setting.options["directory"])
            runner.run(once(control, lambda order: work_on(module, directory, role, order)))


def work_on(module: Any, directory: Path, role: str, order: Json) -> Json:
    if role == "fill":
        found: Json = module.fill(directory, order["bytes"], os.urandom(order["size"]))
    else:
        found = module.recover(directory)
    return {**found, "peak": peak_megabytes()}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Setting(**json.loads(sys.argv[3])))
