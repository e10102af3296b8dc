"""The claim of a server to its directory: a file lock, which ends with the process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.storage.base import Fenced
from aqueduct.ingest.storage.local.files import make_directory

LOCK = ".lock"
"""The file that a server locks exclusively; a reader of the directory locks it shared."""
_TIMEOUT = 1.0
"""Seconds to wait for the lock: a reader of the directory holds it for a moment."""


def claim(directory: Path) -> int:
    """Lock a directory, which is created if need be; return the handle to close.

    Raises `Fenced` if another process has the lock, `IngestError` if the directory cannot be used.
    """
    try:
        make_directory(directory)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise IngestError(
            f"cannot store anything in {directory}: {error.strerror}; give a directory that can "
            "be written"
        ) from None
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < deadline:
                time.sleep(_TIMEOUT / 100)
                continue
            os.close(lock)
            raise Fenced(f"another server has {directory}; a directory is for one") from None
        return lock


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory."""
    lock = claim(directory)
    try:
        yield
    finally:
        os.close(lock)


def is_claimed(directory: Path) -> bool:
    """Return whether a server has locked the directory."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
