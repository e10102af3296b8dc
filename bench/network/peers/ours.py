"""Aqueduct through its public API: a channel per stream, a pair of them for round trips.

The receiver takes messages with ``async for``, the sender awaits ``send`` for each.
"""

import asyncio
import contextlib
import time
from typing import Any

import msgspec

import aqueduct
from aqueduct import Mode
from bench.network import peer
from bench.network.measures import BULK_SIZE, Manner
from bench.network.peer import Closing, Counted, Json, Setting

PER_MESSAGE = 200
"""Channels per message when many are opened."""
LIMITS = aqueduct.Limits(max_channels=200_000)
"""More channels than the default allows; other settings have their defaults."""


class Reading(msgspec.Struct):
    """A typed message of five fields."""

    sensor: str
    number: int
    value: float
    unit: str
    good: bool


class Flow(msgspec.Struct, tag=True):
    """Requests that messages are counted one by one."""

    data: aqueduct.Receiver[bytes]
    count: int


class Batches(msgspec.Struct, tag=True):
    """Requests that messages are taken in batches, and counted one by one."""

    data: aqueduct.Receiver[bytes]


class Datagrams(msgspec.Struct, tag=True):
    """Requests that messages are counted of which some may be lost."""

    data: aqueduct.Receiver[bytes]


class Readings(msgspec.Struct, tag=True):
    data: aqueduct.Receiver[Reading]


class Echo(msgspec.Struct, tag=True):
    """Requests that messages are echoed."""

    data: aqueduct.Receiver[bytes]
    back: aqueduct.Sender[bytes]


class Question(msgspec.Struct, tag=True):
    payload: bytes
    answer: aqueduct.Sender[bytes]


class Keep(msgspec.Struct, tag=True):
    """Requests that one message is taken from each channel, which stays open."""

    channels: list[aqueduct.Receiver[bytes]]
    taken: aqueduct.Sender[int]


class Bulk(msgspec.Struct, tag=True):
    """Requests that messages are received."""

    data: aqueduct.Receiver[bytes]


class Probes(msgspec.Struct, tag=True):
    """Requests how long each of these messages took; each begins with the time it was sent."""

    data: aqueduct.Receiver[bytes]
    times: aqueduct.Sender[list[int]]


class Doomed(msgspec.Struct, tag=True):
    """Requests when each of these channels was cancelled, after one message on each."""

    channels: list[aqueduct.Receiver[bytes]]
    times: aqueduct.Sender[list[int]]


Request = Bulk | Probes | Doomed | Flow | Batches | Datagrams | Readings | Echo | Question | Keep

MODES = {
    Manner.PLAIN: Mode.ORDERED,
    Manner.UNORDERED: Mode.UNORDERED,
    Manner.MANY: Mode.ORDERED,
    Manner.UNRELIABLE: Mode.UNRELIABLE,
}


class Server(peer.Server):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._stack = contextlib.AsyncExitStack()
        self._counted: asyncio.Queue[Counted] = asyncio.Queue()
        self._kept: list[aqueduct.Receiver[bytes]] = []
        self._echoes: list[asyncio.Task[None]] = []

    async def start(self) -> Json:
        tls = aqueduct.tls(self.setting.certificate, self.setting.key)
        address = f"aqueduct+{self.setting.options['transport']}://{peer.HOST}:0"
        serving = aqueduct.serve(address, Request, tls=tls, limits=LIMITS)
        server = await self._stack.enter_async_context(serving)
        running = asyncio.create_task(server.run(self._handle))
        self._stack.callback(running.cancel)
        return {"address": server.address}  # names the transport, so that clients do not race

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        return await self._counted.get()

    async def stop(self) -> None:
        await self._stack.aclose()

    async def _handle(self, connection: aqueduct.Connection[Any]) -> None:
        async for request in connection.entrypoint:
            if isinstance(request, Question):
                await request.answer.send(request.payload)
            elif isinstance(request, Echo):
                self._echoes.append(asyncio.create_task(echo(request)))
            elif isinstance(request, Probes):
                self._echoes.append(asyncio.create_task(time_probes(request)))
            elif isinstance(request, Doomed):
                self._echoes.append(asyncio.create_task(time_cancels(request)))
            elif isinstance(request, Bulk):
                self._echoes.append(asyncio.create_task(drain(request)))
            elif isinstance(request, Keep):
                await self._keep(request)
            else:
                self._counted.put_nowait(await count(request))

    async def _keep(self, request: Keep) -> None:
        for receiver in request.channels:
            await receiver.receive()
        self._kept += request.channels
        await request.taken.send(len(request.channels))


