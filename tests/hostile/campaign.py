"""Campaigns: hostile peers against real servers, with well-behaved clients beside them.

::

    python -m tests.hostile.campaign --list
    python -m tests.hostile.campaign --attack tiny_streams --seconds 10 --seed 7
    python -m tests.hostile.campaign --all --seconds 8
    python -m tests.hostile.campaign --mixed --seconds 60 --seed 7
    python -m tests.hostile.campaign --soak --seconds 600

Servers and hostile peers run in processes of their own, the well-behaved clients in this one. The
campaign measures the clients first beside idle servers, then under attack. An attack is held if

- no well-behaved client gets an error, and the servers answer each of them;
- their p99 latency is at most 5 times that beside idle servers, plus 50 ms;
- no server grows by more than its memory budget, or exits;
- the attack itself ran: a defect in its code is a failure, too.

Every choice comes from the seed; the same seed repeats the campaign.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.forking import AsyncForked
from tests.hostile.attackers import CRASHED, Addresses, all_attacks
from tests.hostile.attacks import MEGABYTE, resident
from tests.hostile.bystanders import Bystander, bystanders

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0
IDLE = 3.0
"""Seconds of measurement beside idle servers."""
AFTER = 1.0
"""Seconds for which clients continue after an attack."""
ROUND = 10.0
"""Seconds of one round of a mixed campaign."""
FACTOR, ALLOWANCE = 5, 0.050
"""The limit of the p99 latency under attack: `FACTOR` times idle, plus `ALLOWANCE` seconds."""
BUDGETS = dict.fromkeys(("channels", "tcp", "ingest", "ipc"), 256 * MEGABYTE)
"""Bytes by which a server may grow under mixed attacks (docs/security.md); see `Attack.budget`."""


@dataclass
class Row:
    """The measurements of one kind of client under one attack."""

    attack: str
    bystander: str
    idle: float
    attacked: float
    answers: int
    grown: int
    problems: list[str] = field(default_factory=list)

    @property
    def limit(self) -> float:
        return FACTOR * self.idle + ALLOWANCE

    def verdict(self, *, judge_time: bool) -> str:
        """Return "held", or what went wrong."""
        problems = [*self.problems]
        if judge_time and self.attacked > self.limit:
            problems.append("slow")
        return "held" if not problems else "FAILED: " + "; ".join(problems)


@dataclass
class Report:
    """The result of a campaign."""

    seed: int
    rows: list[Row] = field(default_factory=list)
    ends: dict[str, Any] = field(default_factory=dict)
    """How the runs of each attack ended."""
    complaints: str = ""
    """The standard error of the servers."""

    def failures(self, *, judge_time: bool) -> list[str]:
        """Return a line for each client that an attack affected, and each attack that crashed."""
        return [
            f"{row.attack}, {row.bystander}: {verdict}"
            for row in self.rows
            if (verdict := row.verdict(judge_time=judge_time)) != "held"
        ] + [
            f"{name}: FAILED: the attack {CRASHED}: {ends[CRASHED]}"
            for name, ends in self.ends.items()
            if CRASHED in ends
        ]


HEAD = (
    f"{'attack':<24} {'client':<13} {'p99 idle':>9} {'attacked':>9} {'limit':>9} "
    f"{'answers':>8} {'memory':>8}  verdict"
)


def show(rows: list[Row], *, judge_time: bool = True) -> None:
    """Print rows of the table."""
    for row in rows:
        print(
            f"{row.attack:<24} {row.bystander:<13} {row.idle * 1_000:>6.1f} ms "
            f"{row.attacked * 1_000:>6.1f} ms {row.limit * 1_000:>6.1f} ms {row.answers:>8} "
            f"{row.grown / MEGABYTE:>5.0f} MB  {row.verdict(judge_time=judge_time)}",
            flush=True,
        )


class Server:
    """The servers of one area, in a process."""

    def __init__(self, area: str) -> None:
        self.area = area
        self.addresses: Addresses = {}
        self.process: AsyncForked
        self.complaints = b""
        self.start = 0
        self.most = 0
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> Server:
        self.process = await start("tests.hostile.target", self.area)
        self._reading = asyncio.create_task(self._read())
        self.addresses = await line_of(self.process)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(65_536):
            self.complaints = (self.complaints + data)[-20_000:]

    def look(self) -> None:
        """Sample its memory."""
        with contextlib.suppress(OSError, IndexError):
            self.most = max(self.most, resident(self.process.pid))

    def mark(self) -> None:
        """Measure growth from now on."""
        self.start = self.most = resident(self.process.pid)

    @property
    def grown(self) -> int:
        return self.most - self.start


async def start(module: str, *arguments: str) -> AsyncForked:
    return await AsyncForked.start(module, *arguments, environment=os.environ)


async def line_of(process: AsyncForked) -> dict[str, Any]:
    """Return the next line of JSON that a process prints."""
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        line = await process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(f"a process ended: {(await process.stderr.read()).decode()[-2_000:]}")
    said: dict[str, Any] = json.loads(line)
    return said


class Campaign:
    """The servers of some areas, their well-behaved clients, and one attack after the other."""

    def __init__(self, areas: set[str], servers: list[Server]) -> None:
        self.servers = servers
        addresses: Addresses = {}
        for server in servers:
            addresses |= server.addresses
        self.addresses = addresses
        self.clients: list[Bystander] = bystanders(addresses, areas)
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, idle: float) -> None:
        """Start the clients, and measure them beside idle servers."""
        self._tasks = [asyncio.create_task(client.run()) for client in self.clients]
        self._tasks.append(asyncio.create_task(self._watch()))
        async with asyncio.timeout(TIMEOUT):
            for client in self.clients:
                await client.warm.wait()
        for client in self.clients:
            client.waits.clear()
        await asyncio.sleep(idle)
        for server in self.servers:
            server.mark()

    async def attack(self, names: list[str], seconds: float, seed: int) -> dict[str, Any]:
        """Run attacks concurrently; returns how their runs ended."""
        self._set_phase("attack")
        process = await start(
            "tests.hostile.attackers",
            "--addresses",
            json.dumps(self.addresses),
            "--seed",
            str(seed),
            "--seconds",
            str(seconds),
            *names,
        )
        assert process.stderr is not None
        reading = asyncio.create_task(process.stderr.read())
        try:
            await line_of(process)
            async with asyncio.timeout(seconds + TIMEOUT):
                ended = await line_of(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await reading
        return dict(ended["ended"])

    async def end(self, name: str) -> list[Row]:
        """Let the clients continue for `AFTER` seconds, then check and judge them."""
        self._set_phase("after")
        await asyncio.sleep(AFTER)
        rows = []
        for client in self.clients:
            client.first.clear()
        with contextlib.suppress(TimeoutError):  # requests in progress must complete
            async with asyncio.timeout(TIMEOUT):
                for client in self.clients:
                    await client.first.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self.clients:
            try:
                async with asyncio.timeout(TIMEOUT):
                    await client.check()
            except Exception as error:  # noqa: BLE001 - any exception is a finding
                client.errors.append(f"{type(error).__name__}: {error}"[:200])
            rows.append(self._judge(name, client))
        return rows

    def _judge(self, name: str, client: Bystander) -> Row:
        server = next(each for each in self.servers if each.area == client.area)
        answers = len(client.waits.get("attack", ()))
        row = Row(
            name, client.name, client.p99("idle"), client.p99("attack"), answers, server.grown
        )
        if client.errors:
            row.problems.append(f"{len(client.errors)} errors, first: {client.errors[0]}")
        if not client.first.is_set():
            row.problems.append("not answered afterwards")
        alone = all_attacks().get(name)
        budget = BUDGETS[server.area] if alone is None else alone.budget
        if server.grown > budget:
            row.problems.append(f"memory over {budget / MEGABYTE:.0f} MB")
        if server.process.returncode is not None:
            row.problems.append("the server is gone")
        return row

    def _set_phase(self, phase: str) -> None:
        for client in self.clients:
            client.phase = phase

    async def _watch(self) -> None:
        while True:
            for server in self.servers:
                server.look()
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def campaign(areas: set[str], idle: float = IDLE) -> AsyncIterator[Campaign]:
    """Start servers and clients, and measure the clients beside idle servers."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Server(area)) for area in sorted(areas)]
        running = Campaign(areas, servers)
        try:
            await running.begin(idle)
            yield running
        finally:
            for task in running._tasks:
                task.cancel()
            await asyncio.gather(*running._tasks, return_exceptions=True)


