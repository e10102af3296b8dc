"""How large a server process gets while an interrupted step is finished, whatever its size.

JOB_ROWS=2000000 runs this with the default limits and a step as large as that.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aqueduct
from aqueduct.ingest.blocking import Client, Producer
from aqueduct.ingest.dedup.once import Fingerprint, Once
from tests.ingest.jobbing import RUNS

ROWS = int(os.environ.get("JOB_ROWS", "0"))
SOAKS = ROWS > 0
LIMITS = "" if SOAKS else ", max_ids=25_000"
MOST = 300
"""Megabytes of the process for a step of any size, 102 of which it has when it starts. Measured:
203 to 263."""
MOST_OF_FEW_IDS = 215
"""And if next to no ids are in memory."""
_SENT = 4_096

SERVER = f"""
import asyncio, sys
import aqueduct
from aqueduct.ingest import IngestLimits, IngestServer

async def main():
    limits = IngestLimits(low_water=0{LIMITS})
    async with IngestServer(
        "127.0.0.1:0", sys.argv[1], tls=aqueduct.dev_tls(), limits=limits
    ) as server:
        print(server.address, flush=True)
        await server.wait_closed()

asyncio.run(main())
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@contextmanager
def serving(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", SERVER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def peak(process: subprocess.Popen[str]) -> int:
    """The most memory that a process has had so far, in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def write(address: str, run: int, rows: range, parts: int, size: int, unique: bool) -> None:
    """Send the first rows of a step, or all of them, and end it then."""
    total = Fingerprint()
    with Client(address, trust=aqueduct.dev_trust()) as client:
        for part in range(parts):
            once = Once("job", 0, RUNS[run], part, unique=unique)
            theirs = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
            with Producer(address, "t", once=once, client=client, partitions=4) as producer:
                for start in range(0, len(theirs), _SENT):
                    values = [b"%0*d" % (size, number) for number in theirs[start : start + _SENT]]
                    ids = [hashlib.blake2b(each, digest_size=16).digest() for each in values]
                    producer.send_many(values, ids=[each + bytes(4) for each in ids])
            total += producer.fingerprint
        if run:
            client.end_step("t", "job", 0, RUNS[run], rows=total)


CASES = [(True, False, 1, 50), (False, True, 4, 50), (False, False, 16, 1_024)]


@pytest.mark.parametrize(("unique", "restarts", "parts", "size"), CASES)
def test_an_interrupted_step_of_any_size_finishes_in_bounded_memory(
    tmp_path: Path, unique: bool, restarts: bool, parts: int, size: int
) -> None:
    rows = ROWS or (150_000 if size < 1_000 else 60_000)
    peaks = []
    with serving(tmp_path) as (process, address):
        write(address, 0, range(rows * 19 // 20), parts, size, unique)
        if not restarts:
            write(address, 1, range(rows), parts, size, unique)
        peaks.append(peak(process))
    if restarts:
        with serving(tmp_path) as (process, address):
            write(address, 1, range(rows), parts, size, unique)
            peaks.append(peak(process))
    print(f"{unique=} {restarts=} {parts=} {size=}: {peaks} MB")
    assert max(peaks) <= (MOST if SOAKS else MOST_OF_FEW_IDS)
