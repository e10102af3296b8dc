"""What `connect` and `serve` return: something that opens when it is awaited or entered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Opening(Generic[T]):
    """Awaited, it gives what it opens; how a block that entered it ends is for a subclass."""

    def __init__(self, open_: Callable[[], Awaitable[T]]) -> None:
        self._open = open_
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened
