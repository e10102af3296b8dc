"""Telemetry that survives restarts of its server: each reading is stored once, in order.

The device numbers its readings, and keeps them until the server says that they are stored. It
reconnects with exponential backoff and jitter, to the next address of a list. The answer to its
first request says which reading is the last one stored, and it continues behind that one.
"""

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import Sequence

import msgspec

import aqueduct
from aqueduct import Receiver, Sender

KEPT = 10_000
"""Readings that a device keeps while it is not connected; then it loses the oldest."""
TRANSIENT = (
    aqueduct.ConnectError,  # no server at this address
    aqueduct.ChannelError,  # the connection or a channel has ended
    aqueduct.CallError,  # the server failed
    aqueduct.CallTimeout,  # the server is too busy
)


class Reading(msgspec.Struct, array_like=True):
    number: int
    celsius: float


class Stream(aqueduct.Request[int]):
    """Begin to send readings. The answer is the number of the last reading that is stored."""

    device: str
    readings: Receiver[Reading]
    stored: Sender[int]


class Store:
    """What the server knows; a real one keeps it on disk."""

    def __init__(self) -> None:
        self.readings: dict[str, list[Reading]] = {}

    async def handle(self, request: Stream) -> None:
        await request.reply.send(self.last(request.device))
        async for reading in request.readings:
            if reading.number > self.last(request.device):
                self.readings.setdefault(request.device, []).append(reading)
            await request.stored.send(reading.number)

    def last(self, device: str) -> int:
        readings = self.readings.get(device)
        return readings[-1].number if readings else 0


class Device:
    """Sends readings to the first server that can be reached."""

    def __init__(self, name: str, addresses: Sequence[str], trust: aqueduct.Trust) -> None:
        self.name = name
        self.addresses = addresses
        self.trust = trust
        self.kept: deque[Reading] = deque(maxlen=KEPT)
        self.connects = 0
        self.was_streaming = False
        self.measured = asyncio.Event()
        self.is_stored = asyncio.Event()
        self._numbers = itertools.count(1)

    def measure(self, celsius: float) -> None:
        self.kept.append(Reading(next(self._numbers), celsius))
        self.is_stored.clear()
        self.measured.set()

    async def run(self, least: float = 0.05, most: float = 10.0) -> None:
        """Stay connected until the task is cancelled."""
        delay = least
        for address in itertools.cycle(self.addresses):
            with contextlib.suppress(*TRANSIENT):
                async with aqueduct.connect(address, Stream, trust=self.trust) as connection:
                    self.connects += 1
                    await self.stream(connection)
            if self.was_streaming:
                delay, self.was_streaming = least, False
            await asyncio.sleep(random.uniform(delay / 2, delay))
            delay = min(2 * delay, most)

    async def stream(self, connection: aqueduct.ClientConnection[Stream]) -> None:
        readings, theirs = aqueduct.channel(Reading)
        their_stored, stored = aqueduct.channel(int)
        request = Stream(device=self.name, readings=theirs, stored=their_stored)
        async with stored:
            last = await connection.entrypoint.call(request, timeout=5)
            self.was_streaming = True
            self.forget(last)
            sending = asyncio.create_task(self.send_from(last + 1, readings))
            try:
                async for number in stored:  # raises when the server or the connection ends
                    self.forget(number)
            finally:
                sending.cancel()

    async def send_from(self, number: int, readings: Sender[Reading]) -> None:
        async with readings:
            while True:
                self.measured.clear()
                for reading in [one for one in self.kept if one.number >= number]:
                    await readings.send(reading)
                    number = reading.number + 1
                await self.measured.wait()

    def forget(self, number: int) -> None:
        while self.kept and self.kept[0].number <= number:
            self.kept.popleft()
        if not self.kept:
            self.is_stored.set()


async def main() -> None:
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    store = Store()
    async with (
        aqueduct.serve("127.0.0.1:0", Stream, tls=tls) as first,
        aqueduct.serve("127.0.0.1:0", Stream, tls=tls) as second,
    ):
        serving = [asyncio.create_task(server.serve(store.handle)) for server in (first, second)]
        device = Device("boiler", [first.address, second.address], trust)
        running = asyncio.create_task(device.run())
        for number in range(60):
            if number == 30:
                await first.close()  # the device reconnects to the second server
            device.measure(20 + number / 10)
            await asyncio.sleep(0.01)
        await device.is_stored.wait()
        numbers = [reading.number for reading in store.readings["boiler"]]
        print(f"{len(numbers)} readings stored over {device.connects} connections")
        print("each once, in order:", numbers == list(range(1, 61)))
        for task in (running, *serving):
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
