"""One process of a pair: reads commands as lines of JSON, and answers in the same form.

python -m bench.network.worker server|client NAME '{"authority": ..., ...}'
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TextIO

from bench.network.machine import peak_megabytes, process_seconds
from bench.network.measures import Manner
from bench.network.peer import Client, Json, Server, Setting
from bench.network.roster import IPC_PEERS, PEERS

STOP_SECONDS = 3.0
BURST = 200
"""Probes that are timed beside bulk without a pause."""
WARM_SECONDS = 0.1
"""Seconds of bulk before probes are timed beside it."""
PAUSE_SECONDS = 0.3
"""Seconds without bulk after that."""


class Control:
    """This process's end of the pipes."""

    def __init__(self) -> None:
        # Libraries may print to stdout, so answers go through a duplicate of the descriptor.
        self._out: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    async def read(self) -> Json:
        loop = asyncio.get_running_loop()
        line = await loop.run_in_executor(None, sys.stdin.readline)
        order: Json = json.loads(line) if line else {"order": "quit"}
        return order

    def write(self, **answer: object) -> None:
        self._out.write(json.dumps(answer) + "\n")


class Usage:
    """Measures the processor time of this process from its creation on, and its peak memory."""

    def __init__(self) -> None:
        self._before = process_seconds()

    def now(self) -> Json:
        return {"processor": process_seconds() - self._before, "peak": peak_megabytes()}


async def serve(control: Control, server: Server) -> None:
    control.write(info=await server.start())
    while (order := await control.read())["order"] != "quit":
        usage = Usage()
        control.write(ready=True)
        if order["order"] == "stream":
            counted = await server.receive(Manner(order["manner"]), order["size"], order["count"])
            control.write(
                count=counted.count, total=counted.total, at=counted.at, usage=usage.now()
            )
        elif order["order"] == "deliver":
            before = server.taken
            await control.read()
            counts = [now - then for now, then in zip(server.taken, before, strict=True)]
            control.write(count=counts[0], total=counts[1], usage=usage.now())
        else:
            await control.read()
            control.write(usage=usage.now())
    await stop(server)


async def ask(control: Control, client: Client) -> None:
    await client.open((await control.read())["info"])
    control.write(ready=True)
    while (order := await control.read())["order"] != "quit":
        usage = Usage()
        answer = await obey(order, client)
        control.write(**answer)
        await control.read()  # the server is done as well
        control.write(usage=usage.now())
    await stop(client)


async def obey(order: Json, client: Client) -> Json:
    payload = os.urandom(order["size"])
    count = order["count"]
    if order["order"] == "stream":
        started = time.monotonic_ns()
        await client.send(Manner(order["manner"]), payload, count)
        return {"at": started}
    if order["order"] == "trips":
        return {"times": await time_calls(client.trip, payload, count)}
    if order["order"] == "calls":
        return {"times": await time_calls(client.call, payload, count)}
    if order["order"] == "deliver":
        return await time_deliveries(client, payload, count, order["flight"])
    if order["order"] == "fresh":
        return {"times": await time_fresh(client, payload, count)}
    if order["order"] == "bulk":
        return await time_probes(client, count, order["flight"])
    await client.hold(count)
    return {}


async def time_calls(
    call: Callable[[bytes], Awaitable[bytes]], payload: bytes, count: int
) -> list[int]:
    clock = time.perf_counter_ns
    times = []
    for _ in range(count):
        started = clock()
        answer = await call(payload)
        times.append(clock() - started)
        check(answer, payload)
    return times


async def time_deliveries(client: Client, payload: bytes, count: int, flight: int) -> Json:
    """Send messages from this many tasks, each with one in flight."""
    deliver = client.deliver if flight > 1 else client.deliver_alone
    clock = time.perf_counter_ns
    times = []
    left = iter(range(count))

    async def keep_going() -> None:
        for _ in left:
            started = clock()
            await deliver(payload)
            times.append(clock() - started)

    began = clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(flight):
            group.create_task(keep_going())
    return {"seconds": (clock() - began) / 1e9, "times": times}


async def time_probes(client: Client, count: int, channels: int) -> Json:
    """Time small things on the idle connection, then beside channels in bulk.

    Bulk comes in bursts with pauses: the kernel stops a process of real-time priority that takes
    a whole core for 50 ms in each second.
    """
    for kind in client.probes:
        await client.probe(kind, 10)
    idle = {kind: await client.probe(kind, count) for kind in client.probes}
    loaded: dict[str, list[int]] = {kind: [] for kind in client.probes}
    sent = 0
    seconds = 0.0
    for kind, times in loaded.items():
        while len(times) < count:
            started = time.monotonic()
            await client.start_bulk(channels)
            await asyncio.sleep(WARM_SECONDS)
            times.extend(await client.probe(kind, min(BURST, count - len(times))))
            sent += await client.stop_bulk()
            seconds += time.monotonic() - started
            await asyncio.sleep(PAUSE_SECONDS)
    probes = {kind: (idle[kind], loaded[kind]) for kind in client.probes}
    return {"probes": probes, "rate": sent / seconds}


async def time_fresh(client: Client, payload: bytes, count: int) -> list[int]:
    clock = time.perf_counter_ns
    times = []
    for _ in range(count):
        started = clock()
        answer, close = await client.fresh(payload)
        times.append(clock() - started)
        check(answer, payload)
        await close()
    return times


def check(answer: bytes, payload: bytes) -> None:
    if answer != payload:
        raise RuntimeError(f"sent {len(payload)} bytes, but the reply has {len(answer)} others")


async def stop(side: Server | Client) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await (side.stop() if isinstance(side, Server) else side.close())


def loop_factory(uvloop_wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if not uvloop_wanted:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main(role: str, name: str, setting: Setting) -> None:
    (peer,) = (peer for peer in (*PEERS, *IPC_PEERS) if peer.name == name)
    module = importlib.import_module(peer.module)
    control = Control()
    with asyncio.Runner(loop_factory=loop_factory(peer.uvloop)) as runner:
        if role == "server":
            runner.run(serve(control, module.Server(setting)))
        else:
            runner.run(ask(control, module.Client(setting)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Setting(**json.loads(sys.argv[3])))
