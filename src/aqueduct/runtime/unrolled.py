"""Recursion turned into a loop, where a peer or an application chooses the depth."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Unrolled(Generic[T]):
    """Calls a function for each item, one after the other.

    The function may add more items instead of recursing, so that a chain of channels in channels
    does not exhaust the stack.
    """

    __slots__ = ("_function", "_is_busy", "_items")

    def __init__(self, function: Callable[[T], None]) -> None:
        self._function = function
        self._items: deque[T] = deque()
        self._is_busy = False

    def add(self, item: T) -> None:
        """Process an item, now or after those that are being processed."""
        self._items.append(item)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._items:
                self._function(self._items.popleft())
        finally:
            self._is_busy = False