async def play_one(name: str, seconds: float, seed: int, idle: float = IDLE) -> Report:
    """Run one attack alone, against the servers of its area."""
    report = Report(seed)
    async with campaign({all_attacks()[name].area}, idle) as running:
        report.ends = await running.attack([name], seconds, seed)
        report.rows = await running.end(name)
        report.complaints = "".join(each.complaints.decode() for each in running.servers)
    return report


def draw_rounds(
    seed: int, seconds: float, areas: set[str], length: float = ROUND
) -> Iterator[tuple[list[str], float, int]]:
    """Draw the rounds of a mixed campaign: attacks to run concurrently, seconds, and a seed."""
    random = Random(seed)
    names = sorted(name for name, each in all_attacks().items() if each.area in areas)
    while seconds > 0.5:
        duration = min(seconds, length)
        chosen = random.sample(names, min(len(names), random.randint(2, 4)))
        yield chosen, duration, random.randrange(1 << 30)
        seconds -= duration


async def play_mixed(
    seed: int, seconds: float, areas: set[str], idle: float = IDLE, length: float = ROUND
) -> Report:
    """Run concurrent attacks drawn from a seed, against the servers of several areas."""
    report = Report(seed)
    names: list[str] = []
    async with campaign(areas, idle) as running:
        for chosen, duration, sub_seed in draw_rounds(seed, seconds, areas, length):
            names += chosen
            for name, ends in (await running.attack(chosen, duration, sub_seed)).items():
                if CRASHED not in report.ends.get(name, ()):  # one crash is enough to report
                    report.ends[name] = ends
        report.rows = await running.end(f"mixed, seed {seed}")
        report.complaints = "".join(each.complaints.decode() for each in running.servers)
    print(f"seed {seed} ran {', '.join(names)}", flush=True)
    return report


