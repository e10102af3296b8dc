"""A trace: observers add rows, and a thread writes them to Parquet files in a directory.

Recording never waits for the disk. Rows are kept in memory up to a bound; past it, or when a
write fails, rows are dropped and counted; the loss is logged once and recorded in a row.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from aqueduct.observe.trace.batch import ConnectionKey, DroppedRows, RowBatch
from aqueduct.observe.trace.kinds import Kind

if TYPE_CHECKING:
    from aqueduct.observe.trace.files import TraceFile

logger = logging.getLogger("aqueduct.trace")

INTERVAL = 5.0
ROWS_PER_GROUP = 1 << 16
ROWS_PER_FILE = 1 << 20
MAX_ROWS = 1 << 20
_RECORDER: ConnectionKey = ("", "")
_CLOSING_ROUNDS = 2
"""Rounds of writing after a close; the second reports what the first dropped."""


class TraceWriter:
    """Collects the rows of observers, and writes them to files in a thread."""

    def __init__(
        self,
        directory: Path,
        interval: float,
        rows_per_group: int,
        rows_per_file: int,
        max_rows: int,
    ) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        self.recorder = secrets.token_hex(4)
        self.rows_written = 0
        self.rows_dropped = 0
        self.lock = threading.Condition()
        """Held while rows are added to `batch`."""
        self.batch: RowBatch = RowBatch()
        self._interval = interval
        self._rows_per_group = rows_per_group
        self._rows_per_file = rows_per_file
        self._max_rows = max_rows
        self._sealed: deque[RowBatch] = deque()
        self._waiting = 0
        """The weight of the batches that are sealed or being written."""
        self._unreported = 0
        """Dropped rows that no row reports yet."""
        self._warned = False
        self._closing = False
        self._flushes = 0
        self._flushed = 0
        self._sequence = 0
        self._file: TraceFile | None = None
        self._due = time.monotonic() + interval
        """When the current file is completed."""
        self._files = 0
        self._started = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._thread = threading.Thread(
            target=self._run, name=f"aqueduct-trace-{self.recorder}", daemon=True
        )
        self._thread.start()
        _live.add(self)

    def check(self) -> None:
        """Seal the batch if it is full. Call it after adding rows, with the lock held."""
        if self.batch.weight >= self._rows_per_group:
            self._seal()
            self.lock.notify()

    def flush(self) -> None:
        """Wait until all rows so far are in complete files or were dropped."""
        with self.lock:
            self._flushes += 1
            wanted = self._flushes
            self.lock.notify_all()
            while self._flushed < wanted and self._thread.is_alive():
                self.lock.wait(0.1)

    def close(self) -> None:
        """Write the waiting rows and stop the thread. Rows added afterwards are dropped."""
        with self.lock:
            self._closing = True
            self.lock.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # -- private; the caller holds the lock ------------------------------------------------------

    def _seal(self) -> None:
        """Queue the batch for writing and start another, or drop rows if memory is exhausted."""
        batch = self.batch
        if isinstance(batch, DroppedRows):
            self._count_dropped(batch.rows, "the disk is too slow for them")
        elif batch.rows:
            self._sealed.append(batch)
            self._waiting += batch.weight
        self.batch = RowBatch() if self._waiting < self._max_rows else DroppedRows()
        self._report_dropped()

    def _report_dropped(self) -> None:
        if self._unreported and not isinstance(self.batch, DroppedRows):
            now = time.monotonic_ns()
            self.batch.add(now, _RECORDER, int(Kind.ROWS_DROPPED), value=self._unreported)
            self.batch.reported, self._unreported = self._unreported, 0

    def _count_dropped(self, rows: int, reason: object) -> None:
        if not rows:
            return
        self.rows_dropped += rows
        self._unreported += rows
        if not self._warned:
            self._warned = True
            logger.warning(
                "rows of the trace in %s are dropped: %s; its rows_dropped rows say how many",
                self.directory,
                reason,
            )

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        closing_rounds = 0
        while closing_rounds < _CLOSING_ROUNDS:
            with self.lock:
                if not self._sealed and not self._closing and self._flushed == self._flushes:
                    self.lock.wait(max(0.0, self._due - time.monotonic()))
                flushes, closing_rounds = self._flushes, closing_rounds + self._closing
                due = self._closing or flushes != self._flushed or time.monotonic() >= self._due
                if due:
                    self._seal()
                batches = list(self._sealed)
                self._sealed.clear()
            for batch in batches:
                self._write(batch)
                with self.lock:
                    self._waiting -= batch.weight
            if due:
                self._complete_file()
                self._due = time.monotonic() + self._interval
            with self.lock:
                if isinstance(self.batch, DroppedRows):
                    self._seal()  # memory is available again
                self._report_dropped()
                self._flushed = flushes
                self.lock.notify_all()
        with self.lock:
            self.batch = DroppedRows()

    def _write(self, batch: RowBatch) -> None:
        from aqueduct.observe.trace.files import TraceFile
        from aqueduct.observe.trace.table import to_table

        wall_offset = time.time_ns() - time.monotonic_ns()
        try:
            table = to_table(batch, self.recorder, self._sequence, wall_offset)
            if self._file is None:
                self._files += 1
                name = f"aqueduct-{self._started}-{self.recorder}-{self._files:06}.parquet"
                self._file = TraceFile(self.directory / name)
            self._file.write(table)
        except Exception as error:  # noqa: BLE001 -- the connections must not fail with it
            self._discard_file(error, batch)
        else:
            self._sequence += batch.rows
            self._file.reported += batch.reported
            if self._file.rows >= self._rows_per_file:
                self._complete_file()

    def _complete_file(self) -> None:
        file = self._file
        if file is None:
            return
        try:
            file.complete()
        except Exception as error:  # noqa: BLE001 -- as above
            self._discard_file(error)
        else:
            self.rows_written += file.rows
            self._file = None

    def _discard_file(self, error: Exception, batch: RowBatch | None = None) -> None:
        """Drop the rows of the file and the batch; what they reported is reported again."""
        file, self._file = self._file, None
        rows, reported = (0, 0) if batch is None else (batch.rows, batch.reported)
        if file is not None:
            file.discard()
            rows, reported = rows + file.rows, reported + file.reported
        with self.lock:
            self._unreported += reported
            self._count_dropped(rows - (reported > 0), error)

    # -- fork -------------------------------------------------------------------------------------

    def forked(self) -> None:
        """Stop recording in a forked child: the files belong to the parent."""
        self.lock = threading.Condition()
        self.batch = DroppedRows()
        self._sealed.clear()
        self._max_rows = 0
        self._closing = True
        if self._file is not None:
            self._file.detach()
            self._file = None


class Trace:
    """A directory that records connections; pass it as ``trace=`` to `connect` and `serve`.

    Connections of any thread may share a trace. ``interval`` is the longest time, in seconds,
    before a row is in a complete file, and so what a crash can lose; ``max_rows`` bounds the rows
    in memory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        interval: float = INTERVAL,
        rows_per_group: int = ROWS_PER_GROUP,
        rows_per_file: int = ROWS_PER_FILE,
        max_rows: int = MAX_ROWS,
    ) -> None:
        _require_arrow()
        self.directory = Path(directory)
        self._writer = TraceWriter(
            self.directory, interval, rows_per_group, rows_per_file, max_rows
        )

    @property
    def rows_written(self) -> int:
        """The number of rows in complete files."""
        return self._writer.rows_written

    @property
    def rows_dropped(self) -> int:
        """The number of rows that were dropped."""
        return self._writer.rows_dropped

    def flush(self) -> None:
        """Wait until everything recorded so far is in complete files or was dropped."""
        self._writer.flush()

    def close(self) -> None:
        """Write the waiting rows and stop recording. Rows added afterwards are dropped."""
        self._writer.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Trace {self._writer.recorder} to {str(self.directory)!r}>"


