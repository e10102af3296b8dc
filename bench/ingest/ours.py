"""Our ingest server and producers through their public API, and the recovery of its log."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import aqueduct
from aqueduct import ingest
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.local.storage import LocalStorage
from bench.ingest import store
from bench.network.peer import HOST, Json

TOPIC = "bench"
UNROLLED = IngestSettings(roll_size=1 << 40)
"""Keep everything in the log."""


class Server(store.Server):
    async def start(self) -> Json:
        tls = aqueduct.tls(self.setting.certificate, self.setting.key)
        self._server = ingest.IngestServer(f"{HOST}:0", self.directory, tls=tls)
        await self._server.open()
        return {"address": self._server.address}

    async def stored(self) -> int:
        return self._server.statistics().records

    async def stop(self) -> None:
        await self._server.close()


class Producer(store.Producer):
    async def open(self, info: Json) -> None:
        trust = aqueduct.trust(self.setting.authority)
        self._producer = ingest.Producer(info["address"], TOPIC, trust=trust)
        await self._producer.open()

    async def pour(self, payloads: Sequence[bytes]) -> None:
        send = self._producer.send
        for payload in payloads:
            await send(payload)

    async def flush(self) -> None:
        await self._producer.flush()

    async def deliver(self, payload: bytes) -> None:
        await self._producer.send_and_wait(payload)

    async def close(self) -> None:
        await self._producer.abandon()


def fill(directory: Path, size: int, payload: bytes) -> Json:
    """Let the store write a log of this many bytes, in groups as from producers."""
    kept = Store(LocalStorage(directory), UNROLLED, scratch=directory)
    topic = kept.topic_to_write(TOPIC, None)
    count = UNROLLED.group_size // len(payload)
    sequence = 1
    while sum(part.log_bytes for part in topic.partitions) < size:
        now = int(time.time() * 1e6)
        records = RecordColumns(sequence, [payload] * count, [now] * count)
        submission = Submission("filler", records)
        kept.commit({topic: [submission]})
        if submission.fault is not None:
            raise submission.fault
        sequence += count
    kept.close()
    return {"count": sequence - 1}


def recover(directory: Path) -> Json:
    """Open the store with a cold page cache."""
    size = 0
    for path in directory.rglob("*.wal"):
        file = os.open(path, os.O_RDONLY)
        size += os.fstat(file).st_size
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    began = time.monotonic()
    kept = Store(LocalStorage(directory), UNROLLED, scratch=directory)
    seconds = time.monotonic() - began
    count = sum(part.next_offset for part in kept.topics[TOPIC].partitions)
    kept.close()
    return {"seconds": seconds / (size / 1e9), "count": count, "size": size}
