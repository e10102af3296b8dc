"""Publish and subscribe: a subscription is a sender that the server keeps until it is closed."""

import asyncio
from collections import defaultdict

import msgspec

import aqueduct
from aqueduct import Connection, Sender


class Subscribe(msgspec.Struct, tag=True):
    topic: str
    events: Sender[str]
    ready: Sender[bool]


class Publish(msgspec.Struct, tag=True):
    topic: str
    event: str
    reached: Sender[int]


class Broker:
    def __init__(self) -> None:
        self.topics: dict[str, list[Sender[str]]] = defaultdict(list)

    async def handle(self, connection: Connection[Subscribe | Publish]) -> None:
        async for request in connection.entrypoint:
            if isinstance(request, Subscribe):
                self.topics[request.topic].append(request.events)
                await request.ready.send(True)
            else:
                await request.reached.send(self.publish(request.topic, request.event))

    def publish(self, topic: str, event: str) -> int:
        """Publish an event. A slow subscriber misses it, and a closed one is removed."""
        reached = 0
        for events in list(self.topics[topic]):
            try:
                events.send_nowait(event)
                reached += 1
            except aqueduct.WouldBlock:
                pass
            except aqueduct.ChannelError:
                self.topics[topic].remove(events)
        return reached


async def subscribe(address: str, name: str, wanted: int, ready: asyncio.Event) -> None:
    async with aqueduct.connect(
        address, Subscribe | Publish, trust=aqueduct.dev_trust()
    ) as connection:
        theirs, events = aqueduct.channel(str)
        async with events:  # leaving the block closes the channel and ends the subscription
            await connection.entrypoint.call(Subscribe, topic="news", events=theirs)
            ready.set()
            for _ in range(wanted):
                print(f"{name}: {await events.receive()}")


async def main() -> None:
    broker = Broker()
    async with aqueduct.serve("127.0.0.1:0", Subscribe | Publish, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(broker.handle))
        async with aqueduct.connect(
            server.address, Subscribe | Publish, trust=aqueduct.dev_trust()
        ) as publisher:

            async def publish(event: str) -> None:
                reached = await publisher.entrypoint.call(Publish, topic="news", event=event)
                print(f"published {event!r} to {reached}")

            await publish("too early")
            ready = asyncio.Event(), asyncio.Event()
            ann = asyncio.create_task(subscribe(server.address, "ann", 2, ready[0]))
            bob = asyncio.create_task(subscribe(server.address, "bob", 1, ready[1]))
            await asyncio.gather(*(event.wait() for event in ready))
            await publish("first")
            await bob  # has received enough events
            await publish("second")
            await ann
        serving.cancel()


asyncio.run(main())
