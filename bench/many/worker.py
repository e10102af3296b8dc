"""One process with many connections: reads commands as lines of JSON, and answers in the same form.

python -m bench.many.worker server|client quic|tcp '{"authority": ..., ...}'
"""

import asyncio
import contextlib
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

import aqueduct
from bench.network.machine import process_seconds
from bench.network.peer import HOST, Json, Setting
from bench.network.worker import Control, loop_factory

SIZE = 100
"""Bytes of a message."""
PER_MESSAGE = 200
"""Channels per message when many are opened."""
CONNECT_SECONDS = 60.0
STOP_SECONDS = 10.0
_TIME = 8
"""Bytes of the time in a published message."""

OPTIONS = aqueduct.QuicSettings(max_connections=20_000)
"""One address gets nine tenths of `max_connections`; other settings have their defaults."""
LIMITS = aqueduct.Limits(max_channels=200_000)


class Join(msgspec.Struct, tag=True):
    """What each connection begins with: a channel each way. The server echoes what comes."""

    data: aqueduct.Receiver[bytes]
    back: aqueduct.Sender[bytes]


class Crowd(msgspec.Struct, tag=True):
    """Requests that the messages on each channel are counted."""

    channels: list[aqueduct.Receiver[bytes]]


Request = Join | Crowd


def resident() -> int:
    """Return the resident memory of this process in bytes; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def allow_descriptors() -> int:
    """Raise the limit of open files as far as allowed, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Server:
    """Serves echoes, publishes to all connections, and counts what comes on many channels."""

    def __init__(self, transport: str, setting: Setting) -> None:
        self._transport = transport
        self._setting = setting
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribers: dict[Any, aqueduct.Sender[bytes]] = {}
        self._counts: asyncio.Queue[int] = asyncio.Queue()
        self._last = 0

    async def open(self, order: Json) -> Json:
        """Start to serve."""
        limit = allow_descriptors()
        tls = aqueduct.tls(self._setting.certificate, self._setting.key)
        address = f"aqueduct+{self._transport}://{HOST}:0"
        server = await self._stack.enter_async_context(
            aqueduct.serve(address, Request, tls=tls, options=OPTIONS, limits=LIMITS)
        )
        self._keep(server.run(self._handle))
        return {"address": server.address, "descriptors": limit}

    async def usage(self, order: Json) -> Json:
        """Return the memory and the processor time of this process."""
        if order["collect"]:
            gc.collect()
        return {
            "resident": resident(),
            "processor": process_seconds(),
            "subscribers": len(self._subscribers),
        }

    async def publish(self, order: Json) -> Json:
        """Send the same messages to every subscriber, and an empty one at the end."""
        rest = os.urandom(SIZE - _TIME)
        subscribers = list(self._subscribers.values())
        clock = time.monotonic_ns
        before, started, messages = process_seconds(), clock(), 0
        until = started + order["seconds"] * 1e9
        while messages < order["most"] and clock() < until:
            payload = clock().to_bytes(_TIME, "big") + rest
            for subscriber in subscribers:
                await subscriber.send(payload)
            messages += 1
            if order["pause"]:
                await asyncio.sleep(order["pause"])
        for subscriber in subscribers:
            await subscriber.send(b"")
        for subscriber in subscribers:
            await subscriber.flush()
        return {"started": started, "messages": messages, "processor": process_seconds() - before}

    async def counts(self, order: Json) -> Json:
        """Return how many messages came on each channel, once all channels have ended."""
        counted = [await self._counts.get() for _ in range(order["channels"])]
        return {"messages": sum(counted), "last": self._last}

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, connection: aqueduct.Connection[Any]) -> None:
        try:
            async for request in connection.entrypoint:
                if isinstance(request, Join):
                    self._subscribers[connection] = request.back
                    self._keep(echo(request))
                else:
                    for receiver in request.channels:
                        self._keep(self._count(receiver))
        finally:
            self._subscribers.pop(connection, None)

    async def _count(self, receiver: aqueduct.Receiver[bytes]) -> None:
        count = 0
        async with receiver:
            async for _ in receiver:
                count += 1
        self._last = time.monotonic_ns()
        self._counts.put_nowait(count)


async def echo(request: Join) -> None:
    """Send back what comes, until the connection ends."""
    with contextlib.suppress(aqueduct.AqueductError):
        async for payload in request.data:
            await request.back.send(payload)


