"""A producer that sends numbered records at a constant rate, and reports which are flushed.

python -m tests.spark.crashes.producing ADDRESS TOPIC ID AUTHORITY. A line or the end of standard
input makes it flush and exit.
"""

from __future__ import annotations

import asyncio
import random
import sys

from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client.producer import Producer
from aqueduct.security import trust
from aqueduct.transport.settings import QuicSettings
from tests.ingest.crashing import say
from tests.ingest.ledger import record

PARTITIONS = 3
PAUSE = 0.1


async def main(address: str, topic: str, producer_id: str, authority: str) -> None:
    # Detect killed servers quickly, because these tests kill many.
    setattr(clients, "CLIENT_QUIC_SETTINGS", QuicSettings(idle_timeout=0.5, keep_alive=0.15))  # noqa: B010
    rng = random.Random(producer_id)
    asked = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    async with Producer(
        address, topic, producer_id=producer_id, trust=trust(authority), partitions=PARTITIONS
    ) as producer:
        number = producer.committed
        while not asked.done():
            for _ in range(rng.randrange(1, 30)):
                number += 1
                sent = record(producer_id, number, PARTITIONS)
                await producer.send(**sent, sequence=number)
            if rng.random() < 0.3:
                await producer.flush()
                say("flushed", sequence=number)
            await asyncio.sleep(PAUSE)
        await producer.flush()
        say("finished", sequence=number)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
