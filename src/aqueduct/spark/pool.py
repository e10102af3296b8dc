"""Connections that a process keeps: Spark uses its Python workers again, and so they use these."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from aqueduct.errors import AqueductError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Pool(Generic[K, T]):
    """One connection for each of what somebody connects to; for any thread."""

    def __init__(self, make: Callable[[K], T], end: Callable[[T], None]) -> None:
        self._make = make
        self._end = end
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Leave connections to the process that made them: this one is a fork of it."""
        self._lock = threading.Lock()
        self._kept: dict[K, T] = {}

    def get(self, key: K) -> T:
        """The connection that is kept, or a new one."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._make(key)
            return self._kept[key]

    def drop(self, key: K) -> None:
        """Have the next one who asks get a new connection."""
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is not None:
            with suppress(AqueductError):  # it is gone already, which is why nobody wants it
                self._end(kept)
