"""Check and measure the records passed to a producer; convert columns of them to batches."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from aqueduct.ingest.client.outbox import BATCH_BYTES, BATCH_RECORDS, Batch
from aqueduct.ingest.dedup.scope import ID_SIZE
from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.protocol import FIRST_TIME, LAST_TIME, MAX_HEADERS, MAX_MESSAGE_HEADERS
from aqueduct.ingest.records import RecordColumns

OVERHEAD = 100
"""Bytes of memory for a record, besides its contents."""
PIECE = 16_384
"""Records that are checked at a time, so that other tasks run in between."""


def size_of_record(
    value: bytes,
    key: bytes | None,
    headers: Mapping[str, bytes] | None,
    partition: int | None,
    timestamp: float | None,
) -> int:
    """Return the bytes of a record; raise if no server accepts it."""
    if not isinstance(value, bytes):
        raise TypeError(f"a record is bytes, not {type(value).__name__}")
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
    if partition is not None and not isinstance(partition, int):
        raise TypeError(f"a partition is a number, not {type(partition).__name__}")
    if timestamp is not None:
        _check_timestamp(timestamp)
    size = len(value) + len(key or b"")
    if headers is not None:
        size += _size_of_headers(headers)
    return size


def check_size(size: int, max_record: int) -> None:
    """Raise `IngestError` for a record that is too large for the server."""
    if size > max_record:
        raise IngestError(f"a record of {size:,} bytes; the server takes {max_record:,}")


def check_id(row_id: Any, wanted: bool) -> None:
    """Raise unless a record has a valid id, or none if ids are not ``wanted``."""
    if row_id is None:
        if wanted:
            raise IngestError("a producer with scope=… sends records with ids: send(value, id=…)")
        return
    if not wanted:
        raise IngestError("ids of records are for producers with scope=…")
    if not isinstance(row_id, bytes) or len(row_id) != ID_SIZE:
        raise IngestError(f"an id is {ID_SIZE} bytes, not {row_id!r:.80}")


def checked(
    values: Sequence[bytes],
    ids: Sequence[bytes] | None = None,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    timestamps: Sequence[float] | None = None,
    times: Sequence[int] | None = None,
    *,
    max_record: int,
    wants_ids: bool,
) -> Iterator[tuple[RecordColumns, list[int]]]:
    """Yield columns as `RecordColumns` of up to `PIECE` records, with the size of each record.

    Raises for a record that the server would not accept.
    """
    columns = {
        "ids": ids, "keys": keys, "headers": headers, "timestamps": timestamps, "times": times
    }  # fmt: skip
    present = {name: column for name, column in columns.items() if column is not None}
    for name, column in present.items():
        if len(column) != len(values):
            raise ValueError(f"{len(column)} {name} for {len(values)} values")
    for start in range(0, len(values), PIECE):
        cut = slice(start, start + PIECE)
        piece, sizes = _converted(
            values[cut], {name: column[cut] for name, column in present.items()}, wants_ids
        )
        check_size(max(sizes), max_record)
        yield piece, sizes


def _converted(
    values: Sequence[bytes], present: dict[str, Sequence[Any]], wants_ids: bool
) -> tuple[RecordColumns, list[int]]:
    _check_all_bytes(values, "a record")
    columns = RecordColumns(0, list(values), [])
    sizes = list(map(len, values))
    if "keys" in present:
        columns.keys = list(present["keys"])
        _check_all_bytes([key for key in columns.keys if key is not None], "a key")
        for at, key in enumerate(columns.keys):
            if key:
                sizes[at] += len(key)
    if "timestamps" in present:
        timestamps = present["timestamps"]
        for each in _of_other_types(timestamps, int, float) or (min(timestamps), max(timestamps)):
            _check_timestamp(each)
        columns.timestamps = [round(each * 1e6) for each in timestamps]
    if "times" in present:
        times = present["times"]
        for each in _of_other_types(times, int) or (min(times), max(times)):
            _check_time(each)
        columns.timestamps = list(times)
    elif "timestamps" not in present:
        columns.timestamps = [int(time.time() * 1e6)] * len(values)
    if "headers" in present:
        for at, row in enumerate(present["headers"]):
            if row is not None:
                sizes[at] += _size_of_headers(row)
        columns.headers = [list(row.items()) if row else [] for row in present["headers"]]
    ids = present.get("ids")
    _check_ids(ids, wants_ids)
    if ids is not None:
        columns.ids = b"".join(ids)
    return columns, sizes


def batches(columns: RecordColumns, sizes: list[int], partition: int | None) -> Iterator[Batch]:
    """Split records into batches that fit a message; `Outbox.append` numbers them."""
    ends = list(accumulate(map(OVERHEAD.__add__, sizes)))
    counts = None
    if columns.headers is not None:
        counts = [0, *accumulate(map(len, columns.headers))]
    start, before = 0, 0
    while start < len(ends):
        fitting = bisect_right(ends, before + BATCH_BYTES, start)
        if counts is not None:
            many = bisect_right(counts, counts[start] + MAX_MESSAGE_HEADERS, start) - 1
            fitting = min(fitting, many)
        end = max(min(fitting, start + BATCH_RECORDS), start + 1)
        cut = columns.pick_runs([slice(start, end)])
        cut.partition = partition
        yield Batch(cut, ends[end - 1] - before)
        start, before = end, ends[end - 1]


def _check_timestamp(timestamp: float) -> None:
    if not isinstance(timestamp, int | float):
        raise TypeError(f"a timestamp is seconds since 1970, not {type(timestamp).__name__}")
    if not FIRST_TIME <= timestamp * 1e6 <= LAST_TIME:
        raise IngestError(
            f"{timestamp!r} is outside of the years 1 to 9999; give seconds since 1970"
        )


def _check_time(micros: int) -> None:
    if not isinstance(micros, int):
        raise TypeError(f"times are whole microseconds since 1970, not {type(micros).__name__}")
    if not FIRST_TIME <= micros <= LAST_TIME:
        raise IngestError(f"{micros} microseconds since 1970 is outside of the years 1 to 9999")


def _size_of_headers(headers: Mapping[str, bytes]) -> int:
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


def _check_ids(ids: Sequence[bytes] | None, wanted: bool) -> None:
    if ids is None:
        check_id(None, wanted)
    elif not wanted or _of_other_types(ids, bytes) or set(map(len, ids)) - {ID_SIZE}:
        for each in ids:
            check_id(each, wanted)


def _of_other_types(column: Sequence[Any], *kinds: type) -> list[Any]:
    """Return the values of other types; checking the set of types first makes that cheap."""
    if set(map(type, column)).issubset(kinds):
        return []
    return [each for each in column if not isinstance(each, kinds)]


def _check_all_bytes(column: Sequence[Any], what: str) -> None:
    for each in _of_other_types(column, bytes):
        raise TypeError(f"{what} is bytes, not {type(each).__name__}")
