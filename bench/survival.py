"""Measure how many connections survive loss and address changes, over real UDP.

Each connection goes through a relay of its own, with 1,452-byte packets, and opens short channels
that carry messages both ways. A connection that ends early or misses the timeout counts as dead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import msgspec

import aqueduct
from aqueduct.testing.relay import Impairments, Relay

PACKET = 1_452
TIMEOUT = 120.0
AT_A_TIME = 8
"""Concurrent connections."""
STREAMS = 20
"""Concurrent channels per connection."""
ROUNDS = 5
"""The rounds of STREAMS channels of a connection under loss."""
PAUSE = 0.2

OPTIONS = aqueduct.QuicSettings(max_packet=PACKET, idle_timeout=30.0)


class Sum(msgspec.Struct):
    """Request the total length of the messages on a channel."""

    pieces: aqueduct.Receiver[bytes]
    reply: aqueduct.Sender[int]


async def answer(request: Sum) -> None:
    """Add up the lengths of the messages, and reply with the sum."""
    with contextlib.suppress(aqueduct.ChannelError):
        total = 0
        async for piece in request.pieces:
            total += len(piece)
        await request.reply.send(total)


async def handle(connection: aqueduct.Connection[Sum]) -> None:
    """Serve a client."""
    tasks = set()
    with contextlib.suppress(aqueduct.AqueductError):
        async for request in connection.entrypoint:
            task = asyncio.ensure_future(answer(request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def ask(connection: aqueduct.Connection[Sum], random: Random) -> None:
    """Send a few messages on a channel and check the reply."""
    (sender, pieces), (reply, result) = aqueduct.channel(bytes), aqueduct.oneshot(int)
    await connection.entrypoint.send(Sum(pieces, reply))
    total = 0
    for _ in range(random.randrange(1, 4)):
        size = random.choice((10, 300, 1_300, 4_000))
        total += size
        await sender.send(bytes(size))
    sender.finish()
    if await result.receive() != total:
        raise AssertionError("the server received fewer bytes than were sent")


async def work(connection: aqueduct.Connection[Sum], random: Random) -> None:
    """Use STREAMS channels at once."""
    await asyncio.gather(*(ask(connection, random) for _ in range(STREAMS)))


async def through_loss(loss: float, address: str, seed: int) -> None:
    """Use a connection that loses packets both ways."""
    async with (
        Relay(address, Impairments(delay=0.01), seed=seed) as relay,
        aqueduct.connect(
            relay.address, Sum, trust=aqueduct.dev_trust(), options=OPTIONS, timeout=TIMEOUT
        ) as connection,
    ):
        relay.impairments = Impairments(delay=0.01, loss=loss)
        random = Random(seed)
        for _ in range(ROUNDS):
            await work(connection, random)
        relay.impairments = Impairments(delay=0.01)


async def through_changes(changes: int, address: str, seed: int) -> None:
    """Use a connection whose address changes repeatedly, under load and idle."""
    random = Random(seed)
    async with (
        Relay(address, Impairments(delay=0.01, loss=0.01), seed=seed) as relay,
        aqueduct.connect(
            relay.address, Sum, trust=aqueduct.dev_trust(), options=OPTIONS, timeout=TIMEOUT
        ) as connection,
    ):
        for change in range(changes):
            busy = asyncio.ensure_future(work(connection, random))
            await asyncio.sleep(random.random() * 0.1)
            relay.change_address()
            await busy
            if change % 2:
                relay.change_address()
                await asyncio.sleep(PAUSE)
        await work(connection, random)


async def fates(
    count: int, attempt: Callable[[str, int], Awaitable[None]]
) -> tuple[Counter[str], float]:
    """Run an attempt with several connections to one server; return how they ended and the time."""
    found: Counter[str] = Counter()
    turns = asyncio.Semaphore(AT_A_TIME)
    begun = time.monotonic()

    async def one(seed: int) -> None:
        async with turns:
            try:
                async with asyncio.timeout(TIMEOUT):
                    await attempt(server.address, seed)
                found["alive"] += 1
            except TimeoutError:
                found["timed out"] += 1
            except aqueduct.AqueductError as error:
                found[str(error)[:80]] += 1

    async with aqueduct.serve(
        "127.0.0.1:0", Sum, tls=aqueduct.dev_tls(), options=OPTIONS
    ) as server:
        serving = asyncio.ensure_future(server.run(handle))
        await asyncio.gather(*(one(seed) for seed in range(count)))
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    return found, time.monotonic() - begun


async def measure(options: argparse.Namespace) -> int:
    """Print a line per kind of network; return the number of connections that died."""
    dead = 0
    for loss in options.loss:
        found, seconds = await fates(options.connections, partial(through_loss, loss))
        dead += tell(f"{loss:.0%} loss each way, {ROUNDS} x {STREAMS} channels", found, seconds)
    if options.changes:
        moving = max(1, options.connections // 4)
        found, seconds = await fates(moving, partial(through_changes, options.changes))
        dead += tell(f"at least {options.changes} address changes", found, seconds)
    return dead


def tell(what: str, found: Counter[str], seconds: float) -> int:
    """Print and return the number of connections that died, with the reasons."""
    total = found.total()
    dead = total - found["alive"]
    print(f"{what}: {dead} of {total} died, {seconds:.0f} s")
    for reason, count in found.most_common():
        if reason != "alive":
            print(f"    {count} x {reason}")
    return dead


def main(words: list[str]) -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench survival", description=__doc__)
    parser.add_argument("--connections", type=int, default=200, help="of each kind (%(default)s)")
    parser.add_argument("--loss", type=float, nargs="*", default=[0.02, 0.05, 0.1])
    parser.add_argument("--changes", type=int, default=10, help="address changes (%(default)s)")
    return 1 if asyncio.run(measure(parser.parse_args(words))) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
