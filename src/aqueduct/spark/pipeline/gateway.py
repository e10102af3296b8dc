"""The process of the gateway: receives records on channels, and stores them in ingest servers."""

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
from aqueduct.spark.pipeline.fleet import MARKER, MODES, DeviceReading
from aqueduct.spark.pipeline.messages import (
    ChildProgress,
    Command,
    Counts,
    GatewayPlan,
    Listening,
    MarkersWritten,
    RegisterDevice,
    WriteMarkers,
)
from aqueduct.spark.pipeline.process import first_error, main, report

_REPORT_INTERVAL = 0.25


class Gateway:
    """Forwards the records of devices, and counts them."""

    def __init__(self, producers: Sequence[Producer]) -> None:
        self._producers = producers
        self._running = asyncio.current_task()
        self.failure: IngestError | None = None
        """Why records can no longer be stored."""
        self.arrived: Counts = dict.fromkeys(MODES, 0)

    async def handle(self, connection: Connection[RegisterDevice]) -> None:
        """Serve the devices of one connection."""
        async with asyncio.TaskGroup() as tasks:
            async for device in connection.entrypoint:
                tasks.create_task(self._forward(device))

    async def _forward(self, device: RegisterDevice) -> None:
        key = device.device.encode()
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
                    tasks.create_task(take(mode, getattr(device, mode)))
            await producer.flush()
            await device.total.send(counts)
        except* ChannelError:
            pass  # this device has disconnected; others continue
        except* AqueductError as group:
            self._fail(group)

    def _fail(self, group: BaseExceptionGroup[AqueductError]) -> None:
        """End the process, because it cannot store what it receives."""
        if self.failure is None and self._running is not None:
            self.failure = IngestError(str(first_error(group)))
            self._running.cancel()

    async def write_markers(self, event: int | None) -> MarkersWritten:
        """Append a marker to each partition, and a second one that makes it visible.

        The files of a running server do not show its last commit.
        """
        found: dict[str, dict[str, int]] = {}
        for producer in self._producers:
            offsets = found[producer.topic] = {}
            for partition in range(producer.partitions):
                stored = await producer.send_and_wait(_marker(event), partition=partition)
                assert stored.offset is not None  # None only for a duplicate
                offsets[str(partition)] = stored.offset
            for partition in range(producer.partitions):
                await producer.send(_marker(None), partition=partition)
            await producer.flush()
        return MarkersWritten(found)

    async def report(self) -> None:
        """Report the counts periodically."""
        while True:
            await asyncio.sleep(_REPORT_INTERVAL)
            report(ChildProgress(arrived=self.arrived))


def _marker(event: int | None) -> bytes:
    now = int(time.time() * 1e6)
    return msgspec.json.encode(DeviceReading("", MARKER, 0, event, now, 0.0))


async def run(plan: GatewayPlan, commands: AsyncIterator[Command]) -> None:
    """Serve devices, and write markers on command, until stopped."""
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
        server = await stack.enter_async_context(
            serve("127.0.0.1:0", RegisterDevice, tls=dev_tls())
        )
        serving = asyncio.create_task(server.run(gateway.handle))
        stack.callback(serving.cancel)
        reporting = asyncio.create_task(gateway.report())
        stack.callback(reporting.cancel)
        report(Listening(server.address))
        try:
            async for command in commands:
                if not isinstance(command, WriteMarkers):
                    break
                report(await gateway.write_markers(command.event))
        except asyncio.CancelledError:
            if gateway.failure is not None:
                raise gateway.failure from None
            raise
        report(ChildProgress(arrived=gateway.arrived, done=True))


if __name__ == "__main__":
    main(GatewayPlan, run)
