"""The transcript of a run of either protocol: a line per entry, and a hash to compare runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from aqueduct.testing.ipc.record import IpcRecord
from aqueduct.testing.record import Record


def transcript(record: Record | IpcRecord) -> Iterator[str]:
    """Return the lines of the transcript: the time, the side or endpoint, and what happened."""
    for entry in record.entries:
        yield f"{entry.time:11.6f} {entry.subject:6} {entry}"


def transcript_hash(lines: Iterable[str]) -> str:
    """Return a short hash of a transcript: equal runs have equal hashes."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]
