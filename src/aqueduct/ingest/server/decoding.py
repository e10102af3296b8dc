"""Decode the records of a producer's message, after computing their memory cost.

A message of 4 MB can contain a million headers of 4 bytes each, and each becomes objects of more
than 100 bytes. The server therefore computes the memory cost of a message before it creates those
objects, and keeps the message undecoded until there is room for it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from aqueduct.ingest.errors import RefusedRecords
from aqueduct.ingest.protocol import MAX_MESSAGE_HEADERS, MAX_RECORDS
from aqueduct.ingest.records import Headers, RecordColumns

RECORD_OVERHEAD = 64
"""Bytes of memory for a record, besides its contents."""
HEADER_OVERHEAD = 128
"""Bytes of memory for a header: a tuple of two objects."""
_LEAST_HEADER = 4
"""The smallest encoded header: an array of two, an empty name, and an empty value of two bytes."""
_FEW = MAX_MESSAGE_HEADERS
"""Below this number of headers an upper bound from the size is enough; no exact count is needed."""


class _Outline(RecordColumns):
    """`RecordColumns` whose headers are not decoded yet."""

    headers: msgspec.Raw = msgspec.Raw(b"\xc0")  # type: ignore[assignment]


_COLUMN = msgspec.Meta(max_length=MAX_RECORDS)
_outline = msgspec.msgpack.Decoder(_Outline).decode
_rows = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], _COLUMN]).decode
_headers = msgspec.msgpack.Decoder(Annotated[list[Headers], _COLUMN]).decode


class Undecoded:
    """A message whose headers are not decoded yet, and its memory cost once they are."""

    __slots__ = ("_base", "_outline", "size")

    def __init__(self, payload: bytes) -> None:
        """Raise `RefusedRecords` for a malformed message, or one with too many records."""
        try:
            outline = self._outline = _outline(payload)
            headers = 0 if _is_none(outline.headers) else _count_at_most(outline.headers)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _no_records(error) from None
        if headers > MAX_MESSAGE_HEADERS:
            raise RefusedRecords(
                f"the message has {headers:,} headers, more than {MAX_MESSAGE_HEADERS:,}: send "
                "fewer records in one message"
            )
        self._base = len(payload) + RECORD_OVERHEAD * len(outline.values)
        self.size = self._base + HEADER_OVERHEAD * headers
        """Bytes of memory for the message: an upper bound, exact once it is decoded."""

    def records(self) -> RecordColumns:
        """Decode the headers; raise `RefusedRecords` if they are malformed."""
        outline = self._outline
        try:
            headers = None if _is_none(outline.headers) else _headers(outline.headers)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _no_records(error) from None
        if headers is not None:
            self.size = self._base + HEADER_OVERHEAD * sum(map(len, headers))
        columns = RecordColumns(*msgspec.structs.astuple(outline))
        columns.headers = headers
        return columns


def _no_records(error: Exception) -> RefusedRecords:
    return RefusedRecords(f"the message is not a valid message of records: {error}")


def _is_none(column: msgspec.Raw) -> bool:
    return memoryview(column)[0] == 0xC0


def _count_at_most(column: msgspec.Raw) -> int:
    """Return an upper bound on the headers of all records; exact if they may exceed the limit."""
    count = memoryview(column).nbytes // _LEAST_HEADER
    if count <= _FEW:
        return count
    return sum(map(_length, _rows(column)))


def _length(row: msgspec.Raw) -> int:
    """Return the announced length of a msgpack array; 0 for any other value."""
    start = bytes(memoryview(row)[:5])
    if start[0] & 0xF0 == 0x90:
        return start[0] & 0x0F
    if start[0] == 0xDC:
        return int.from_bytes(start[1:3])
    return int.from_bytes(start[1:5]) if start[0] == 0xDD else 0
