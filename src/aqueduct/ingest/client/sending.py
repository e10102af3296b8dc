"""Records that somebody wants sent: checked, measured, and many at once made into batches."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from aqueduct.ingest.client.batch import Batch
from aqueduct.ingest.dedup.scope import ID_SIZE
from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.protocol import FIRST_TIME, LAST_TIME, MAX_HEADERS, MAX_MESSAGE_HEADERS

BATCH_RECORDS = 2_048
BATCH_BYTES = 256 * 1024
"""A batch of this size is not waited with; smaller ones go when the loop has a moment."""
OVERHEAD = 100
"""What a record costs in memory besides its bytes."""
PIECE = 16_384
"""Records that are checked at a time, so that others have a turn in between."""


def size_of_record(
    value: bytes,
    key: bytes | None,
    headers: Mapping[str, bytes] | None,
    partition: int | None,
    timestamp: float | None,
) -> int:
    """Bytes of a record; raises if it cannot be sent anywhere."""
    if not isinstance(value, bytes):
        raise TypeError(f"a record is bytes, not {type(value).__name__}")
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
    if partition is not None and not isinstance(partition, int):
        raise TypeError(f"a partition is a number, not {type(partition).__name__}")
    if timestamp is not None:
        check_timestamp(timestamp)
    size = len(value) + len(key or b"")
    if headers is not None:
        size += size_of_headers(headers)
    return size


def check_timestamp(timestamp: float) -> None:
    """Raise unless it is a time that has a date."""
    if not isinstance(timestamp, int | float):
        raise TypeError(f"a timestamp is seconds since 1970, not {type(timestamp).__name__}")
    if not FIRST_TIME <= timestamp * 1e6 <= LAST_TIME:
        raise IngestError(
            f"{timestamp!r} is outside of the years 1 to 9999; give seconds since 1970"
        )


def check_time(micros: int) -> None:
    """The same for microseconds, which are exact."""
    if not isinstance(micros, int):
        raise TypeError(f"times are whole microseconds since 1970, not {type(micros).__name__}")
    if not FIRST_TIME <= micros <= LAST_TIME:
        raise IngestError(f"{micros} microseconds since 1970 is outside of the years 1 to 9999")


def size_of_headers(headers: Mapping[str, bytes]) -> int:
    """Bytes of headers; raises if they cannot be sent."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are names and bytes in a dict, not {type(headers).__name__}")
    if len(headers) > MAX_HEADERS:
        raise IngestError(f"a record with {len(headers)} headers; it may have {MAX_HEADERS}")
    size = 0
    for name, text in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is a str, not {type(name).__name__}")
        if not isinstance(text, bytes):
            raise TypeError(f"header {name!r} is bytes, not {type(text).__name__}")
        size += len(name.encode()) + len(text)
    return size


def check_id(row_id: Any, wanted: bool) -> None:
    """Raise unless a record has an id where one is wanted, and nowhere else."""
    if row_id is None:
        if wanted:
            raise IngestError("a producer with scope=… sends records with ids: send(value, id=…)")
        return
    if not wanted:
        raise IngestError("ids of records are for producers with scope=…")
    if not isinstance(row_id, bytes) or len(row_id) != ID_SIZE:
        raise IngestError(f"an id is {ID_SIZE} bytes, not {row_id!r:.80}")


