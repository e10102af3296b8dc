"""NATS JetStream with a stream in files, over TLS; the broker runs in its own process.

The fastest documented way: asynchronous publishes, up to 4,000 of which may be
unacknowledged, and a final wait for all acks.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.ingest import store
from bench.ingest.broker import can_sync_always, remark, version
from bench.network.machine import other_process_seconds, peak_megabytes, process_seconds
from bench.network.peer import Json, Setting
from bench.network.peers.over_nats import connect, start_broker, the_broker, trusting

STREAM = "bench"


class Server(store.Server):
    async def start(self) -> Json:
        files: Json = {"store_dir": self.directory}
        syncs = can_sync_always(the_broker())
        if syncs:
            files["sync_interval"] = "always"
        self._broker, address = start_broker(self.setting, {"jetstream": files})
        self._connection = await connect(address, trusting(self.setting))
        self._stream = self._connection.jetstream()
        await self._stream.add_stream(name=STREAM, subjects=[STREAM], storage="file")
        return {"address": address, "remark": remark(version(the_broker()), syncs)}

    async def stored(self) -> int:
        count: int = (await self._stream.stream_info(STREAM)).state.messages
        return count

    @property
    def peak(self) -> float:
        return peak_megabytes(self._broker.pid)

    @property
    def processor(self) -> float:
        return process_seconds() + other_process_seconds(self._broker.pid)

    async def stop(self) -> None:
        await self._connection.close()
        self._broker.terminate()
        self._broker.wait()


class Producer(store.Producer):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._under_way: list[asyncio.Future[Any]] = []

    async def open(self, info: Json) -> None:
        self._connection = await connect(info["address"], trusting(self.setting))
        self._stream = self._connection.jetstream()

    async def pour(self, payloads: Sequence[bytes]) -> None:
        publish = self._stream.publish_async
        for payload in payloads:
            self._under_way.append(await publish(STREAM, payload))

    async def flush(self) -> None:
        acknowledged, self._under_way = self._under_way, []
        await asyncio.gather(*acknowledged)

    async def deliver(self, payload: bytes) -> None:
        await (await self._stream.publish_async(STREAM, payload))

    async def close(self) -> None:
        await self._connection.close()
