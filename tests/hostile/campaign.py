"""Campaigns: hostile peers against real servers, with well-behaved clients beside them.

::

    python -m tests.hostile.campaign --list
    python -m tests.hostile.campaign --attack tiny_streams --seconds 10 --seed 7
    python -m tests.hostile.campaign --all --seconds 8
    python -m tests.hostile.campaign --mixed --seconds 60 --seed 7
    python -m tests.hostile.campaign --soak --seconds 600

Servers, hostile peers and well-behaved clients are processes of their own. What is measured idle
comes first, then the attack. An attack is held if no well-behaved client saw an error, each was
answered, what took 99 of 100 at most is no more than five times that of an idle server and 50 ms,
and no server grew by more than its budget. A seed draws everything; the same seed draws it again.
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

from tests.hostile.attackers import Addresses, all_attacks
from tests.hostile.attacks import MEGABYTE, resident
from tests.hostile.bystanders import Bystander, bystanders

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
IDLE = 3.0
"""Seconds in which idle servers are measured."""
AFTER = 1.0
"""Seconds after an attack in which clients go on."""
ROUND = 10.0
"""Seconds of one round of a mixed campaign."""
FACTOR, ALLOWANCE = 5, 0.050
"""By how much, and by how many seconds, an attack may slow others down."""
BUDGETS = {"channels": 256 * MEGABYTE, "ingest": 256 * MEGABYTE, "ipc": 256 * MEGABYTE}
"""By how much a server may grow under any attack (docs/security.md)."""


@dataclass
class Row:
    """What became of one kind of client under one attack."""

    attack: str
    bystander: str
    idle: float
    attacked: float
    answers: int
    grown: int
    problems: list[str] = field(default_factory=list)
    slow: bool = False

    @property
    def limit(self) -> float:
        return FACTOR * self.idle + ALLOWANCE

    def verdict(self, *, judge_time: bool) -> str:
        """Whether the attack was held, and if not why."""
        problems = [*self.problems]
        if judge_time and self.attacked > self.limit:
            problems.append("slow")
        return "held" if not problems else "FAILED: " + "; ".join(problems)


@dataclass
class Report:
    """What became of everybody."""

    seed: int
    rows: list[Row] = field(default_factory=list)
    ends: dict[str, Any] = field(default_factory=dict)
    """How the hostile peers ended, by attack."""
    complaints: str = ""
    """What the servers wrote to standard error."""

    def failures(self, *, judge_time: bool) -> list[str]:
        return [
            f"{row.attack}, {row.bystander}: {verdict}"
            for row in self.rows
            if (verdict := row.verdict(judge_time=judge_time)) != "held"
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
        self.process: asyncio.subprocess.Process
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
        """Note its memory."""
        with contextlib.suppress(OSError, IndexError):
            self.most = max(self.most, resident(self.process.pid))

    def mark(self) -> None:
        """What it grows by is counted from now on."""
        self.start = self.most = resident(self.process.pid)

    @property
    def grown(self) -> int:
        return self.most - self.start


async def start(module: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(ROOT)])},
        cwd=ROOT,
    )


async def line_of(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next line that a process prints."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        line = await process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(f"a process ended: {(await process.stderr.read()).decode()[-2_000:]}")
    said: dict[str, Any] = json.loads(line)
    return said


class Campaign:
    """Servers of some areas, the clients beside, and one attack after the other."""

    def __init__(self, areas: set[str], servers: list[Server]) -> None:
        self.servers = servers
        addresses: Addresses = {}
        for server in servers:
            addresses |= server.addresses
        self.addresses = addresses
        self.clients: list[Bystander] = bystanders(addresses, areas)
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, idle: float) -> None:
        """Let the clients come, and measure them while nobody attacks."""
        self._tasks = [asyncio.create_task(client.run()) for client in self.clients]
        self._tasks.append(asyncio.create_task(self._watch()))
        async with asyncio.timeout(PATIENCE):
            for client in self.clients:
                await client.first.wait()
        for client in self.clients:
            client.waits.clear()  # the first questions also made connections
        await asyncio.sleep(idle)
        for server in self.servers:
            server.mark()

    async def attack(self, names: list[str], seconds: float, seed: int) -> dict[str, Any]:
        """Play attacks at once; returns how their peers ended."""
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
            async with asyncio.timeout(seconds + PATIENCE):
                ended = await line_of(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await reading
        return dict(ended["ended"])

    async def end(self, name: str) -> list[Row]:
        """Let everybody go on for a moment, then judge."""
        self._set_phase("after")
        await asyncio.sleep(AFTER)
        rows = []
        for client in self.clients:
            client.first.clear()
        with contextlib.suppress(TimeoutError):  # what is being asked is to be answered
            async with asyncio.timeout(PATIENCE):
                for client in self.clients:
                    await client.first.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self.clients:
            try:
                async with asyncio.timeout(PATIENCE):
                    await client.check()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
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
        if server.grown > BUDGETS[server.area]:
            row.problems.append(f"memory over {BUDGETS[server.area] / MEGABYTE:.0f} MB")
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
    """Start servers and clients, and measure them idle."""
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
    """One attack alone, against the servers that it is about."""
    report = Report(seed)
    async with campaign({all_attacks()[name].area}, idle) as running:
        report.ends = await running.attack([name], seconds, seed)
        report.rows = await running.end(name)
        report.complaints = "".join(each.complaints.decode() for each in running.servers)
    return report


def draw_rounds(
    seed: int, seconds: float, areas: set[str], length: float = ROUND
) -> Iterator[tuple[list[str], float, int]]:
    """What a mixed campaign plays: some attacks at once, then others."""
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
    """Attacks at once, drawn from a seed, against servers of several areas."""
    report = Report(seed)
    names: list[str] = []
    async with campaign(areas, idle) as running:
        for chosen, duration, sub_seed in draw_rounds(seed, seconds, areas, length):
            names += chosen
            for name, ends in (await running.attack(chosen, duration, sub_seed)).items():
                report.ends[name] = ends
        report.rows = await running.end(f"mixed, seed {seed}")
        report.complaints = "".join(each.complaints.decode() for each in running.servers)
    print(f"seed {seed} played {', '.join(names)}", flush=True)
    return report


async def main(options: argparse.Namespace) -> int:
    """Play what was asked for; returns how many attacks were not held."""
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
            print(f"  the hostile peers ended: {report.ends}\n{report.complaints[-3_000:]}")
        failures += report.failures(judge_time=True)
    if mixed:
        report = await play_mixed(seed, mixed, areas)
        show(report.rows)
        if options.verbose:
            print(f"  the hostile peers ended: {report.ends}\n{report.complaints[-3_000:]}")
        failures += report.failures(judge_time=True)
    print(f"{len(failures)} failures" if failures else "all attacks were held", flush=True)
    return len(failures)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--list", action="store_true", help="say what attacks there are")
    parser.add_argument("--attack", action="append", help="this attack alone; repeat")
    parser.add_argument("--all", action="store_true", help="each attack alone (the default)")
    parser.add_argument("--mixed", action="store_true", help="attacks at once, drawn from the seed")
    parser.add_argument("--soak", action="store_true", help="each alone, then mixed, in SECONDS")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack, or of all")
    parser.add_argument("--seed", type=int, help="draws everything; printed if not given")
    parser.add_argument("--areas", default="channels,ingest,ipc")
    parser.add_argument("--verbose", action="store_true", help="also what servers complained of")
    return parser.parse_args()


if __name__ == "__main__":
    from tests.hostile import campaign as module

    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("AQUEDUCT_DEV_DIR", directory)
        sys.exit(min(1, asyncio.run(module.main(arguments()))))
