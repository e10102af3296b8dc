"""A trace: taps give it rows, a thread of its own writes them to Parquet files in a directory.

Recording never waits for the disk. Rows are kept in memory up to a bound; past it, or when the disk
refuses them, they are dropped, counted, and the loss is said once in the log and in a row.
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

from aqueduct.observe.trace.batch import Batch, Connection, Waste
from aqueduct.observe.trace.kinds import Kind

if TYPE_CHECKING:
    from aqueduct.observe.trace.files import TraceFile

logger = logging.getLogger("aqueduct.observe.trace")

INTERVAL = 5.0
ROWS_PER_GROUP = 1 << 16
ROWS_PER_FILE = 1 << 20
MAX_ROWS = 1 << 20
_RECORDER: Connection = ("", "")
_GOODBYES = 2
"""Rounds of writing after a close: the second tells what the first had to drop."""


class Trace:
    """Where endpoints record what they did; give it as ``trace=`` to `connect` and `serve`.

    One trace may serve many connections, of any thread. ``interval`` is the most seconds a row
    waits before it is in a complete file, and so what a crash can lose; ``max_rows`` bounds what
    waits in memory.
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
        _need_arrow()
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        self.recorder = secrets.token_hex(4)
        self.rows_written = 0
        self.rows_dropped = 0
        self.lock = threading.Condition()
        """Held while rows are added to `batch`."""
        self.batch: Batch = Batch()
        self._interval = interval
        self._rows_per_group = rows_per_group
        self._rows_per_file = rows_per_file
        self._max_rows = max_rows
        self._sealed: deque[Batch] = deque()
        self._waiting = 0
        """Weight of what is sealed, and of what is being written."""
        self._unsaid = 0
        """Dropped rows that no row tells of yet."""
        self._warned = False
        self._closing = False
        self._flushes = 0
        self._flushed = 0
        self._sequence = 0
        self._file: TraceFile | None = None
        self._due = time.monotonic() + interval
        """When what there is goes into a complete file."""
        self._files = 0
        self._started = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._thread = threading.Thread(
            target=self._run, name=f"aqueduct-trace-{self.recorder}", daemon=True
        )
        self._thread.start()
        _live.add(self)

    # -- recording --------------------------------------------------------------------------------

    def check(self) -> None:
        """After rows were added, with the lock still held: pass a full batch on."""
        if self.batch.weight >= self._rows_per_group:
            self._seal()
            self.lock.notify()

    # -- for people -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until everything recorded so far is in complete files, or was dropped."""
        with self.lock:
            self._flushes += 1
            wanted = self._flushes
            self.lock.notify_all()
            while self._flushed < wanted and self._thread.is_alive():
                self.lock.wait(0.1)

    def close(self) -> None:
        """Write what waits, and stop. What is recorded afterwards is dropped."""
        with self.lock:
            self._closing = True
            self.lock.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

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
        return f"<Trace {self.recorder} to {str(self.directory)!r}>"

    # -- inside, with the lock held ---------------------------------------------------------------

    def _seal(self) -> None:
        """Put the batch in line to be written, and begin another, if there is room for one."""
        batch = self.batch
        if isinstance(batch, Waste):
            self._count_dropped(batch.rows, "the disk is too slow for them")
        elif batch.rows:
            self._sealed.append(batch)
            self._waiting += batch.weight
        self.batch = Batch() if self._waiting < self._max_rows else Waste()
        self._say_dropped()

    def _say_dropped(self) -> None:
        if self._unsaid and not isinstance(self.batch, Waste):
            now = time.monotonic_ns()
            self.batch.add(now, _RECORDER, int(Kind.ROWS_DROPPED), value=self._unsaid)
            self.batch.told, self._unsaid = self._unsaid, 0

    def _count_dropped(self, rows: int, reason: object) -> None:
        if not rows:
            return
        self.rows_dropped += rows
        self._unsaid += rows
        if not self._warned:
            self._warned = True
            logger.warning(
                "rows of the trace in %s are dropped: %s; its rows_dropped rows say how many",
                self.directory,
                reason,
            )

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        goodbyes = 0
        while goodbyes < _GOODBYES:
            with self.lock:
                if not self._sealed and not self._closing and self._flushed == self._flushes:
                    self.lock.wait(max(0.0, self._due - time.monotonic()))
                flushes, goodbyes = self._flushes, goodbyes + self._closing
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
                if isinstance(self.batch, Waste):
                    self._seal()  # there is room again
                self._say_dropped()
                self._flushed = flushes
                self.lock.notify_all()
        with self.lock:
            self.batch = Waste()

    def _write(self, batch: Batch) -> None:
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
        except Exception as error:  # noqa: BLE001 -- a trace that fails must not fail who is traced
            self._give_up_file(error, batch)
        else:
            self._sequence += batch.rows
            self._file.told += batch.told
            if self._file.rows >= self._rows_per_file:
                self._complete_file()

    def _complete_file(self) -> None:
        file = self._file
        if file is None:
            return
        try:
            file.complete()
        except Exception as error:  # noqa: BLE001 -- as above
            self._give_up_file(error)
        else:
            self.rows_written += file.rows
            self._file = None

    def _give_up_file(self, error: Exception, batch: Batch | None = None) -> None:
        """What is in the file and the batch is lost, and so is what they told of earlier losses."""
        file, self._file = self._file, None
        rows, told = (0, 0) if batch is None else (batch.rows, batch.told)
        if file is not None:
            file.discard()
            rows, told = rows + file.rows, told + file.told
        with self.lock:
            self._unsaid += told
            self._count_dropped(rows - (told > 0), error)

    # -- fork -------------------------------------------------------------------------------------

    def forked(self) -> None:
        """This is a child process: the files are the parent's."""
        self.lock = threading.Condition()
        self.batch = Waste()
        self._sealed.clear()
        self._max_rows = 0
        self._closing = True
        if self._file is not None:
            self._file.detach()
            self._file = None


def _need_arrow() -> None:
    """Arrow is large: only who traces pays for it, and hears here if it is missing."""
    try:
        from aqueduct.observe.trace import (
            files,  # noqa: F401
            table,  # noqa: F401
        )
    except ImportError as error:
        raise ImportError(
            f"a trace needs pyarrow 21 or newer ({error}); pip install 'aqueduct-channels[trace]'"
        ) from error


_live: weakref.WeakSet[Trace] = weakref.WeakSet()
_shared: dict[Path, tuple[Trace, int]] = {}
_shared_lock = threading.Lock()


def acquire(trace: Trace | str | os.PathLike[str]) -> Trace:
    """The trace for what was given as ``trace=``; those of one directory are one.

    A `Trace` belongs to who made it. One that was named by its directory is closed by the last
    `release`.
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
    """What `acquire` gave is no longer needed; writes and waits if nobody else needs it."""
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
    for trace in list(_live):
        with contextlib.suppress(Exception):
            trace.close()


def _after_fork() -> None:
    global _shared_lock  # noqa: PLW0603 -- another thread may have held it
    _shared_lock = threading.Lock()
    _shared.clear()
    for trace in list(_live):
        trace.forked()
    _live.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
