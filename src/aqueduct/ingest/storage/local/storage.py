"""Topics in the directory of a server, each in a subdirectory of its own."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aqueduct.ingest.errors import IngestError, RefusedRecords
from aqueduct.ingest.identity import History
from aqueduct.ingest.storage.base import check_name
from aqueduct.ingest.storage.local.file_modes import DIRECTORY_MODE, check_mode, settle_modes
from aqueduct.ingest.storage.local.lock import claim, is_claimed
from aqueduct.ingest.storage.local.topic_storage import (
    METADATA,
    LocalTopicStorage,
    create_topic,
    is_unfinished,
    read_history,
)

_log = logging.getLogger("aqueduct.ingest")
_SYNC_THREADS = 8
"""Partitions that are synced in parallel."""


class LocalStorage:
    """Implements `Storage` with files. The directory belongs to one server at a time."""

    def __init__(
        self, directory: Path, *, mode: int | None = None, read_only: bool = False
    ) -> None:
        """Claim the directory; raise `Fenced` if another server has it.

        ``mode`` is the mode of topic directories, new and existing. Without it, new ones get
        `DIRECTORY_MODE`, and existing ones lose all permissions beyond it. With ``read_only``,
        another server may have the directory, and nothing is changed.
        """
        self._mode = DIRECTORY_MODE if mode is None else check_mode(mode)
        self._has_mode = mode is not None
        self.directory = directory
        self._read_only = read_only
        self._lock = None if read_only else claim(directory)
        self._sync_threads: ThreadPoolExecutor | None = None
        if not read_only:
            self._sync_threads = ThreadPoolExecutor(
                _SYNC_THREADS, thread_name_prefix="aqueduct-sync"
            )

    @property
    def location(self) -> str:
        """The path of the directory."""
        return str(self.directory)

    def names(self) -> list[str]:
        """Return the names of all topics; ignore those whose creation a crash interrupted."""
        if self._read_only:
            return sorted(path.parent.name for path in self.directory.glob(f"*/{METADATA}"))
        return [path.name for path in sorted(self.directory.iterdir()) if self._is_topic(path)]

    def _is_topic(self, path: Path) -> bool:
        if path.name.startswith(".") or not path.is_dir():
            return False
        try:
            check_name(path.name)
        except RefusedRecords:
            _log.warning("%s is not a topic, and is left alone", path)
            return False
        return not is_unfinished(path)

    def create(self, name: str, partitions: int, history: History) -> LocalTopicStorage:
        """Create a topic."""
        path = self.directory / name
        try:
            create_topic(path, partitions, history, self._mode if self._has_mode else None)
            return LocalTopicStorage(path, sync_threads=self._sync_threads)
        except OSError as error:
            raise IngestError(
                f"topic {name} could not be made in {self.directory}: {error.strerror}"
            ) from None

    def open(self, name: str) -> LocalTopicStorage:
        """Open and recover a topic; if read-only, as far as its server has synced it."""
        path = self.directory / name
        try:
            if self._read_only:
                return self._open_read_only(path)
            settle_modes(path, self._mode, exact=self._has_mode)
            return LocalTopicStorage(path, sync_threads=self._sync_threads)
        except OSError as error:
            raise IngestError(str(error)) from error

    def _open_read_only(self, path: Path) -> LocalTopicStorage:
        # Look for a server first: if it stops in between, its last group is left out needlessly.
        has_server = is_claimed(self.directory)
        topic = LocalTopicStorage(path, read_only=True)
        if has_server and not topic.fault:
            topic.leave_last_group()
        return topic

    def history(self, name: str) -> History:
        """Return the identity of a topic without opening it."""
        return read_history(self.directory / name)

    def free_bytes(self) -> int:
        """Return the free space of the disk."""
        try:
            found = os.statvfs(self.directory)
        except OSError as error:
            raise IngestError(f"{self.directory} is not there: {error.strerror}") from None
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Unlock the directory."""
        if self._sync_threads is not None:
            self._sync_threads.shutdown()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
