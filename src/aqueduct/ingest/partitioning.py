"""The partition of a record. Producers and servers of all versions must compute the same."""

from __future__ import annotations

from zlib import crc32

RUN = 256
"""Consecutive records without a key that go to one partition: enough to be stored together, few
enough to spread the load."""


def partition_of(key: bytes | None, sequence: int, partitions: int) -> int:
    """Return the partition of a record: by its key, or round-robin in runs if it has none."""
    if key is None:
        return sequence // RUN % partitions
    return crc32(key) % partitions


def spread(indices: range, sequence: int, partitions: int) -> dict[int, list[slice]]:
    """Return, by partition, slices of the indices of many records without a key.

    ``sequence`` is the sequence number of the record at index 0.
    """
    runs: dict[int, list[slice]] = {}
    at = indices.start
    while at < indices.stop:
        turn = (sequence + at) // RUN
        end = min((turn + 1) * RUN - sequence, indices.stop)
        runs.setdefault(turn % partitions, []).append(slice(at, end))
        at = end
    return runs
