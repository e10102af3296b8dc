"""Reads and checks the files of a partition when it is opened; changes nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.local.manifest import Manifest, Segment, read_manifest
from aqueduct.ingest.storage.local.segments import leftovers
from aqueduct.ingest.storage.local.wal import Block, Scan

_log = logging.getLogger("aqueduct.ingest")
_ATTEMPTS = 8
"""Attempts to read a directory that another process changes, before it counts as damaged."""
_LARGE = 256 * 1024 * 1024
"""Bytes of a log file that take seconds to scan."""


@dataclass
class LogFile:
    """A file of the log, and the blocks in it."""

    path: Path
    blocks: list[Block] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return self.blocks[-1].position + self.blocks[-1].size if self.blocks else 0


@dataclass(frozen=True)
class TornTail:
    """Bytes at the end of the last log file that are not a whole block."""

    path: Path
    position: int
    size: int
    reason: str


@dataclass
class PartitionFiles:
    """The files of a partition."""

    manifest: Manifest
    logs: list[LogFile] = field(default_factory=list)
    """Log files with rows that are in no segment."""
    torn: TornTail | None = None
    spare: list[Path] = field(default_factory=list)
    """Files whose contents are also elsewhere, or do not count."""


def read_shared_files(directory: Path, number: int) -> PartitionFiles:
    """Read the files of a partition that another process may change at the same time.

    A log that becomes a segment meanwhile is in neither the manifest nor the directory.
    """
    for _ in range(_ATTEMPTS):
        before = read_manifest(directory)
        try:
            found = read_files(directory, number, is_exclusive=False)
            if read_manifest(directory) == found.manifest:
                return found
        except (CorruptFile, FileNotFoundError):
            if read_manifest(directory) == before:
                break
    return read_files(directory, number, is_exclusive=False)


def read_files(directory: Path, number: int, *, is_exclusive: bool = True) -> PartitionFiles:
    """Read the files of a partition; raise `CorruptFile` for damage that no crash can cause."""
    found = PartitionFiles(read_manifest(directory))
    if is_exclusive:
        found.spare = [*_unlisted(directory, found.manifest), *leftovers(directory)]
    for segment in found.manifest.segments:
        _check_size(directory, segment)
    end = found.manifest.next
    logs = sorted(directory.glob("*.wal"))
    for path in logs:
        blocks = _blocks(path, found, is_last=path == logs[-1])
        if not blocks or blocks[-1].end <= found.manifest.next:
            found.spare.append(path)
            continue
        for block in blocks:
            _check_follows(path, block, number, end)
            end = block.end
        found.logs.append(LogFile(path, blocks))
    return found


def _unlisted(directory: Path, manifest: Manifest) -> list[Path]:
    """Return segments that the manifest does not list; raise if one has rows of its own."""
    known = {segment.name for segment in manifest.segments}
    unlisted = [path for path in directory.glob("*.parquet") if path.name not in known]
    for path in unlisted:
        first, _, last = path.stem.partition("-")
        was_dropped = last.isdecimal() and int(last) < manifest.first
        if not was_dropped and not (directory / f"{first}.wal").exists():
            reason = (
                "no manifest names this segment, and the log that it was made from does not exist"
            )
            raise CorruptFile(path, 0, reason)
    return unlisted


def _check_size(directory: Path, segment: Segment) -> None:
    path = directory / segment.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise CorruptFile(path, 0, "the segment is missing") from None
    if size != segment.size:
        raise CorruptFile(path, min(size, segment.size), f"{size} bytes, not {segment.size}")


def _blocks(path: Path, found: PartitionFiles, is_last: bool) -> list[Block]:
    size = path.stat().st_size
    if size > _LARGE:
        _log.info("scanning %s, %d bytes", path, size)
    scan = Scan(path)
    blocks = list(scan.blocks())
    if scan.torn:
        if not is_last:
            raise CorruptFile(path, scan.valid_end, scan.torn)
        found.torn = TornTail(path, scan.valid_end, scan.size - scan.valid_end, scan.torn)
    return blocks


def _check_follows(path: Path, block: Block, number: int, end: int) -> None:
    """Raise unless a block belongs to this partition and begins at its end."""
    if block.first != end:
        reason = f"a block begins at offset {block.first}, not at {end}"
        raise CorruptFile(path, block.position, reason)
    if block.metadata.members.get(number) != block.first or not block.count:
        reason = f"a block that is not of partition {number}"
        raise CorruptFile(path, block.position, reason)
