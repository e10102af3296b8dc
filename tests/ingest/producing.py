"""A producer that continues after the last one with its id, and reports what it has flushed.

python -m tests.ingest.producing ADDRESS TOPIC ID AUTHORITY LIFE
"""

from __future__ import annotations

import asyncio
import random
import sys

from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client.producer import Producer
from aqueduct.security import Trust, trust
from aqueduct.transport.settings import QuicSettings
from tests.ingest.crashing import say

PARTITIONS = 3


async def main(address: str, topic: str, producer_id: str, trusted: Trust, life: str) -> None:
    setattr(clients, "CLIENT_QUIC_SETTINGS", QuicSettings(idle_timeout=0.5, keep_alive=0.15))  # noqa: B010
    rng = random.Random(life)
    async with Producer(
        address,
        topic,
        producer_id=producer_id,
        trust=trusted,
        partitions=PARTITIONS,
    ) as producer:
        number = producer.committed
        say("opened", committed=number)
        while True:
            for _ in range(rng.randrange(1, 30)):
                number += 1
                # Different in each life, so that records of two lives cannot be confused.
                value = f"{number} in life {life}".encode()
                await producer.send(value, key=b"%d" % (number % 7), sequence=number)
            if rng.random() < 0.5:
                await producer.flush()
                say("flushed", sequence=number)
            await asyncio.sleep(rng.choice((0, 0.001)))


if __name__ == "__main__":
    where, topic_, name, authority, life_ = sys.argv[1:]
    asyncio.run(main(where, topic_, name, trust(authority), life_))
