"""The process of the ingest server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.settings import IngestSettings
from aqueduct.security import dev_tls
from aqueduct.spark.pipeline.messages import Command, IngestPlan, Listening
from aqueduct.spark.pipeline.process import main, report


async def run(plan: IngestPlan, commands: AsyncIterator[Command]) -> None:
    """Serve until the first command, which is to stop."""
    limits = IngestSettings(partitions=plan.partitions)
    tls = dev_tls()
    async with IngestServer(plan.listen, plan.directory, tls=tls, limits=limits) as server:
        report(Listening(server.address, tls.fingerprint))
        async for _ in commands:
            break


if __name__ == "__main__":
    main(IngestPlan, run)
