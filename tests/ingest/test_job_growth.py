"""The memory of a server process while an interrupted step of any size is finished.

JOB_ROWS=2000000 runs this with the default limits and a step as large as that.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import aqueduct
from aqueduct.ingest.blocking import Client, Producer, Reader
from aqueduct.ingest.dedup.scope import Fingerprint, WriteScope
from tests.ingest.jobbing import RUNS, unique_ids_of

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
from aqueduct.ingest import IngestSettings, IngestServer

async def main():
    limits = IngestSettings(low_water=0{LIMITS})
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
    """Return the peak memory of a process, in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def write(address: str, run: int, rows: range, parts: int, size: int, unique: bool) -> None:
    """Send the first rows of a step, or all rows and then end it."""
    total = Fingerprint()
    with Client(address, trust=aqueduct.dev_trust()) as client:
        for part in range(parts):
            scope = WriteScope("job", 0, RUNS[run], part, unique=unique)
            theirs = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
            with Producer(address, "t", scope=scope, client=client, partitions=4) as producer:
                for start in range(0, len(theirs), _SENT):
                    values = [b"%0*d" % (size, number) for number in theirs[start : start + _SENT]]
                    ids = [hashlib.blake2b(each, digest_size=16).digest() for each in values]
                    producer.send_many(values, ids=[each + bytes(4) for each in ids])
            total += producer.fingerprint
        if run:
            client.end_step("t", "job", 0, RUNS[run], rows=total)


@pytest.mark.parametrize("unique", [False, True])
def test_parts_written_at_once_exceed_memory_and_nothing_is_sent_again(
    tmp_path: Path, unique: bool
) -> None:
    parts, each = 6, 6 * _SENT  # six times max_ids in all
    with serving(tmp_path) as (_, address), Client(address, trust=aqueduct.dev_trust()) as client:
        for attempt in range(2):  # the second one completes the parts
            with ExitStack() as stack:
                total = Fingerprint()
                producers = [
                    Producer(address, "t", scope=scope, client=client, partitions=2)
                    for scope in (
                        WriteScope("job", 0, RUNS[0], part, unique) for part in range(parts)
                    )
                ]
                for producer in producers:
                    producer.open()
                    stack.callback(producer.abandon)
                for start in range(0, each, _SENT):
                    for part, producer in enumerate(producers):
                        first = part * each + start
                        values = [b"%d" % number for number in range(first, first + _SENT)]
                        producer.send_many(values, ids=unique_ids_of(values))
                        if part % 2:
                            producer.flush()  # so that not all parts are in each group
                for producer in producers:
                    producer.flush()
                    if attempt:
                        producer.complete()
                    total += producer.fingerprint
        client.end_step("t", "job", 0, RUNS[0], rows=total)
        with Reader(address, trust=aqueduct.dev_trust()) as reader:
            stored = Counter[bytes]()
            for number in range(2):
                end = reader.topics("t")[0].partitions[number].next_offset
                for batch in reader.read("t", number, 0, end):
                    stored.update(batch.column("value").to_pylist())
    assert stored == Counter(b"%d" % number for number in range(parts * each))


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
