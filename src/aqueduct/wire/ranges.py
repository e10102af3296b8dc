"""Sets of integers kept as ranges, and the two encodings of ranges in frames."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from aqueduct.errors import CloseCode, Incomplete, RemoteProtocolError
from aqueduct.wire.primitives import (
    MAX_VARINT,
    decode_varint,
    encode_varbytes,
    encode_varint,
)

Range = tuple[int, int]
"""The integers from the first number up to, not including, the second."""

MAX_RANGE_VARINTS: Final = 8192
"""The most varints that one RANGES field may hold (AQ-RANGE-5)."""

MAX_RANGES_PER_ACK: Final = MAX_RANGE_VARINTS // 2
"""The most ranges that one ACK_RELIABLE may hold: two varints each."""

MAX_RANGES_SIZE: Final = MAX_RANGE_VARINTS * 10
"""No RANGES field within AQ-RANGE-5 is longer: a varint has ten bytes at most."""

_END_OF_NUMBERS: Final = MAX_VARINT + 1


class RangeSet:
    """A set of non-negative integers as sorted, disjoint, half-open ranges.

    One flat list holds start, stop, start, stop…, strictly rising. A number is in the set if the
    count of bounds at or below it is odd: every query is one binary search, and no operation
    iterates over the numbers themselves.
    """

    __slots__ = ("_bounds",)

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._bounds: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Add all numbers from start up to stop."""
        if start >= stop:
            return
        bounds = self._bounds
        if not bounds or start > bounds[-1]:
            bounds.append(start)
            bounds.append(stop)
            return
        if start == bounds[-1]:
            bounds[-1] = stop
            return
        left = bisect_left(bounds, start)
        right = bisect_right(bounds, stop)
        # A bound inside or next to an existing range is merged into it.
        joined: list[int] = []
        if left % 2 == 0:
            joined.append(start)
        if right % 2 == 0:
            joined.append(stop)
        bounds[left:right] = joined

    def add_new(self, start: int, stop: int) -> bool:
        """Add the numbers if none of them is in the set; else change nothing and return False."""
        bounds = self._bounds
        if bounds and start < bounds[-1] and self.intersects(start, stop):
            return False
        self.add(start, stop)
        return True

    def remove_below(self, number: int) -> None:
        """Remove all numbers below ``number``."""
        bounds = self._bounds
        below = bisect_right(bounds, number)
        if below % 2 == 0:
            del bounds[:below]
        else:
            bounds[:below] = [number]

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    def intersects(self, start: int, stop: int) -> bool:
        """Return whether any number from start up to stop is in the set."""
        if start >= stop:
            return False
        bounds = self._bounds
        at = bisect_right(bounds, start)
        return at % 2 == 1 or (at < len(bounds) and bounds[at] < stop)

    def first_missing(self, from_: int = 0) -> int:
        """Return the smallest number, ``from_`` or larger, that is not in the set."""
        bounds = self._bounds
        at = bisect_right(bounds, from_)
        return bounds[at] if at % 2 == 1 else from_

    def intersection(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the ranges of the set within start up to stop."""
        bounds = self._bounds
        at = bisect_right(bounds, start) // 2 * 2
        while at < len(bounds) and bounds[at] < stop:
            piece_start = max(bounds[at], start)
            piece_stop = min(bounds[at + 1], stop)
            if piece_start < piece_stop:
                yield piece_start, piece_stop
            at += 2

    def missing(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the ranges within start up to stop that are not in the set."""
        gap = start
        for piece_start, piece_stop in self.intersection(start, stop):
            if gap < piece_start:
                yield gap, piece_start
            gap = piece_stop
        if gap < stop:
            yield gap, stop

    def ranges(self) -> Iterator[Range]:
        """Yield all ranges, in rising order."""
        bounds = self._bounds
        for at in range(0, len(bounds), 2):
            yield bounds[at], bounds[at + 1]

    @property
    def range_count(self) -> int:
        """The number of ranges that the numbers form."""
        return len(self._bounds) // 2

    @property
    def count(self) -> int:
        """The number of integers in the set."""
        return sum(self._bounds[1::2]) - sum(self._bounds[::2])

    @property
    def max(self) -> int:
        """One more than the largest number in the set; 0 if it is empty."""
        return self._bounds[-1] if self._bounds else 0

    def __bool__(self) -> bool:
        return len(self._bounds) > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._bounds == other._bounds

    def __repr__(self) -> str:
        inside = ", ".join(f"{start}..{stop}" for start, stop in self.ranges())
        return f"RangeSet({inside})"


def encode_ack_ranges(ranges: Iterable[Range]) -> bytes:
    """Encode ACK_RELIABLE's RANGES: gap, length, gap, length… from zero (AQ-RANGE-1)."""
    parts: list[bytes] = []
    reached = 0
    for start, stop in ranges:
        # AQ-RANGE-2: adjacent ranges would be one, with no gap between them.
        if start >= stop or start < reached or (start == reached and parts):
            raise ValueError(f"range {start}..{stop} is empty or not above {reached}")
        parts.append(encode_varint(start - reached))
        parts.append(encode_varint(stop - start))
        reached = stop
    _require_encodable(len(parts), reached)
    return encode_varbytes(b"".join(parts))


def decode_ack_ranges(contents: bytes) -> tuple[Range, ...]:
    """Return the absolute ranges in the contents of ACK_RELIABLE's RANGES."""
    varints = _decode_varints(contents)
    if not varints or len(varints) % 2 != 0:
        raise RemoteProtocolError("AQ-RANGE-1", "RANGES does not hold gaps and lengths in pairs")
    ranges = []
    reached = 0
    for at in range(0, len(varints), 2):
        gap = varints[at]
        length = varints[at + 1]
        if length == 0 or (gap == 0 and at > 0):
            raise RemoteProtocolError("AQ-RANGE-2", "a gap or length in RANGES is zero")
        start = reached + gap
        reached = start + length
        ranges.append((start, reached))
    _check_numbers_exist(reached)
    return tuple(ranges)


def encode_ack_nack_lengths(lengths: Iterable[int]) -> bytes:
    """Encode ACK_NACK_UNRELIABLE's RANGES: ack, nack, ack… lengths (AQ-RANGE-3)."""
    parts: list[bytes] = []
    total = 0
    for length in lengths:
        if length == 0 and parts:
            raise ValueError("only the first length may be zero")
        parts.append(encode_varint(length))
        total += length
    if total == 0:
        raise ValueError("there is no length above zero")
    _require_encodable(len(parts), total)
    return encode_varbytes(b"".join(parts))


def decode_ack_nack_lengths(contents: bytes) -> tuple[int, ...]:
    """Return the lengths in the contents of ACK_NACK_UNRELIABLE's RANGES: ack, nack, ack…"""
    lengths = _decode_varints(contents)
    total = 0
    for at, length in enumerate(lengths):
        if length == 0 and (at > 0 or len(lengths) == 1):
            raise RemoteProtocolError("AQ-RANGE-3", "a length in RANGES is zero")
        total += length
    if total == 0:
        raise RemoteProtocolError("AQ-RANGE-3", "RANGES is empty")
    _check_numbers_exist(total)
    return tuple(lengths)


def _decode_varints(contents: bytes) -> list[int]:
    varints: list[int] = []
    pos = 0
    end = len(contents)
    try:
        while pos < end:
            value, pos = decode_varint(contents, pos, end)
            varints.append(value)
    except Incomplete:
        raise RemoteProtocolError("AQ-BYTES-2", "a varint runs past the end of RANGES") from None
    if len(varints) > MAX_RANGE_VARINTS:
        raise RemoteProtocolError(
            "AQ-RANGE-5",
            f"RANGES holds {len(varints)} varints, the limit is {MAX_RANGE_VARINTS}",
            CloseCode.LIMIT_EXCEEDED,
        )
    return varints


def _check_numbers_exist(stop: int) -> None:
    if stop > _END_OF_NUMBERS:
        raise RemoteProtocolError("AQ-RANGE-4", "RANGES goes beyond the last message number")


def _require_encodable(varints: int, stop: int) -> None:
    if varints == 0 or varints > MAX_RANGE_VARINTS or stop > _END_OF_NUMBERS:
        raise ValueError(f"{varints} varints up to {stop} do not fit one RANGES field")