async def echo(request: Echo) -> None:
    async with request.data, request.back:
        async for payload in request.data:
            await request.back.send(payload)


async def drain(request: Bulk) -> None:
    async with request.data:
        async for _ in request.data:
            pass


async def time_probes(request: Probes) -> None:
    clock = time.monotonic_ns
    async with request.data, request.times:
        times = [clock() - peer.sent_at(payload) async for payload in request.data]
        await request.times.send(times)


async def time_cancels(request: Doomed) -> None:
    async def end(receiver: aqueduct.Receiver[bytes]) -> int:
        async with receiver:
            with contextlib.suppress(aqueduct.ChannelCancelled):
                await receiver.receive()
        return time.monotonic_ns()

    async with request.times:
        for receiver in request.channels:
            await receiver.receive()
        await request.times.send([])
        await request.times.send(await asyncio.gather(*map(end, request.channels)))


async def count(request: Flow | Batches | Datagrams | Readings) -> Counted:
    async with request.data:
        if isinstance(request, Flow):
            return await count_flow(request)
        if isinstance(request, Batches):
            return await count_batches(request.data)
        if isinstance(request, Datagrams):
            return await count_datagrams(request.data)
        return await count_readings(request.data)


async def count_flow(flow: Flow) -> Counted:
    messages = total = at = 0
    wanted = flow.count
    async for payload in flow.data:
        messages += 1
        total += len(payload)
        if messages == wanted:
            at = time.monotonic_ns()
    return Counted(messages, total, at)


async def count_batches(data: aqueduct.Receiver[bytes]) -> Counted:
    messages = total = at = 0
    with contextlib.suppress(aqueduct.EndOfChannel):
        while True:
            for payload in await data.receive_many():
                messages += 1
                total += len(payload)
            at = time.monotonic_ns()
    return Counted(messages, total, at)


async def count_datagrams(data: aqueduct.Receiver[bytes]) -> Counted:
    """Read the clock for each message, because the last one is not known in advance."""
    messages = total = at = 0
    async for payload in data:
        messages += 1
        total += len(payload)
        at = time.monotonic_ns()
    return Counted(messages, total, at)


async def count_readings(data: aqueduct.Receiver[Reading]) -> Counted:
    messages = total = 0
    async for reading in data:
        messages += 1
        total += reading.number
    return Counted(messages, total, time.monotonic_ns())


