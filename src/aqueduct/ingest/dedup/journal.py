"""The journal of jobs: one line for each change, compacted when it is long.

A line has the CRC-32 of its JSON in eight hexadecimal digits, a space, and the JSON: the new state
of one or more jobs by name, or null for a job that was evicted. The first line has the size of the
lines that were written with it at once, so a crash cannot have truncated them. Each further line
was appended durably by itself, so a crash can have damaged only the last one: it is truncated, or
has zero bytes where a page did not reach the disk.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from aqueduct.ingest.dedup.scope import Job
from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.base import TopicStorage
from aqueduct.ingest.storage.checked import read_blob

NAME = "jobs.log"
FORMER = "jobs.json"
"""The blob of earlier versions; it is read, and replaced by the journal with the first change."""
SLACK = 1024 * 1024
"""Bytes by which the journal may exceed twice its base before it is compacted."""

T = TypeVar("T")
_log = logging.getLogger("aqueduct.ingest")


class JournalHeader(msgspec.Struct, frozen=True):
    """The first line."""

    base: int
    """Bytes of the lines that were written together with this one."""
    version: int = 1


class Entry(msgspec.Struct, frozen=True):
    """One change of the journal, applied atomically."""

    jobs: dict[str, Job | None]


class Journal:
    """The blob with the state of all jobs. One thread writes it."""

    def __init__(self, storage: TopicStorage) -> None:
        self._blob = storage.blob(NAME)
        self._former = storage.blob(FORMER)
        self.path = Path(self._blob.location)
        self._size = 0
        """Bytes known to be valid; new lines are appended there."""
        self._base = 0
        """Size after the last compaction."""
        self._must_rewrite = True

    def read(self) -> dict[str, Job]:
        """Return the jobs; raise `CorruptFile` for damage that a crash cannot have caused."""
        data = self._blob.read()
        if data is None:
            return read_blob(self._former, dict[str, Job], "a list of jobs") or {}
        header = self._decode(data, 0, JournalHeader)
        if header is None or header.version != 1:
            raise CorruptFile(self.path, 0, "the first line is not that of a journal of jobs")
        self._base = self._size = data.index(b"\n") + 1
        self._base += header.base
        jobs: dict[str, Job] = {}
        while self._size < len(data):
            entry = self._decode(data, self._size, Entry)
            if entry is None:
                _log.warning(
                    "%s: ignored the last %d bytes, a change that was truncated by a crash",
                    self.path, len(data) - self._size,
                )  # fmt: skip
                break
            for name, job in entry.jobs.items():
                if job is None:
                    jobs.pop(name, None)
                else:
                    jobs[name] = job
            self._size = data.index(b"\n", self._size) + 1
        if self._size < self._base:
            raise CorruptFile(self.path, self._size, "the file is truncated: jobs are missing")
        self._must_rewrite = self._size < len(data)
        return jobs

    def _decode(self, data: bytes, start: int, kind: type[T]) -> T | None:
        """Return the entry of a line; None if it is the last line and a crash truncated it."""
        end = data.find(b"\n", start)
        line = data[start:] if end < 0 else data[start:end]
        if end < 0 or not _is_whole(line):
            if end >= 0 and (end < len(data) - 1 or 0 not in line):
                raise CorruptFile(self.path, start, "the checksum of a job is wrong")
            return None
        try:
            return msgspec.json.decode(line[9:], type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptFile(self.path, start, f"not a journal entry: {error}") from None

    def write(self, changes: Mapping[str, Job | None], jobs: Mapping[str, Job]) -> None:
        """Store changes, after which the state is ``jobs``; raise `IngestError` on failure."""
        line = _line(Entry(dict(changes)))
        if self._must_rewrite or self._size + len(line) > 2 * self._base + SLACK:
            self._rewrite(jobs)
            return
        self._must_rewrite = True  # cleared once the write has succeeded
        self._blob.append(line)
        self._size += len(line)
        self._must_rewrite = False

    def _rewrite(self, jobs: Mapping[str, Job]) -> None:
        lines = b"".join(_line(Entry({name: job})) for name, job in jobs.items())
        data = _line(JournalHeader(len(lines))) + lines
        self._must_rewrite = True
        self._blob.write(data)
        self._former.remove()
        self._size = self._base = len(data)
        self._must_rewrite = False

    def close(self) -> None:
        """Close the blob."""
        self._blob.close()


def _line(what: JournalHeader | Entry) -> bytes:
    body = msgspec.json.encode(what)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _is_whole(line: bytes) -> bool:
    try:
        return line[8:9] == b" " and zlib.crc32(line[9:]) == int(line[:8], 16)
    except ValueError:
        return False
