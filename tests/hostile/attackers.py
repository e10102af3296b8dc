"""Attacks: how they are registered, and the process that runs some of them.

An attack is an async function with `@attack`, in one file per area. It runs until it is cancelled,
takes its choices from a seeded RNG, and connects from other loopback addresses than the
well-behaved clients, as a peer on another host would.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import aqueduct
from tests.hostile.attacks import MEGABYTE

Addresses = dict[str, str]
Play = Callable[[Addresses, Random], Awaitable[None]]

HOSTS = ("127.0.0.66", "127.0.0.67", "127.0.0.68")
"""The addresses of hostile peers; well-behaved clients use 127.0.0.1."""
MODULES = ("quic", "channels", "tcp", "ingest", "ipc")
REJECTED = (aqueduct.AqueductError, OSError, TimeoutError)
"""The errors of a peer whose connection the server rejected or closed."""
PAUSE = 0.05
"""Seconds before a hostile peer reconnects."""
CRASHED = "crashed"
"""The key under which a defect of the attack itself is reported."""


@dataclass(frozen=True)
class Attack:
    """A registered attack."""

    name: str
    area: str
    """The servers that it attacks: channels, tcp, ingest or ipc."""
    play: Play
    budget: int
    """Bytes by which the server may grow while this attack runs alone."""

    @property
    def summary(self) -> str:
        return (self.play.__doc__ or "").strip().splitlines()[0]


ATTACKS: dict[str, Attack] = {}


def attack(area: str, megabytes: int = 256) -> Callable[[Play], Play]:
    """Register a function as an attack, under its own name, with its memory budget."""

    def add(play: Play) -> Play:
        name = play.__name__
        ATTACKS[name] = Attack(name, area, play, megabytes * MEGABYTE)
        return play

    return add


def all_attacks() -> dict[str, Attack]:
    """Return every attack by name."""
    for module in MODULES:
        importlib.import_module(f"tests.hostile.attackers_{module}")
    return ATTACKS


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and port of an address."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def coming_from(random: Random) -> Iterator[None]:
    """Bind sockets that connect without an address of their own to one of `HOSTS`."""
    plain = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        with contextlib.suppress(OSError):
            if self.family == socket.AF_INET and self.getsockname()[1] == 0:
                self.bind((random.choice(HOSTS), 0))
        plain(self, address)

    socket.socket.connect = connect  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        socket.socket.connect = plain  # type: ignore[method-assign]


async def keep_playing(attack: Attack, addresses: Addresses, random: Random) -> Counter[str]:
    """Repeat an attack until cancelled; a peer that the server rejects reconnects.

    Returns how its runs ended. Any other exception is a defect of the attack, and is raised.
    """
    ends: Counter[str] = Counter()
    try:
        while True:
            try:
                await attack.play(addresses, random)
                ends["done"] += 1
            except* REJECTED as group:
                ends[type(first_of(group)).__name__] += 1
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # errors of a task group replace it
                return ends
            await asyncio.sleep(PAUSE)
    except asyncio.CancelledError:
        return ends


def first_of(error: BaseException) -> BaseException:
    """Return the first exception in a group, or the exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def outcome(task: asyncio.Task[Counter[str]]) -> dict[str, Any]:
    """Return how the runs of an attack ended, or the defect that stopped it."""
    if not task.done() or task.cancelled():
        return {CRASHED: "ignored its cancellation"}
    if (error := task.exception()) is not None:
        error = first_of(error)
        return {CRASHED: f"{type(error).__name__}: {error}"[:200]}
    return dict(task.result())


async def main(options: argparse.Namespace) -> None:
    """Run attacks for some seconds, and print how their runs ended."""
    attacks = all_attacks()
    addresses = json.loads(options.addresses)
    random = Random(options.seed)
    print(json.dumps({"began": options.attacks}), flush=True)
    with coming_from(random):
        tasks = [
            asyncio.create_task(keep_playing(attacks[name], addresses, Random(random.random())))
            for name in options.attacks
        ]
        await asyncio.sleep(options.seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=30)
    ends = {name: outcome(task) for name, task in zip(options.attacks, tasks, strict=True)}
    print(json.dumps({"ended": ends}), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("attacks", nargs="+")
    return parser.parse_args()


if __name__ == "__main__":
    from tests.hostile import attackers

    asyncio.run(attackers.main(arguments()))
