"""Hostile peers: what an attack is, and the process that runs some of them.

An attack is an async function with a name, in one file per area. It goes on until it is cancelled,
draws everything it does from a random generator, and uses addresses of its own, as a peer on
another host would.
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

Addresses = dict[str, str]
Play = Callable[[Addresses, Random], Awaitable[None]]

HOSTS = ("127.0.0.66", "127.0.0.67", "127.0.0.68")
"""Where hostile peers come from; those who are well-behaved come from 127.0.0.1."""
MODULES = ("quic", "channels", "ingest", "ipc")
ROUTED = (aqueduct.AqueductError, OSError, TimeoutError, ExceptionGroup, ConnectionError)
"""How a peer notices that it was thrown out."""
PAUSE = 0.05
"""Seconds before a peer that was thrown out comes again."""


@dataclass(frozen=True)
class Attack:
    """A way to misbehave."""

    name: str
    area: str
    """The servers that it is about: channels, ingest or ipc."""
    play: Play

    @property
    def summary(self) -> str:
        return (self.play.__doc__ or "").strip().splitlines()[0]


ATTACKS: dict[str, Attack] = {}


def attack(area: str) -> Callable[[Play], Play]:
    """Put a function among the attacks, under its own name."""

    def add(play: Play) -> Play:
        name = play.__name__
        ATTACKS[name] = Attack(name, area, play)
        return play

    return add


def all_attacks() -> dict[str, Attack]:
    """Every attack by name."""
    for module in MODULES:
        importlib.import_module(f"tests.hostile.attackers_{module}")
    return ATTACKS


def place(address: str) -> tuple[str, int]:
    """The host and port of an address."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def coming_from(random: Random) -> Iterator[None]:
    """Bind the sockets that connect without a word where hostile peers come from."""
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
    """Play an attack until cancelled; a peer that is thrown out comes again."""
    ends: Counter[str] = Counter()
    try:
        while True:
            try:
                await attack.play(addresses, random)
                ends["done"] += 1
            except ROUTED as error:
                ends[type(error).__name__] += 1
            await asyncio.sleep(PAUSE)
    except asyncio.CancelledError:
        return ends


async def main(options: argparse.Namespace) -> None:
    """Play attacks for some seconds; prints how their peers ended."""
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
        done, _ = await asyncio.wait(tasks, timeout=5)
    ends = {
        name: dict(task.result())
        for name, task in zip(options.attacks, tasks, strict=True)
        if task in done and not task.cancelled() and task.exception() is None
    }
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
