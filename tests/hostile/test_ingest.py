"""Hostile clients of an ingest server, with attacks drawn from a seed, beside well-behaved ones.

INGEST_SEEDS is the number of seeds (1), INGEST_STEPS the number of attacks per hostile client (40).
Latencies are printed and not checked, because the machine may be busy.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct.api.channels import channel, oneshot
from aqueduct.api.client import connect
from aqueduct.api.handles import Receiver, Sender
from aqueduct.errors import AqueductError
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.client.reader import Reader
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.protocol import (
    Advance,
    Answer,
    Done,
    EndStep,
    Fetch,
    Offsets,
    Open,
    Refusal,
    Request,
    Topics,
)
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.settings import IngestSettings
from tests.ingest.lab import eventually

SEEDS = int(os.environ.get("INGEST_SEEDS", "1"))
STEPS = int(os.environ.get("INGEST_STEPS", "40"))
HONEST, HOSTILE, GUESSED = (f"token-of-{name}-clients" for name in ("honest", "hostile", "other"))
NUMBERS = (-(2**63), -1, 0, 1, 2, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
LIMITS = IngestSettings(low_water=0, partitions=2, max_fetches=8, max_connection_fetches=8)


def bomb(count: int, headers: int) -> bytes:
    """Return a message that decodes to many times its size."""
    rows = [[("", b"")] * headers] * count
    return msgspec.msgpack.encode(RecordColumns(1, [b""] * count, [0] * count, headers=rows))


BOMBS = [bomb(100, 65), bomb(256, 64), bomb(2_048, 8), bomb(2_048, 64), bomb(16_384, 64)]


class Attacker:
    """A hostile client with one connection."""

    def __init__(self, seed: str, entrypoint: Sender[Request]) -> None:
        self.rng = random.Random(seed)
        self.entrypoint: Sender[Any] = entrypoint
        self.halves: list[Sender[Any] | Receiver[Any]] = []
        self.attacks: list[Callable[[], Awaitable[None]]] = [
            self.send_poison_sequence,
            self.send_a_header_bomb,
            self.forge_records,
            self.fetch_without_reading,
            self.flood_with_advances,
            self.send_malformed_bytes,
            self.send_invalid_requests,
        ]

    async def run(self) -> None:
        for _ in range(STEPS):
            try:
                async with asyncio.timeout(0.3):
                    await self.rng.choice(self.attacks)()
            except (AqueductError, TimeoutError):
                pass  # the server may reject it
            if len(self.halves) > 60:
                self.leave(20)
            await asyncio.sleep(0.01)  # let the server handle it
        self.leave(len(self.halves))

    def leave(self, count: int) -> None:
        self.rng.shuffle(self.halves)
        gone, self.halves = self.halves[:count], self.halves[count:]
        for half in gone:
            if isinstance(half, Sender):
                half.cancel()
            else:
                half.close()

    def number(self) -> int:
        return self.rng.choice(NUMBERS)

    async def open(self, producer: str, scope: WriteScope | None = None) -> Sender[bytes]:
        records, incoming = channel(bytes)
        outgoing, answers = channel(Answer)
        self.halves += [records, answers]
        await self.entrypoint.send(Open("shared", producer, incoming, outgoing, scope=scope))
        return records

    async def send_poison_sequence(self) -> None:
        scope = WriteScope("evil", self.rng.randrange(3), f"{self.rng.getrandbits(128):032x}", 0)
        records = await self.open("", self.rng.choice((scope, None)))
        pill = RecordColumns(self.number(), [b"x", b"y"], [self.number(), 0], ids=os.urandom(40))
        await records.send(msgspec.msgpack.encode(pill))

    async def send_a_header_bomb(self) -> None:
        records = await self.open(f"evil-{self.rng.randrange(20)}")
        await records.send(self.rng.choice(BOMBS))

    async def forge_records(self) -> None:
        records = await self.open("honest")
        await records.send(msgspec.msgpack.encode(RecordColumns(1, [b"forged"] * 50, [0] * 50)))

    async def fetch_without_reading(self) -> None:
        rows, taken = channel(bytes)
        reply, answer = oneshot(Done | Refusal)
        self.halves += [taken, answer]
        await self.entrypoint.send(Fetch("shared", 0, 0, self.rng.randrange(1, 20), rows, reply))

    async def flood_with_advances(self) -> None:
        for _ in range(20):
            reply, answer = oneshot(Done | Refusal)
            self.halves.append(answer)
            name = self.rng.choice(("honest", "evil", "evil-2"))
            await self.entrypoint.send(Advance("shared", name, {0: self.number()}, reply))

    async def send_malformed_bytes(self) -> None:
        records = await self.open("evil-nonsense")
        await records.send(self.rng.randbytes(self.rng.randrange(1, 2_000)))

    async def send_invalid_requests(self) -> None:
        reply: Any
        reply, answer = oneshot(Any)
        self.halves.append(answer)
        request: Any = self.rng.choice(
            (
                Offsets("shared", self.number(), reply),
                EndStep("shared", "evil", self.number(), "0" * 32, reply),
                Topics(reply, "../" * 9),
            )
        )
        await self.entrypoint.send(request)


class Honest:
    """A well-behaved producer and reader."""

    def __init__(self, address: str) -> None:
        self.options: dict[str, Any] = {"trust": aqueduct.dev_trust(), "token": HONEST}
        self.address = address
        self.waits: list[float] = []
        self.goes_on = True

    async def run(self) -> int:
        sent = 0
        async with (
            Producer(self.address, "shared", producer_id="honest", **self.options) as producer,
            Reader(self.address, **self.options) as reader,
        ):
            while self.goes_on or not self.waits:
                began = time.perf_counter()
                stored = await producer.send_and_wait(b"%d" % sent, partition=0)
                assert stored.offset is not None
                where = "shared", 0, stored.offset, stored.offset + 1
                rows = [row async for batch in reader.read(*where) for row in batch.to_pylist()]
                assert [row["value"] for row in rows] == [b"%d" % sent]
                await reader.advance("honest", "shared", {0: stored.offset})
                self.waits.append(time.perf_counter() - began)
                sent += 1
                await asyncio.sleep(0)
        return sent


async def guess(address: str) -> None:
    for _ in range(4):
        try:
            async with connect(
                address,
                Request,
                trust=aqueduct.dev_trust(),
                headers={"authorization": f"Bearer {GUESSED}"},
            ):
                raise AssertionError("let in")
        except AqueductError:
            pass


async def attack(address: str, seed: str) -> None:
    headers = {"authorization": f"Bearer {HOSTILE}"}
    async with connect(address, Request, trust=aqueduct.dev_trust(), headers=headers) as connection:
        await Attacker(seed, connection.entrypoint).run()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_hostile_clients_do_not_affect_well_behaved_ones(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Permissions(
        {HONEST: Grant(["*"], ["*"], "honest"), HOSTILE: Grant(["*"], ["*"], "hostile")}
    )
    tls = aqueduct.dev_tls()
    server = IngestServer("127.0.0.1:0", tmp_path, tls=tls, limits=LIMITS, permissions=tokens)
    async with server:
        honest = Honest(server.address)
        working = asyncio.create_task(honest.run())
        await eventually(lambda: len(honest.waits) >= 5, "the well-behaved clients have started")
        idle, honest.waits = sorted(honest.waits), []
        attackers = [attack(server.address, f"{seed} {number}") for number in range(3)]
        await asyncio.gather(*attackers, guess(server.address))
        honest.goes_on = False
        sent = await working
        # The server has released everything of the closed connections.
        await eventually(lambda: not server._sending, "no stream is open")
        await eventually(lambda: not server._committer._held, "no memory is held")
        await eventually(lambda: server._reading._slots.free == LIMITS.max_fetches, "slots")
        assert not server._committer._reserving
        (info,) = server.topics()
        assert info.readers["honest"] == {0: info.readers["honest"][0]}
        numbers = []
        async with Reader(server.address, **honest.options) as reader:
            for part in info.partitions:
                where = "shared", part.partition, part.first_offset, part.next_offset
                async for batch in reader.read(*where):
                    rows = batch.select(["producer_id", "value"]).to_pylist()
                    numbers += [row["value"] for row in rows if row["producer_id"] == "honest"]
        assert numbers == [b"%d" % number for number in range(sent)]
        assert server.metrics.tokens_refused == 4
    assert "Traceback" not in caplog.text
    under = sorted(honest.waits)
    for when, waits in (("idle", idle), ("under attack", under)):
        count = len(waits)
        middle, late = waits[count // 2], waits[-1 - count // 100]
        print(
            f"{when}: {count} rounds of well-behaved clients, p50 {middle:.3f} s, p99 {late:.3f} s"
        )
