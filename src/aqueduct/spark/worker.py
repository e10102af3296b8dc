"""State of Spark's Python workers, which live long, are forked, and run many tasks each."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache
from typing import Generic, TypeVar

from aqueduct.errors import AqueductError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_DAEMON = "pyspark.daemon"
"""The program that Spark forks its workers from."""


class ConnectionCache(Generic[K, T]):
    """Keeps one connection per key for all tasks of a process; thread-safe."""

    def __init__(self, connect: Callable[[K], T], close: Callable[[T], None]) -> None:
        self._connect = connect
        self._close = close
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Start empty; a forked child must not use connections of its parent."""
        self._lock = threading.Lock()
        self._connections: dict[K, T] = {}

    def get(self, key: K) -> T:
        """Return the cached connection, or a new one."""
        with self._lock:
            if key not in self._connections:
                self._connections[key] = self._connect(key)
            return self._connections[key]

    def drop(self, key: K) -> None:
        """Close the cached connection; the next `get` opens a new one."""
        with self._lock:
            connection = self._connections.pop(key, None)
        if connection is not None:
            with suppress(AqueductError):  # a broken connection may fail to close
                self._close(connection)


@cache
def freeze_heap() -> None:
    """Exclude all imported objects from garbage collection, if this process is a worker.

    Spark collects garbage after each task. The modules of pyspark, pyarrow and this package hold a
    hundred thousand permanent objects, which cost 40 ms per collection.
    """
    if is_worker():
        gc.collect()
        gc.freeze()


def is_worker() -> bool:
    """Return whether this process is a Python worker of Spark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
