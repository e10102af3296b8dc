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


def spread(places: range, sequence: int, partitions: int) -> dict[int, list[slice]]:
    """The same for many records without a key: by partition, runs of their places in a list.

    ``sequence`` is the number of the record at place 0.
    """
    runs: dict[int, list[slice]] = {}
    at = places.start
    while at < places.stop:
        turn = (sequence + at) // RUN
        end = min((turn + 1) * RUN - sequence, places.stop)
        runs.setdefault(turn % partitions, []).append(slice(at, end))
        at = end
    return runs
