"""Measures the memory of a server whose messages decode to many times their size.

python -m tests.ingest.hoarding DIRECTORY MESSAGES RECORDS HEADERS

Prints the bytes by which the process grew at most while the server had all messages.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
from pathlib import Path

import msgspec

from aqueduct.api.channels import channel
from aqueduct.api.client import connect
from aqueduct.api.handles import Receiver, Sender
from aqueduct.ingest.protocol import Answer, Open, Request
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.settings import IngestSettings
from aqueduct.security import make_authority, make_certificate, trust


def peak() -> int:
    """Return the peak memory of this process, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def main(directory: Path, messages: int, records: int, headers: int) -> None:
    authority = make_authority("tests of ingest")
    tls = make_certificate(["127.0.0.1"], authority)
    row = [("", b"")] * headers
    message = RecordColumns(1, [b""] * records, [0] * records, headers=[row] * records)
    payload = msgspec.msgpack.encode(message)
    limits = IngestSettings(low_water=0)
    async with IngestServer("127.0.0.1:0", directory, tls=tls, limits=limits) as server:
        trusted = trust(authority.certificate)
        async with connect(server.address, Request, trust=trusted) as connection:
            senders: list[tuple[Sender[bytes], Receiver[Answer]]] = []
            for number in range(messages):
                sender, incoming = channel(bytes)
                outgoing, answers = channel(Answer)
                await connection.entrypoint.send(Open("t", f"p{number}", incoming, outgoing))
                await answers.receive()
                senders.append((sender, answers))
            goes = threading.Event()
            server._writer.submit(goes.wait, 60)  # so that nothing is stored meanwhile
            before = peak()
            sending = [asyncio.create_task(sender.send(payload)) for sender, _ in senders]
            await asyncio.wait(sending, timeout=1 + messages * len(payload) / 20e6)
            await asyncio.sleep(0.2)
            print(peak() - before)
            goes.set()
            for task in sending:
                task.cancel()
            for sender, answers in senders:
                sender.cancel()
                answers.close()


if __name__ == "__main__":
    where, *numbers = sys.argv[1:]
    asyncio.run(main(Path(where), *map(int, numbers)))
