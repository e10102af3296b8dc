"""The senders of the process tests of aqueduct.ipc, which print the outcome of each message.

python -m tests.processes.courier --to udp://127.0.0.1:PORT [--from ADDRESS] [--first NUMBER]
    [--count NUMBER] [--size BYTES] [--parallel NUMBER]
python -m tests.processes.courier --to udp://127.0.0.1:PORT --garbage SEED
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import socket
import sys
import time
from random import Random
from typing import Any

from aqueduct import ipc
from aqueduct.errors import DeliveryError
from aqueduct.ipc.address import parse
from aqueduct.ipc.core.pdu import ID_SIZE, header_head

NUMBER = 4
"""Bytes of the message number."""


def letter(number: int, size: int) -> bytes:
    """Return a unique message that contains its number."""
    return (number.to_bytes(NUMBER, "big") + Random(number).randbytes(size))[:size]


def number_of(payload: bytes) -> int:
    """Return the number of a message, and check that it is complete."""
    number = int.from_bytes(payload[:NUMBER], "big")
    assert payload == letter(number, len(payload)), f"message {number} is not what was sent"
    return number


def say(event: str, **more: Any) -> None:
    """Print an event for the test."""
    print(json.dumps({"event": event, **more}), flush=True)


async def deliver(options: argparse.Namespace) -> None:
    """Send ``--count`` messages, some concurrently."""
    last = options.first + options.count if options.count else 2**32
    numbers = iter(range(options.first, last))

    async def work(endpoint: ipc.Endpoint[bytes]) -> None:
        for number in numbers:
            try:
                await endpoint.send(options.to, letter(number, options.size))
            except DeliveryError as error:
                say("failed", number=number, error=type(error).__name__, text=str(error))
            else:
                say("acked", number=number)

    async with ipc.Endpoint(options.source) as endpoint:
        say("ready", address=endpoint.address)
        await asyncio.gather(*(work(endpoint) for _ in range(options.parallel)))
        say("done", failed=endpoint.statistics().failed)


def litter(to: str, seed: int) -> None:
    """Send malformed datagrams endlessly: noise, and PDUs that are truncated or changed."""
    random = Random(seed)
    target = parse(to)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        say("ready", address=f"udp://127.0.0.1:{sock.getsockname()[1]}")
        for count in itertools.count():
            pdu = bytearray(header_head(random.randbytes(ID_SIZE), random.randbytes(ID_SIZE), 9))
            pdu += random.randbytes(random.choice((0, 1, 9, 2_000)))
            for _ in range(random.randrange(3)):
                pdu[random.randrange(len(pdu))] ^= 1 << random.randrange(8)
            noise = random.randbytes(random.choice((0, 1, 21, 22, 60, 1_500)))
            for data in (pdu, pdu[: random.randrange(len(pdu))], noise):
                sock.sendto(data, (target.host, target.port))
            if count % 20 == 0:
                time.sleep(0.002)


def options_from(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", required=True)
    parser.add_argument("--from", dest="source", default="udp://127.0.0.1:0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--garbage", type=int)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = options_from(sys.argv[1:])
    if options.garbage is None:
        asyncio.run(deliver(options))
    else:
        litter(options.to, options.garbage)
