"""The lower bound: an Arrow batch, an append and a sync in a loop, without server or network."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from aqueduct.ingest.server.decoding import RECORD_OVERHEAD
from aqueduct.ingest.settings import IngestSettings
from bench.ingest import store
from bench.network.peer import Json, Setting

SCHEMA = pa.schema([("value", pa.binary()), ("timestamp", pa.int64())])
GROUP = IngestSettings().group_size


class Server(store.Server):
    async def start(self) -> Json:
        return {"path": str(Path(self.directory) / "floor.arrow")}

    async def stored(self) -> int:
        path = Path(self.directory) / "floor.arrow"
        if not path.exists():
            return 0
        with pa.memory_map(str(path)) as file:
            return sum(batch.num_rows for batch in pa.ipc.open_stream(file))


class Producer(store.Producer):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._values: list[bytes] = []
        self._timestamps: list[int] = []
        self._size = 0

    async def open(self, info: Json) -> None:
        self._file = os.open(info["path"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.write(self._file, SCHEMA.serialize())

    async def pour(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._values.append(payload)
            self._timestamps.append(int(time.time() * 1e6))
            self._size += len(payload) + RECORD_OVERHEAD
            if self._size >= GROUP:
                self._write()

    async def flush(self) -> None:
        if self._values:
            self._write()

    async def deliver(self, payload: bytes) -> None:
        await self.pour([payload])
        await self.flush()

    async def close(self) -> None:
        os.close(self._file)

    def _write(self) -> None:
        columns = [pa.array(self._values, pa.binary()), pa.array(self._timestamps, pa.int64())]
        data = memoryview(pa.record_batch(columns, schema=SCHEMA).serialize())
        while data:
            data = data[os.write(self._file, data) :]
        os.fdatasync(self._file)
        self._values, self._timestamps, self._size = [], [], 0
