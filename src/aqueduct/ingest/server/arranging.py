"""Distributes the new records of a message over partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aqueduct.ingest.partitioning import partition_of, spread
from aqueduct.ingest.protocol import Records
from aqueduct.ingest.records import Chunk, pick_places, pick_runs


def split(
    producer: str,
    records: Records,
    wanted: Sequence[int],
    partitions: int,
    ids: Sequence[bytes] | None = None,
) -> Iterable[tuple[int, Chunk]]:
    """Yield the wanted records by partition; ``wanted`` has indices, a range goes to the end."""
    sequences = range(records.sequence, records.sequence + len(records.values))
    if isinstance(wanted, range):
        skip = wanted.start
        if records.partition is not None or partitions == 1:
            chunk = Chunk(
                producer,
                sequences[skip:],
                records.values[skip:],
                records.timestamps[skip:],
                None if records.keys is None else records.keys[skip:],
                None if records.headers is None else records.headers[skip:],
                None if ids is None else ids[skip:],
            )
            yield records.partition or 0, chunk
            return
        if records.keys is None and records.partitions is None:
            runs = spread(wanted, records.sequence, partitions)
            for number, slices in runs.items():
                yield number, pick_runs(producer, records, slices, ids)
            return
    places: dict[int, list[int]] = {}
    for at in wanted:
        if records.partition is not None:
            number = records.partition
        elif records.partitions is not None:
            number = records.partitions[at]
        else:
            key = None if records.keys is None else records.keys[at]
            number = partition_of(key, sequences[at], partitions)
        places.setdefault(number, []).append(at)
    for number, picked in places.items():
        yield number, pick_places(producer, records, picked, ids)
