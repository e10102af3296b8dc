"""Rows of jobs for tests: their ids, and ways to distribute them over parts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from aqueduct.ingest.records import RecordColumns

RUNS = [f"{number:08x}" + 24 * "0" for number in range(1, 100)]


def ids_of(values: Iterable[bytes]) -> list[bytes]:
    """Return an id for each row of one attempt: its content hash, and its occurrence."""
    seen: Counter[bytes] = Counter()
    ids = []
    for value in values:
        digest = hashlib.blake2b(value, digest_size=16).digest()
        ids.append(digest + seen[digest].to_bytes(4, "big"))
        seen[digest] += 1
    return ids


def unique_ids_of(values: Iterable[bytes]) -> list[bytes]:
    """Return an id for each row that is a hash of its content."""
    return [hashlib.blake2b(value, digest_size=16).digest() + bytes(4) for value in values]


def shared_out(values: Sequence[bytes], choices: Sequence[int], parts: int) -> list[list[bytes]]:
    """Return the rows of each part."""
    rows: list[list[bytes]] = [[] for _ in range(parts)]
    for value, choice in zip(values, choices, strict=True):
        rows[choice % parts].append(value)
    return rows


def records(values: Sequence[bytes], ids: Sequence[bytes], sequence: int = 1) -> RecordColumns:
    """Return a message with rows of a job."""
    return RecordColumns(sequence, list(values), [0] * len(values), ids=b"".join(ids))


def last(sequence: int = 1) -> RecordColumns:
    """Return the message that a part is complete."""
    return RecordColumns(sequence, [], [], is_last=True)
