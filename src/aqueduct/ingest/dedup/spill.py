"""Row ids of a step that exceed the memory limit, in a temporary file until the step ends."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aqueduct.ingest.dedup.ledger import MemoryIds
from aqueduct.ingest.errors import IngestError

NAME = ".spill"
"""The directory of spill files, in the server's directory."""
CACHE = 8 * 1024
"""KiB of a file that SQLite caches in memory."""
_ASKED = 900
"""Ids in one statement: every build of SQLite accepts 999 parameters."""
_READ = 4_096

_TABLES = """
    CREATE TABLE sent (bucket INTEGER, id BLOB, call INTEGER, PRIMARY KEY (bucket, id))
        WITHOUT ROWID;
    CREATE TABLE credits (key BLOB PRIMARY KEY, rows INTEGER) WITHOUT ROWID;
"""


_INSERT = "INSERT INTO sent VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


class SpillFault(IngestError):
    """The spill file could not be written or read; its ids are lost."""


class SpilledIds:
    """Row ids in an unlinked file, which the operating system removes with the process.

    Nothing is synced, and there is no journal: after an error the object must not be used again.
    Not thread-safe.
    """

    def __init__(self, directory: Path, ids: MemoryIds | None = None) -> None:
        """Create the file, and move the given ids into it; free each bucket once it is written."""
        with _faults():
            directory.mkdir(mode=0o700, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix="ids-", dir=directory)
            os.close(handle)
            try:
                database = sqlite3.connect(name, isolation_level=None, check_same_thread=False)
                weakref.finalize(self, database.close)
                for setting in (
                    "journal_mode = OFF",
                    "synchronous = OFF",
                    "locking_mode = EXCLUSIVE",
                    "temp_store = MEMORY",
                    f"cache_size = -{CACHE}",
                ):
                    database.execute(f"PRAGMA {setting}")
                database.executescript(_TABLES)
                # Never committed: pages go to the file when the cache is full.
                database.execute("BEGIN EXCLUSIVE")
            finally:
                os.unlink(name)
        self._database = database
        self._calls = 0
        if ids is not None:
            while ids.buckets:
                bucket, known = ids.buckets.popitem()
                self._insert(bucket, sorted(known))
                del known
            credits = ids.credits
            with _faults():
                database.executemany(
                    "INSERT INTO credits VALUES (?, ?)",
                    ((key, credits[key]) for key in sorted(credits)),
                )

    @property
    def size(self) -> int:
        """The number of ids and hashes in memory: always 0."""
        return 0

    def add(self, bucket: int, ids: Sequence[bytes]) -> tuple[Iterable[bytes], int]:
        """Add ids; return the new ones and their number, without duplicates."""
        # Sorted, so that neighbours are in the same pages.
        wanted = sorted(set(ids))
        added = self._insert(bucket, wanted)
        if added == len(wanted):
            return wanted, added
        query = "SELECT id FROM sent WHERE bucket = ? AND call = ? AND id IN"
        return [row_id for (row_id,) in self._found(query, wanted, bucket, self._calls)], added

    def of(self, bucket: int) -> Iterator[Sequence[bytes]]:
        """Yield the ids of a bucket in batches."""
        with _faults():
            rows = self._database.execute("SELECT id FROM sent WHERE bucket = ?", (bucket,))
            while ids := [row_id for (row_id,) in rows.fetchmany(_READ)]:
                yield ids

    def discard(self, bucket: int) -> None:
        """Remove all ids of a bucket."""
        with _faults():
            self._database.execute("DELETE FROM sent WHERE bucket = ?", (bucket,))

    def credit(self, keys: Iterable[bytes]) -> None:
        """Count stored rows that this run has not sent."""
        with _faults():
            self._database.executemany(
                "INSERT INTO credits VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET rows = rows + 1",
                ((key,) for key in sorted(keys)),
            )

    def claim(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each key whether a credited row was left; use it up if so."""
        asked = sorted(set(keys))
        left = dict(self._found("SELECT key, rows FROM credits WHERE key IN", asked))
        before = dict(left)
        claimed = []
        for key in keys:
            rows = left.get(key, 0)
            claimed.append(rows > 0)
            if rows:
                left[key] = rows - 1
        with _faults():
            self._database.executemany(
                "DELETE FROM credits WHERE key = ?",
                ((key,) for key, rows in left.items() if not rows),
            )
            self._database.executemany(
                "UPDATE credits SET rows = ? WHERE key = ?",
                ((rows, key) for key, rows in left.items() if 0 < rows < before[key]),
            )
        return claimed

    def _insert(self, bucket: int, ids: Iterable[bytes]) -> int:
        """Insert the new ids, marked with the number of the call; return their number."""
        self._calls += 1
        with _faults():
            rows = ((bucket, each, self._calls) for each in ids)
            return self._database.executemany(_INSERT, rows).rowcount

    def _found(self, query: str, wanted: Sequence[bytes], *first: object) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        with _faults():
            for start in range(0, len(wanted), _ASKED):
                some = wanted[start : start + _ASKED]
                marks = ",".join("?" * len(some))
                found += self._database.execute(f"{query} ({marks})", (*first, *some))
        return found


def clear(directory: Path) -> None:
    """Remove files of a process that was killed before it could unlink them."""
    if directory.is_dir():
        for path in directory.iterdir():
            path.unlink(missing_ok=True)


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise SpillFault(
            f"row ids of a step could not be spilled to disk: {error}; free disk space on the "
            "server, and run the step again"
        ) from error
