"""Servers killed while a job writes: its first run continues, a later one must be replaced."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client.connection import Client
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import RefusedRecords
from aqueduct.security import ServerTLS, Trust
from aqueduct.transport.settings import QuicSettings
from tests.ingest.jobbing import RUNS, ids_of
from tests.ingest.killing import Servers

VALUES = [b"%d" % (number % 900) for number in range(3_000)]


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect killed servers quickly."""
    monkeypatch.setattr(
        clients, "CLIENT_QUIC_SETTINGS", QuicSettings(idle_timeout=0.4, keep_alive=0.1)
    )
    monkeypatch.setattr(clients, "MAX_PAUSE", 0.1)


def values_in(directory: Path) -> Counter[bytes]:
    reader = DirectoryReader(directory)
    (info,) = reader.topics("t")
    return Counter(
        value
        for part in info.partitions
        for batch in reader.read("t", part.partition, part.first_offset, part.next_offset)
        for value in batch.column("value").to_pylist()
    )


async def send_and_be_killed(
    servers: Servers, producer: Producer, values: list[bytes], moment: str
) -> None:
    """Send in small steps while the server is killed and restarted."""

    async def rise_again() -> None:
        if moment:
            await servers.ended()
        else:
            await asyncio.sleep(0.05)
            await servers.kill()
        assert await servers.start()

    rising = asyncio.create_task(rise_again())
    ids = ids_of(values)
    try:
        for at in range(0, len(values), 100):
            await producer.send_many(values[at : at + 100], ids=ids[at : at + 100])
            await asyncio.sleep(0.005)
            if at % 300 == 0:
                await producer.flush()  # so that there are at least as many groups
        await producer.complete()
    finally:
        await rising


@pytest.mark.parametrize(
    ("moment", "count"),
    [
        ("", 0),
        ("in the middle of a block", 5),
        ("between a block and its sync", 7),
        ("between the sync and the answer", 3),
        ("between the sync and the answer", 6),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
async def test_a_first_run_continues_after_the_server_is_killed(
    tmp_path: Path, tls: ServerTLS, trusted: Trust, moment: str, count: int, shared: bool
) -> None:
    async with Servers(tmp_path, tls) as servers:
        assert await servers.start(moment=moment, count=count or 1)
        async with Client(servers.address, trust=trusted) as client:
            async with Producer(
                servers.address,
                "t",
                trust=trusted,
                scope=WriteScope("job", 1, RUNS[0], 0),
                client=client if shared else None,
            ) as producer:
                await send_and_be_killed(servers, producer, VALUES, moment)
                assert producer.reconnects
            async with Producer(
                servers.address, "t", scope=WriteScope("job", 1, RUNS[0], 0), client=client
            ) as again:
                assert again.is_done
            await client.end_step("t", "job", 1, RUNS[0])
    assert values_in(tmp_path / "data") == Counter(VALUES)


async def test_a_second_run_is_rejected_after_a_kill_and_a_third_one_works(
    tmp_path: Path, tls: ServerTLS, trusted: Trust
) -> None:
    async with Servers(tmp_path, tls) as servers:
        assert await servers.start()
        async with Client(servers.address, trust=trusted) as client:

            def part(number: int, run: int) -> Producer:
                scope = WriteScope("job", 1, RUNS[run], number)
                return Producer(client.address, "t", scope=scope, client=client)

            async with part(0, run=0) as first:
                await first.send_many(VALUES[:1_000], ids=ids_of(VALUES[:1_000]))
            second = part(0, run=1)
            await second.open()
            with pytest.raises(RefusedRecords, match="has to be run again by a new run"):
                await send_and_be_killed(servers, second, VALUES, "")
            await second.abandon()
            with pytest.raises(RefusedRecords, match="has to be run again by a new run"):
                await part(1, run=1).open()
            halves = VALUES[:1_234], VALUES[1_234:]
            for number, values in enumerate(halves):
                async with part(number, run=2) as third:
                    await third.send_many(values, ids=ids_of(values))
                    await third.complete()
    assert values_in(tmp_path / "data") == Counter(VALUES)