class Joined:
    """A client's connection, with its channel each way."""

    def __init__(
        self,
        connection: aqueduct.Connection[Any],
        data: aqueduct.Sender[bytes],
        back: aqueduct.Receiver[bytes],
    ) -> None:
        self.connection = connection
        self._data = data
        self._back = back

    async def time_trips(self, count: int, payload: bytes) -> list[int]:
        """Return how long each of these round trips took, in nanoseconds."""
        clock = time.monotonic_ns
        times = []
        for _ in range(count):
            started = clock()
            await self._data.send(payload)
            answer = await self._back.receive()
            times.append(clock() - started)
            if answer != payload:
                raise RuntimeError("the reply differs from what was sent")
        return times

    async def listen(self) -> tuple[int, int, int]:
        """Return the number of published messages, the sum of their delays, and when the last came.

        Stops at an empty message.
        """
        clock = time.monotonic_ns
        count = delay = last = 0
        while payload := await self._back.receive():
            last = clock()
            delay += last - int.from_bytes(payload[:_TIME], "big")
            count += 1
        return count, delay, last


class Client:
    """A process with many connections."""

    def __init__(self, transport: str, setting: Setting) -> None:
        self._trust = aqueduct.trust(setting.authority)
        self._address = ""
        self._joined: list[Joined] = []

    async def open(self, order: Json) -> Json:
        """Learn where the server is."""
        self._address = order["address"]
        return {"descriptors": allow_descriptors()}

    async def usage(self, order: Json) -> Json:
        """Return the processor time of this process."""
        return {"processor": process_seconds()}

    async def connect(self, order: Json) -> Json:
        """Open connections, some at a time, up to a number."""
        left = iter(range(order["count"] - len(self._joined)))
        times: list[int] = []

        async def keep_connecting() -> None:
            for _ in left:
                started = time.monotonic_ns()
                self._joined.append(await self._join())
                times.append(time.monotonic_ns() - started)

        await asyncio.gather(*(keep_connecting() for _ in range(order["at_a_time"])))
        return {"times": times}

    async def trips(self, order: Json) -> Json:
        """Time round trips on some of the connections at once."""
        payload = os.urandom(SIZE)
        joined = self._joined
        step = max(1, len(joined) // order["busy"])
        busy = joined[: order["busy"] * step : step]
        for count in (order["warm"], order["count"]):
            found = await asyncio.gather(*(one.time_trips(count, payload) for one in busy))
        return {"times": [each for times in found for each in times]}

    async def listen(self, order: Json) -> Json:
        """Receive what is published on all connections."""
        found = await asyncio.gather(*(one.listen() for one in self._joined))
        return {"found": found}

    async def crowd(self, order: Json) -> Json:
        """Send on many channels of one connection at once."""
        payload = os.urandom(SIZE)
        senders: list[aqueduct.Sender[bytes]] = []
        entrypoint = self._joined[0].connection.entrypoint
        while len(senders) < order["channels"]:
            made = [
                aqueduct.channel(bytes)
                for _ in range(min(PER_MESSAGE, order["channels"] - len(senders)))
            ]
            await entrypoint.send(Crowd([receiver for _, receiver in made]))
            senders += [sender for sender, _ in made]
        for sender in senders:
            await sender.send(payload)
            await sender.flush()
        started = time.monotonic_ns()
        steady = started + order["warm"] * 1e9
        until = steady + order["seconds"] * 1e9

        async def keep_sending(sender: aqueduct.Sender[bytes]) -> tuple[int, int]:
            clock = time.monotonic_ns
            before = after = 0
            while (now := clock()) < until:
                await sender.send(payload)
                if now < steady:
                    before += 1
                else:
                    after += 1
            sender.finish()
            return before, after

        processor = process_seconds()
        sent = await asyncio.gather(*map(keep_sending, senders))
        for sender in senders:
            await sender.flush()
        return {
            "started": started,
            "messages": len(senders) + sum(before + after for before, after in sent),
            "steady": [after for _, after in sent],
            "processor": process_seconds() - processor,
        }

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(one.connection.close() for one in self._joined))

    async def _join(self) -> Joined:
        """Connect, open a channel each way, and wait for the first answer on it."""
        connection = await aqueduct.connect(
            self._address, Request, trust=self._trust, timeout=CONNECT_SECONDS, limits=LIMITS
        )
        data, there = aqueduct.channel(bytes)
        back, here = aqueduct.channel(bytes)
        await connection.entrypoint.send(Join(there, back))
        joined = Joined(connection, data, here)
        await joined.time_trips(1, b"hello")
        return joined


async def obey(side: Server | Client) -> None:
    """Carry out orders until the process is to end."""
    control = Control()
    while (order := await control.read())["order"] != "quit":
        carry_out: Callable[[Json], Awaitable[Json]] = getattr(side, order["order"])
        control.write(**await carry_out(order))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await side.close()


def main(role: str, transport: str, setting: Setting) -> None:
    """Run one process."""
    with asyncio.Runner(loop_factory=loop_factory(uvloop_wanted=True)) as runner:
        runner.run(obey((Server if role == "server" else Client)(transport, setting)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Setting(**json.loads(sys.argv[3])))
