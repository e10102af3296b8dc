"""``format("aqueduct")`` on a cluster: executors fetch from a server, and may die."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from aqueduct.ingest.blocking import Producer
from aqueduct.quic.tls import ServerTLS, trust
from tests.cluster.standalone import Cluster
from tests.spark.crashes.lab import Script, until
from tests.spark.landing import Landing

ROWS = 1_000
Rows = list[list[int]]


async def test_a_stream_from_a_server_is_exact_though_an_executor_is_killed(
    cluster: Cluster, tmp_path: Path, authority: ServerTLS, tls: ServerTLS
) -> None:
    landing = Landing(tmp_path / "data")
    landing.write("logs", ROWS)
    with landing.served(tls) as server:
        options = {
            "servers": server.address,
            "subscribe": "logs",
            "trustCa": authority.certificate.decode(),
            "maxOffsetsPerTrigger": "100",
        }
        arguments = cluster.master, str(tmp_path / "checkpoint"), json.dumps(options)
        async with Script("tests.cluster.streaming", *arguments) as program:
            await program.event("batch")
            await until(lambda: len(cluster.executors()) == 2, "two executors")
            await program.event("batch")
            killed = cluster.kill_executor()
            sent = await asyncio.to_thread(produce, server.address, authority)
            await until(lambda: len(set(cluster.executors()) - {killed}) == 2, "another executor")
            program.ask()
            finished = await program.event("finished")
            batches: dict[int, Rows] = {
                event["number"]: event["rows"] for event in program.said if "rows" in event
            }
    rows = [tuple(row) for batch in batches.values() for row in batch]
    ends = landing.ends("logs")
    assert sorted(row[:2] for row in rows) == [
        (part, at) for part, end in ends.items() for at in range(end)
    ]
    assert sum(ends.values()) == ROWS + sent
    assert len(finished["places"]) == 2


def produce(address: str, authority: ServerTLS) -> int:
    """Records that come while the stream runs."""
    with Producer(address, "logs", trust=trust(authority.certificate)) as producer:
        for number in range(ROWS):
            producer.send(b"%d" % number)
    return ROWS