def _require_arrow() -> None:
    """Import Arrow, which only traces need; raise ImportError with a hint if it is missing."""
    try:
        from aqueduct.observe.trace import (
            files,  # noqa: F401
            table,  # noqa: F401
        )
    except ImportError as error:
        raise ImportError(
            f"a trace needs pyarrow 21 or newer ({error}); pip install 'aqueduct-channels[trace]'"
        ) from error


_live: weakref.WeakSet[TraceWriter] = weakref.WeakSet()
_shared: dict[Path, tuple[Trace, int]] = {}
_shared_lock = threading.Lock()


def acquire(trace: Trace | str | os.PathLike[str]) -> Trace:
    """Return the trace for a ``trace=`` argument; one directory has one trace per process.

    The caller owns a `Trace` that it made. A trace that is named by its directory is closed by the
    last `release`.
    """
    if isinstance(trace, Trace):
        return trace
    path = Path(trace).absolute()
    with _shared_lock:
        found, users = _shared.get(path, (None, 0))
        if found is None:
            found = Trace(path)
        _shared[path] = (found, users + 1)
        return found


def release(trace: Trace) -> None:
    """Release a trace from `acquire`; the last user writes its rows and waits for that."""
    with _shared_lock:
        found, users = _shared.get(trace.directory, (None, 0))
        if found is not trace:
            return
        if users > 1:
            _shared[trace.directory] = (trace, users - 1)
            return
        del _shared[trace.directory]
    trace.close()


def _close_all() -> None:
    for writer in list(_live):
        with contextlib.suppress(Exception):
            writer.close()


def _after_fork() -> None:
    global _shared_lock  # noqa: PLW0603 -- another thread may have held it
    _shared_lock = threading.Lock()
    _shared.clear()
    for writer in list(_live):
        writer.forked()
    _live.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
