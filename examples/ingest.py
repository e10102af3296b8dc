"""Durable records: a producer dies, and its successor resumes without loss or duplicates.

The source is replayable, here a function of the sequence number. So a producer that restarts under
the same name resumes after the last record that the server has stored.
"""

import asyncio
import tempfile
from typing import Any

import aqueduct
from aqueduct import ingest

READINGS = 1_000
ROOMS = [b"kitchen", b"cellar", b"attic"]


def reading(number: int) -> tuple[bytes, bytes]:
    return ROOMS[number % len(ROOMS)], b"%d" % number


async def measure(address: str, until: int) -> int:
    """Send the readings that are not stored yet; return the number of the first one."""
    async with ingest.Producer(
        address, "telemetry", producer_id="house-7", trust=aqueduct.dev_trust()
    ) as producer:
        begin = producer.committed + 1
        for number in range(begin, until + 1):
            room, value = reading(number)
            await producer.send(value, key=room)
    return begin  # leaving the block has waited until all records are durable


async def read(address: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with ingest.Reader(address, trust=aqueduct.dev_trust()) as reader:
        (topic,) = await reader.topics("telemetry")
        for part in topic.partitions:
            where = topic.topic, part.partition, part.first_offset, part.next_offset
            async for batch in reader.read(*where):
                rows += batch.to_pylist()
    return rows


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with ingest.IngestServer("127.0.0.1:0", directory, tls=aqueduct.dev_tls()) as server:
            await measure(server.address, 600)
            print("stored 600 readings, then the producer is gone")
            begin = await measure(server.address, READINGS)
            print(f"the next one goes on behind reading {begin - 1}")
            rows = await read(server.address)
        numbers = sorted(int(row["value"]) for row in rows)
        print("each of 1000 readings is there once:", numbers == list(range(1, READINGS + 1)))
        kitchen = [row for row in rows if row["key"] == b"kitchen"]
        partitions = {row["partition"] for row in kitchen}
        order = [row["producer_sequence"] for row in kitchen]
        in_order = order == sorted(order)
        print("kitchen is in one partition, in order:", len(partitions) == 1 and in_order)
        count = sum(
            part.next_offset for part in ingest.DirectoryReader(directory).topics()[0].partitions
        )
        print("the directory says the same as the server:", count == READINGS)


asyncio.run(main())
