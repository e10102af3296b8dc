"""Repairs a topic with damaged logs: reports what is lost, and cuts it off if asked to."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aqueduct.ingest.errors import CorruptFile, IngestError, UnknownTopic
from aqueduct.ingest.storage.base import check_name
from aqueduct.ingest.storage.local.durability import newest_group, remove_closed, write_accepted
from aqueduct.ingest.storage.local.files import remove_files, sync_directory
from aqueduct.ingest.storage.local.lock import claimed
from aqueduct.ingest.storage.local.manifest import read_manifest
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.recovery import read_files
from aqueduct.ingest.storage.local.topic_storage import LocalTopicStorage
from aqueduct.ingest.storage.local.wal import Scan, WalFile


@dataclass(frozen=True)
class Loss:
    """Part of a log that a repair removes."""

    path: Path
    position: int
    """The byte from which the file is cut; 0 removes the file."""
    size: int
    """The number of bytes removed; 0 for rows that are missing already."""
    reason: str

    def __str__(self) -> str:
        if not self.size:
            return f"{self.path}, byte {self.position}: nothing to cut; {self.reason}"
        return f"{self.path}: {self.size} bytes from byte {self.position} on; {self.reason}"


def repair(directory: str | os.PathLike[str], topic: str, *, cut: bool = False) -> list[Loss]:
    """Return what must be removed so that a topic can be used again; remove it only with ``cut``.

    No server may have the directory open. Only logs can be repaired: a damaged manifest, segment or
    description of a topic raises `CorruptFile`, since nothing could replace it.
    """
    check_name(topic)
    path = Path(directory) / topic
    if not path.is_dir():
        raise UnknownTopic(f"there is no topic {topic!r} in {directory}")
    with claimed(Path(directory)):
        found = LocalTopicStorage(path, read_only=True)
        if not found.fault:
            return []
        losses = [loss for part in found.partitions for loss in _losses(part)]
        if not losses:
            raise IngestError(f"topic {topic} cannot be repaired by cutting logs: {found.fault}")
        if cut:
            _cut(path, losses)
        return losses


def _losses(part: Partition) -> list[Loss]:
    """Return what keeps a partition out of use."""
    try:
        found = read_files(part.directory, part.number)
    except CorruptFile as fault:
        if fault.path.suffix != ".wal":
            raise
        size = fault.path.stat().st_size
        behind = [path for path in sorted(part.directory.glob("*.wal")) if path > fault.path]
        return [
            Loss(fault.path, fault.position, size - fault.position, fault.reason),
            *(Loss(path, 0, path.stat().st_size, "it is behind that") for path in behind),
        ]
    if found.torn is not None:
        torn = found.torn
        return [Loss(torn.path, torn.position, torn.size, torn.reason)]
    if part.fault:
        file, position = part.log_end
        return [Loss(file, position, 0, part.fault)]
    return []


def _cut(path: Path, losses: list[Loss]) -> None:
    # Accept the loss first: high-water marks in the remaining files then no longer count.
    parts = LocalTopicStorage(path, read_only=True).partitions
    groups = [newest_group(parts), *(read_manifest(part.directory).group for part in parts)]
    for loss in losses:
        if loss.size:
            groups += _groups(loss.path)
    write_accepted(path, max(groups))
    remove_closed(path)
    for loss in losses:
        if loss.position and loss.size:
            file = WalFile(loss.path)
            file.cut(loss.position)
            file.close()
        elif loss.size:
            remove_files([loss.path])
            sync_directory(loss.path.parent)


def _groups(path: Path) -> list[int]:
    """Return the groups of the valid blocks at the beginning of a file."""
    groups: list[int] = []
    with suppress(CorruptFile):
        groups.extend(block.metadata.group for block in Scan(path).blocks())
    return groups
