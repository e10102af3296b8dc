"""Row ids for deduplication: a retried task assigns the same ids, in any order of its rows.

An id has 20 bytes: a hash of the row's content (16), and the number of equal rows before it in the
same attempt (4). So two equal rows have two ids, and an attempt with the same rows as an earlier
one has the same ids.

The hashed content is ``[value, key, headers, time]`` as MessagePack in its shortest encoding. A
missing column and an empty one hash alike.
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
    """Return a hash of the content of each row; times are microseconds since 1970."""
    rows = zip(
        values,
        repeat(None) if keys is None else keys,
        repeat(()) if headers is None else headers,
        repeat(None) if times is None else times,
        strict=False,  # `repeat` is infinite
    )
    return [blake2b(_encode(row), digest_size=HASH_SIZE).digest() for row in rows]


def user_ids(values: Iterable[bytes | int]) -> list[bytes]:
    """Return ids for the values of option idColumn: text as bytes, or integers."""
    return [blake2b(_encode(each), digest_size=HASH_SIZE).digest() + _FIRST for each in values]


class Occurrences:
    """Numbers the equal rows of one attempt."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._repeated: dict[bytes, int] = {}

    def ids(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Return the ids of the next rows."""
        # Fast path: most rows are unique, and set operations find that out faster than a loop.
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
