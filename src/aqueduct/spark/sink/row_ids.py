"""Ids of rows: what is the same row when a task is run again, in whatever order its rows come.

An id is a hash of the row's content, 16 bytes, and a number of 4: how many equal rows came before
it in the same attempt. So two equal rows have two ids, and an attempt that has the same rows as one
before has the same ids.

What is hashed is ``[value, key, headers, time]`` as MessagePack, each in the shortest form there
is, with nothing for what a row lacks: a column that is empty and no column at all are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import repeat

import msgspec

HASH_SIZE = 16
_FIRST = bytes(4)
_encode = msgspec.msgpack.Encoder().encode

Headers = Sequence[tuple[str, bytes]]


def content_hashes(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    times: Sequence[int | None] | None = None,
) -> list[bytes]:
    """Of each row a hash of all that is stored of it; times are microseconds since 1970."""
    rows = zip(
        values,
        repeat(None) if keys is None else keys,
        repeat(()) if headers is None else headers,
        repeat(None) if times is None else times,
        strict=False,  # what is repeated has no end
    )
    return [blake2b(_encode(row), digest_size=HASH_SIZE).digest() for row in rows]


def own_ids(chosen: Iterable[bytes | int]) -> list[bytes]:
    """Ids made of what the user says makes rows the same: text as bytes, or whole numbers."""
    return [blake2b(_encode(each), digest_size=HASH_SIZE).digest() + _FIRST for each in chosen]


class Occurrences:
    """Counts equal rows of one attempt, which have to be told from each other."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._repeated: dict[bytes, int] = {}

    def ids(self, hashes: Sequence[bytes]) -> list[bytes]:
        """The ids of the next rows."""
        # Most rows are like no other, and sets find that out faster than a loop.
        if len(set(hashes)) == len(hashes) and self._seen.isdisjoint(hashes):
            self._seen.update(hashes)
            return [each + _FIRST for each in hashes]
        return [each + self._number(each) for each in hashes]

    def _number(self, each: bytes) -> bytes:
        if each not in self._seen:
            self._seen.add(each)
            return _FIRST
        number = self._repeated[each] = self._repeated.get(each, 0) + 1
        return number.to_bytes(4, "big")
