"""Headers: an ordered multimap of byte strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import overload

from aqueduct.wire.primitives import HeaderPairs

Text = str | bytes
HeadersLike = Mapping[str, Text] | Iterable[tuple[Text, Text]]
"""Types accepted wherever a caller passes headers."""


class Headers:
    """An immutable sequence of (name, value) pairs; `get`, `all` and `in` take a name.

    Names are str or bytes. This is not a `Sequence`, because type checkers would then reject a name
    before `in`.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: HeaderPairs = ()) -> None:
        self.pairs = pairs

    @overload
    def __getitem__(self, index: int) -> tuple[bytes, bytes]: ...
    @overload
    def __getitem__(self, index: slice) -> Headers: ...
    def __getitem__(self, index: int | slice) -> tuple[bytes, bytes] | Headers:
        if isinstance(index, slice):
            return Headers(self.pairs[index])
        return self.pairs[index]

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self.pairs)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str | bytes):
            return self.get(name) is not None
        return name in self.pairs

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self.pairs == other.pairs
        return isinstance(other, tuple) and self.pairs == other

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        return f"Headers({list(self.pairs)!r})"

    def get(self, name: Text, default: bytes | None = None) -> bytes | None:
        """Return the first value of a name, or the default."""
        wanted = _bytes(name)
        return next((value for key, value in self.pairs if key == wanted), default)

    def text(self, name: Text, default: str | None = None) -> str | None:
        """Return the first value of a name decoded as UTF-8, or the default."""
        value = self.get(name)
        return default if value is None else value.decode("utf-8", "replace")

    def all(self, name: Text) -> list[bytes]:
        """Return all values of a name, in order."""
        wanted = _bytes(name)
        return [value for key, value in self.pairs if key == wanted]


def to_pairs(headers: HeadersLike | None) -> HeaderPairs:
    """Return headers as pairs of bytes; raises `TypeError` if one is neither str nor bytes."""
    if not headers:
        return ()
    items = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((_bytes(name), _bytes(value)) for name, value in items)


def _bytes(text: Text) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    raise TypeError(f"headers are str or bytes, not {type(text).__name__}")
