"""Which partition a record goes to: the same answer for producer and server, now and later."""

from __future__ import annotations

from zlib import crc32

RUN = 256
"""Records without a key that go to one partition before the next one has its turn: enough to be
stored together, few enough to spread."""


def partition_of(key: bytes | None, sequence: int, partitions: int) -> int:
    """The partition of a record: its key's, or without one the next in turn."""
    if key is None:
        return sequence // RUN % partitions
    return crc32(key) % partitions