class Columns:
    """Many records, column by column, of the same length."""

    def __init__(
        self,
        values: Sequence[bytes],
        ids: Sequence[bytes] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[float] | None = None,
        times: Sequence[int] | None = None,
    ) -> None:
        self.values = values
        self.ids = ids
        self.keys = keys
        self.headers = headers
        self.timestamps = timestamps
        self.times = times
        for name in ("ids", "keys", "headers", "timestamps", "times"):
            column = getattr(self, name)
            if column is not None and len(column) != len(values):
                raise ValueError(f"{len(column)} {name} for {len(values)} values")

    def pieces(self) -> Iterator[Columns]:
        """The same records, some at a time."""
        for start in range(0, len(self.values), PIECE):
            yield self._cut(start, start + PIECE)

    def _cut(self, start: int, end: int) -> Columns:
        return Columns(
            self.values[start:end],
            _cut(self.ids, start, end),
            _cut(self.keys, start, end),
            _cut(self.headers, start, end),
            _cut(self.timestamps, start, end),
            _cut(self.times, start, end),
        )

    def check(self, max_record: int, wants_ids: bool) -> None:
        """Raise if one of them cannot be sent."""
        _check_all_bytes(self.values, "a record")
        if self.keys is not None:
            _check_all_bytes([key for key in self.keys if key is not None], "a key")
        if self.timestamps is not None and self.timestamps:
            for timestamp in _odd(self.timestamps, int, float) or (
                min(self.timestamps),
                max(self.timestamps),
            ):
                check_timestamp(timestamp)
        if self.times:
            for each in _odd(self.times, int) or (min(self.times), max(self.times)):
                check_time(each)
        if self.ids is None:
            if self.values:
                check_id(None, wants_ids)
        elif not wants_ids or _odd(self.ids, bytes) or set(map(len, self.ids)) - {ID_SIZE}:
            for each in self.ids:
                check_id(each, wants_ids)
        self.sizes = self._sizes()
        size = max(self.sizes, default=0)
        if size > max_record:
            raise IngestError(f"a record of {size:,} bytes; the server takes {max_record:,}")

    def _sizes(self) -> list[int]:
        sizes = list(map(len, self.values))
        if self.keys is not None:
            for at, key in enumerate(self.keys):
                if key:
                    sizes[at] += len(key)
        if self.headers is not None:
            for at, headers in enumerate(self.headers):
                if headers is not None:
                    sizes[at] += size_of_headers(headers)
        return sizes

    def batches(self, partition: int | None) -> Iterator[Batch]:
        """Messages of a good size; each gets its number when its turn has come."""
        ends = list(accumulate(map(OVERHEAD.__add__, self.sizes)))
        counts = None
        if self.headers is not None:
            counts = [0, *accumulate(len(headers or ()) for headers in self.headers)]
        start, before = 0, 0
        while start < len(ends):
            fitting = bisect_right(ends, before + BATCH_BYTES, start)
            if counts is not None:
                many = bisect_right(counts, counts[start] + MAX_MESSAGE_HEADERS, start) - 1
                fitting = min(fitting, many)
            end = max(min(fitting, start + BATCH_RECORDS), start + 1)
            batch = Batch(0, partition)
            cut = self._cut(start, end)
            batch.values = list(cut.values)
            batch.ids = None if cut.ids is None else list(cut.ids)
            batch.keys = None if cut.keys is None else list(cut.keys)
            if cut.headers is not None:
                batch.headers = [
                    list(headers.items()) if headers else [] for headers in cut.headers
                ]
            if cut.times is not None:
                batch.timestamps = list(cut.times)
            elif cut.timestamps is None:
                batch.timestamps = [int(time.time() * 1e6)] * (end - start)
            else:
                batch.timestamps = [round(timestamp * 1e6) for timestamp in cut.timestamps]
            batch.size = ends[end - 1] - before
            start, before = end, ends[end - 1]
            yield batch


def _cut(column: Sequence[Any] | None, start: int, end: int) -> Sequence[Any] | None:
    return None if column is None else column[start:end]


def _odd(column: Sequence[Any], *kinds: type) -> list[Any]:
    """What is of none of the kinds; that nothing is takes hardly any time to see."""
    if set(map(type, column)).issubset(kinds):
        return []
    return [each for each in column if not isinstance(each, kinds)]


def _check_all_bytes(column: Sequence[Any], what: str) -> None:
    for each in _odd(column, bytes):
        raise TypeError(f"{what} is bytes, not {type(each).__name__}")