class Client(peer.Client):
    _connection: aqueduct.Connection[Any]

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._trust = aqueduct.trust(setting.authority)
        self._address = ""
        self._kept: list[aqueduct.Sender[bytes]] = []

    async def open(self, info: Json) -> None:
        self._address = info["address"]
        self._connection = await self._connect()
        self._ping, data = aqueduct.channel(bytes)
        back, self._pong = aqueduct.channel(bytes)
        await self._connection.entrypoint.send(Echo(data, back))

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        if manner is Manner.TYPED:
            await self._send_readings(count)
            return
        sender, receiver = aqueduct.channel(bytes, mode=MODES[manner])
        request: Any = Flow(receiver, count)
        if manner is Manner.MANY:
            request = Batches(receiver)
        elif manner is Manner.UNRELIABLE:
            request = Datagrams(receiver)
        await self._connection.entrypoint.send(request)
        async with sender:
            for _ in range(count):
                await sender.send(payload)

    async def _send_readings(self, count: int) -> None:
        sender, receiver = aqueduct.channel(Reading)
        await self._connection.entrypoint.send(Readings(receiver))
        async with sender:
            for number in range(count):
                await sender.send(Reading("north tower", number, 21.5, "°C", True))

    async def trip(self, payload: bytes) -> bytes:
        await self._ping.send(payload)
        return await self._pong.receive()

    async def call(self, payload: bytes) -> bytes:
        return await ask(self._connection, payload)

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        connection = await self._connect()
        return await ask(connection, payload), connection.close

    probes = ("message", "cancel", "datagram")

    async def probe(self, kind: str, count: int) -> list[int]:
        if kind == "cancel":
            return await self._probe_cancels(count)
        mode = Mode.UNRELIABLE if kind == "datagram" else Mode.ORDERED
        sender, receiver = aqueduct.channel(bytes, mode=mode)
        back, times = aqueduct.channel(list[int])
        await self._connection.entrypoint.send(Probes(receiver, back))
        async with times:
            async with sender:
                for _ in range(count):
                    await asyncio.sleep(peer.PROBE_PAUSE)
                    await sender.send(peer.probe())
            return await times.receive()

    async def _probe_cancels(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            pairs = [aqueduct.channel(bytes) for _ in range(min(PER_MESSAGE, count - len(found)))]
            back, times = aqueduct.channel(list[int])
            receivers = [receiver for _, receiver in pairs]
            await self._connection.entrypoint.send(Doomed(receivers, back))
            started = []
            async with times:
                for sender, _ in pairs:
                    await sender.send(b"first")
                await times.receive()
                for sender, _ in pairs:
                    await asyncio.sleep(peer.PROBE_PAUSE)
                    started.append(time.monotonic_ns())
                    sender.cancel()
                ended = await times.receive()
            found += [end - start for start, end in zip(started, ended, strict=True)]
        return found

    async def start_bulk(self, channels: int) -> None:
        self._stopping = asyncio.Event()
        self._bulk = []
        for _ in range(channels):
            sender, receiver = aqueduct.channel(bytes)
            await self._connection.entrypoint.send(Bulk(receiver))
            self._bulk.append(asyncio.create_task(self._send_bulk(sender)))

    async def _send_bulk(self, sender: aqueduct.Sender[bytes]) -> int:
        sent = 0
        payload = bytes(BULK_SIZE)
        async with sender:
            while not self._stopping.is_set():
                await sender.send(payload)
                sent += BULK_SIZE
        return sent

    async def stop_bulk(self) -> int:
        self._stopping.set()
        return sum(await asyncio.gather(*self._bulk))

    async def hold(self, count: int) -> None:
        while len(self._kept) < count:
            pairs = [aqueduct.channel(bytes) for _ in range(PER_MESSAGE)]
            for sender, _ in pairs:
                await sender.send(b"hello")
            channels = [receiver for _, receiver in pairs]
            entrypoint = self._connection.entrypoint
            taken = await entrypoint.call(Keep, channels=channels, timeout=30)
            if taken != PER_MESSAGE:
                raise RuntimeError(f"{taken} of {PER_MESSAGE} messages were taken")
            for sender, _ in pairs:
                await sender.flush()
                self._kept.append(sender)

    async def close(self) -> None:
        self._ping.finish()
        self._pong.close()
        await self._connection.close()

    async def _connect(self) -> aqueduct.Connection[Any]:
        return await aqueduct.connect(self._address, Request, trust=self._trust, limits=LIMITS)


async def ask(connection: aqueduct.Connection[Any], payload: bytes) -> bytes:
    answer: bytes = await connection.entrypoint.call(Question, payload=payload)
    return answer
