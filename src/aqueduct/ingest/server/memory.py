"""Return free memory to the operating system; allocators keep it otherwise.

Rows are read in blocks of megabytes. After a burst of readers most of that memory is free, but the
process would stay as large as it ever was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pyarrow as pa

MIN_READ = 32 * 1024 * 1024
"""Bytes read since the last call that make another one worth its cost."""


def _find_trim() -> Callable[[int], int] | None:
    """Return ``malloc_trim`` of glibc; None where the C library has none."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim


_trim = _find_trim()


def release_free_memory() -> None:
    """Release free memory of Arrow and of malloc. Call it in a thread: it takes milliseconds."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
