"""What the files of a partition say when they are opened: looked at and judged, not changed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.local.manifest import Manifest, Segment, read_manifest
from aqueduct.ingest.storage.local.segments import leftovers
from aqueduct.ingest.storage.local.wal import Block, Scan

_log = logging.getLogger("aqueduct.ingest")
_LOOKS = 8
"""How often a directory that somebody writes is looked at again before it counts as damaged."""
_LARGE = 256 * 1024 * 1024
"""Bytes of a log that take seconds to go through."""


@dataclass
class Log:
    """A file of the log, and the blocks in it."""

    path: Path
    blocks: list[Block] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Of all blocks."""
        return self.blocks[-1].position + self.blocks[-1].size if self.blocks else 0


@dataclass(frozen=True)
class Torn:
    """The end of the last log that is no block."""

    path: Path
    position: int
    size: int
    reason: str


@dataclass
class Found:
    """All that is there of a partition."""

    manifest: Manifest
    logs: list[Log] = field(default_factory=list)
    """Those with rows that are in no segment."""
    torn: Torn | None = None
    spare: list[Path] = field(default_factory=list)
    """Files with nothing in them that is not elsewhere."""


def look(directory: Path, number: int) -> Found:
    """What is there; raises `CorruptFile` for what no crash leaves behind."""
    return _look(directory, number, is_ours=True)


def look_at_others(directory: Path, number: int) -> Found:
    """The same of a directory that another process may write meanwhile."""
    for _ in range(_LOOKS):
        before = read_manifest(directory)
        try:
            return _look(directory, number, is_ours=False)
        except (CorruptFile, FileNotFoundError):
            if read_manifest(directory) == before:
                break
    return _look(directory, number, is_ours=False)


def _look(directory: Path, number: int, is_ours: bool) -> Found:
    found = Found(read_manifest(directory))
    if is_ours:
        found.spare = [*_unnamed(directory, found.manifest), *leftovers(directory)]
    for segment in found.manifest.segments:
        _check_there(directory, segment)
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
        found.logs.append(Log(path, blocks))
    return found


def _unnamed(directory: Path, manifest: Manifest) -> list[Path]:
    """Segments that do not count; raises if one has what is nowhere else."""
    known = {segment.name for segment in manifest.segments}
    unnamed = [path for path in directory.glob("*.parquet") if path.name not in known]
    for path in unnamed:
        first, _, last = path.stem.partition("-")
        was_dropped = last.isdecimal() and int(last) < manifest.first
        if not was_dropped and not (directory / f"{first}.wal").exists():
            reason = "no manifest names this segment, and the log it was made from is gone"
            raise CorruptFile(path, 0, reason)
    return unnamed


def _check_there(directory: Path, segment: Segment) -> None:
    path = directory / segment.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise CorruptFile(path, 0, "the segment is missing") from None
    if size != segment.size:
        raise CorruptFile(path, min(size, segment.size), f"{size} bytes, not {segment.size}")


def _blocks(path: Path, found: Found, is_last: bool) -> list[Block]:
    size = path.stat().st_size
    if size > _LARGE:
        _log.info("going through %s, %d bytes", path, size)
    scan = Scan(path)
    blocks = list(scan.blocks())
    if scan.torn:
        if not is_last:
            raise CorruptFile(path, scan.good, scan.torn)
        found.torn = Torn(path, scan.good, scan.size - scan.good, scan.torn)
    return blocks


def _check_follows(path: Path, block: Block, number: int, end: int) -> None:
    """Raise unless a block is of this partition, and the next one."""
    if block.first != end:
        reason = f"a block begins at offset {block.first}, not at {end}"
        raise CorruptFile(path, block.position, reason)
    if block.facts.members.get(number) != block.first or not block.count:
        reason = f"a block that is not of partition {number}"
        raise CorruptFile(path, block.position, reason)
