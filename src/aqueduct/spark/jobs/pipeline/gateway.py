"""The process of the gateway: records of devices come on channels, and go to ingest servers."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import msgspec

from aqueduct.api.connection import Connection
from aqueduct.api.handles import Receiver
from aqueduct.api.server import serve
from aqueduct.errors import AqueductError, ChannelError, EndOfChannel
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.errors import IngestError
from aqueduct.security import Trust, dev_tls
from aqueduct.spark.jobs.pipeline.fleet import MODES, Reading
from aqueduct.spark.jobs.pipeline.messages import (
    Attend,
    Counts,
    GatewayPlan,
    Listening,
    Mark,
    Marked,
    Order,
    Told,
)
from aqueduct.spark.jobs.pipeline.process import main, say

_TELL = 0.25
MARK = "mark"


class Gateway:
    """Forwards what devices send, and counts it."""

    def __init__(self, producers: Sequence[Producer]) -> None:
        self._producers = producers
        self._running = asyncio.current_task()
        self.trouble: IngestError | None = None
        """Why records cannot be stored any more, if they cannot."""
        self.arrived: Counts = dict.fromkeys(MODES, 0)

    async def attend(self, connection: Connection[Attend]) -> None:
        """Serve the devices of one connection."""
        async with asyncio.TaskGroup() as tasks:
            async for attend in connection.entrypoint:
                tasks.create_task(self._forward(attend))

    async def _forward(self, attend: Attend) -> None:
        key = attend.device.encode()
        producer = self._producers[zlib.crc32(key) % len(self._producers)]
        counts: Counts = {}

        async def take(mode: str, records: Receiver[bytes]) -> None:
            counts[mode] = 0
            while True:
                try:
                    values = await records.receive_many()
                except EndOfChannel:
                    return
                for value in values:
                    await producer.send(value, key=key)
                counts[mode] += len(values)
                self.arrived[mode] += len(values)

        try:
            async with asyncio.TaskGroup() as tasks:
                for mode in MODES:
                    tasks.create_task(take(mode, getattr(attend, mode)))
            await producer.flush()
            await attend.total.send(counts)
        except* ChannelError:
            pass  # this device went, others stay
        except* AqueductError as group:
            self._give_up(group)

    def _give_up(self, group: BaseExceptionGroup[AqueductError]) -> None:
        """End the process: what it takes it could not hand on."""
        if self.trouble is None and self._running is not None:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.trouble = IngestError(str(error))
            self._running.cancel()

    async def mark(self, event: int | None) -> Marked:
        """A record in each partition, behind everything; and one more, so that it can be seen.

        Who reads the files of a running server does not see its last group.
        """
        found: dict[str, dict[str, int]] = {}
        for producer in self._producers:
            where = found[producer.topic] = {}
            for partition in range(producer.partitions):
                stored = await producer.send_and_wait(_mark(event), partition=partition)
                assert stored.offset is not None  # only of a record that was stored before
                where[str(partition)] = stored.offset
            for partition in range(producer.partitions):
                await producer.send(_mark(None), partition=partition)
            await producer.flush()
        return Marked(found)

    async def tell(self) -> None:
        """Tell the counts, again and again."""
        while True:
            await asyncio.sleep(_TELL)
            say(Told(arrived=self.arrived))


def _mark(event: int | None) -> bytes:
    now = int(time.time() * 1e6)
    return msgspec.json.encode(Reading("", MARK, 0, event, now, 0.0))


async def run(plan: GatewayPlan, orders: AsyncIterator[Order]) -> None:
    """Serve devices, and set marks, until told to stop."""
    authorities = None if plan.authorities is None else plan.authorities.encode()
    trust = Trust(authorities, plan.pinned)
    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(
                Producer(
                    server,
                    topic,
                    producer_id=plan.producer_id,
                    trust=trust,
                    token=plan.token,
                    partitions=plan.partitions,
                    give_up_after=plan.give_up_after,
                )
            )
            for server, topic in plan.targets
        ]
        gateway = Gateway(producers)
        server = await stack.enter_async_context(serve("127.0.0.1:0", Attend, tls=dev_tls()))
        serving = asyncio.create_task(server.run(gateway.attend))
        stack.callback(serving.cancel)
        telling = asyncio.create_task(gateway.tell())
        stack.callback(telling.cancel)
        say(Listening(server.address))
        try:
            async for order in orders:
                if not isinstance(order, Mark):
                    break
                say(await gateway.mark(order.event))
        except asyncio.CancelledError:
            if gateway.trouble is not None:
                raise gateway.trouble from None
            raise
        say(Told(arrived=gateway.arrived, done=True))


if __name__ == "__main__":
    main(GatewayPlan, run)
