"""Publish and subscribe: a subscription is a request that is handled until its client leaves."""

import asyncio
import contextlib
from collections import defaultdict

import aqueduct
from aqueduct import Request, Sender


class Subscribe(Request[bool]):
    topic: str
    events: Sender[str]


class Publish(Request[int]):
    topic: str
    event: str


class Broker:
    def __init__(self) -> None:
        self.topics: dict[str, list[Sender[str]]] = defaultdict(list)

    async def handle(self, request: Subscribe | Publish) -> int | None:
        if isinstance(request, Publish):
            return self.publish(request.topic, request.event)
        subscribers = self.topics[request.topic]
        subscribers.append(request.events)
        try:
            await request.reply.send(True)
            await request.events.wait_closed()  # when the client closes its half, or leaves
        finally:
            subscribers.remove(request.events)
        return None

    def publish(self, topic: str, event: str) -> int:
        """Send to all subscribers; a slow one misses the event."""
        reached = 0
        for events in self.topics[topic]:
            with contextlib.suppress(aqueduct.WouldBlock, aqueduct.ChannelError):
                events.send_nowait(event)
                reached += 1
        return reached


async def subscribe(address: str, name: str, wanted: int, ready: asyncio.Event) -> None:
    async with aqueduct.connect(
        address, Subscribe | Publish, trust=aqueduct.dev_trust()
    ) as connection:
        theirs, events = aqueduct.channel(str)
        async with events:  # the end of the block closes the channel, which ends the subscription
            await connection.entrypoint.call(Subscribe("news", theirs))
            ready.set()
            for _ in range(wanted):
                print(f"{name}: {await events.receive()}")


async def main() -> None:
    broker = Broker()
    async with aqueduct.serve("127.0.0.1:0", Subscribe | Publish, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(broker.handle))
        async with aqueduct.connect(
            server.address, Subscribe | Publish, trust=aqueduct.dev_trust()
        ) as publisher:

            async def publish(event: str) -> None:
                reached = await publisher.entrypoint.call(Publish("news", event))
                print(f"published {event!r} to {reached}")

            await publish("too early")
            ready = asyncio.Event(), asyncio.Event()
            ann = asyncio.create_task(subscribe(server.address, "ann", 2, ready[0]))
            bob = asyncio.create_task(subscribe(server.address, "bob", 1, ready[1]))
            await asyncio.gather(*(event.wait() for event in ready))
            await publish("first")
            await bob  # receives one event, then unsubscribes
            await publish("second")
            await ann
        serving.cancel()


asyncio.run(main())
