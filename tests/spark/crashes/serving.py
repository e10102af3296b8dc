"""Forks one ingest server after another, because a fork is faster than importing.

python -m tests.spark.crashes.serving ADDRESS DIRECTORY CERTIFICATE KEY, then an empty line for each
server; the next line is read when that server has exited.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.settings import IngestSettings
from aqueduct.security import ServerTLS
from tests.ingest.crashing import say

LIMITS = IngestSettings(roll_age=0.5, low_water=0)
"""Logs become segments all the time, and most rows are read from segments."""


async def serve(address: str, directory: str, tls: ServerTLS) -> None:
    async with IngestServer(address, directory, tls=tls, limits=LIMITS) as server:
        say("ready", address=server.address, pid=os.getpid())
        await server.wait_closed()


def main(address: str, directory: str, certificate: str, key: str) -> None:
    tls = ServerTLS(Path(certificate).read_bytes(), Path(key).read_bytes())
    while sys.stdin.readline():
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(serve(address, directory, tls))
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