async def main(options: argparse.Namespace) -> int:
    """Run the selected attacks; returns the number of failures."""
    attacks = all_attacks()
    if options.list:
        for each in attacks.values():
            print(f"{each.name:<24} {each.area:<9} {each.summary}")
        return 0
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(3))
    areas = set(options.areas.split(","))
    names = options.attack or [each.name for each in attacks.values() if each.area in areas]
    alone, mixed = options.seconds, 0.0
    if options.mixed:
        names, mixed = [], options.seconds
    elif options.soak:
        mixed = options.seconds / 4
        alone = max(2.0, (options.seconds - mixed) / len(names) - IDLE - AFTER - 2)
    print(f"seed {seed}; replay with --seed {seed}\n{HEAD}", flush=True)
    failures: list[str] = []
    for name in names:
        report = await play_one(name, alone, seed)
        show(report.rows)
        if options.verbose:
            print(f"  runs of attacks ended: {report.ends}\n{report.complaints[-3_000:]}")
        failures += report.failures(judge_time=True)
    if mixed:
        report = await play_mixed(seed, mixed, areas)
        show(report.rows)
        if options.verbose:
            print(f"  runs of attacks ended: {report.ends}\n{report.complaints[-3_000:]}")
        failures += report.failures(judge_time=True)
    print(
        "\n".join([*failures, f"{len(failures)} failures" if failures else "all attacks were held"])
    )
    return len(failures)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--list", action="store_true", help="list the attacks")
    parser.add_argument("--attack", action="append", help="run this attack alone; repeatable")
    parser.add_argument("--all", action="store_true", help="run each attack alone (the default)")
    parser.add_argument(
        "--mixed", action="store_true", help="run concurrent attacks drawn from the seed"
    )
    parser.add_argument(
        "--soak", action="store_true", help="run each attack alone, then mixed ones"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=8.0,
        help="duration of each attack; with --mixed or --soak of all together (%(default)s)",
    )
    parser.add_argument("--seed", type=int, help="RNG seed; random, and printed, by default")
    parser.add_argument("--areas", default="channels,tcp,ingest,ipc")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also print how attacks ended, and what servers logged",
    )
    return parser.parse_args()


if __name__ == "__main__":
    from tests.hostile import campaign as module

    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("AQUEDUCT_DEV_DIR", directory)
        sys.exit(min(1, asyncio.run(module.main(arguments()))))
