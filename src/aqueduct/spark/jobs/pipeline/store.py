"""The process of the ingest server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.settings import IngestSettings
from aqueduct.security import dev_tls
from aqueduct.spark.jobs.pipeline.messages import IngestPlan, Listening, Order
from aqueduct.spark.jobs.pipeline.process import main, say


async def store(plan: IngestPlan, orders: AsyncIterator[Order]) -> None:
    """Serve until told to stop."""
    limits = IngestSettings(partitions=plan.partitions)
    tls = dev_tls()
    async with IngestServer(plan.listen, plan.directory, tls=tls, limits=limits) as server:
        say(Listening(server.address, tls.fingerprint))
        async for _ in orders:
            break


if __name__ == "__main__":
    main(IngestPlan, store)
