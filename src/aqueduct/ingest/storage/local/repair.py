"""Puts a topic with damaged logs back into use by giving up what is lost, and says what that is."""

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
from aqueduct.ingest.storage.local.recovery import look
from aqueduct.ingest.storage.local.topic_storage import LocalTopicStorage
from aqueduct.ingest.storage.local.wal import Scan, WalFile


@dataclass(frozen=True)
class Loss:
    """What a repair gives up."""

    path: Path
    position: int
    """From which byte on the file is cut; at 0 all of it goes."""
    size: int
    """How many bytes that are: 0 for rows that are gone already."""
    reason: str

    def __str__(self) -> str:
        if not self.size:
            return f"{self.path}, byte {self.position}: nothing to cut; {self.reason}"
        return f"{self.path}: {self.size} bytes from byte {self.position} on; {self.reason}"


def repair(directory: str | os.PathLike[str], topic: str, *, cut: bool = False) -> list[Loss]:
    """What has to be given up for a topic to be used again; nothing is changed without ``cut``.

    No server may have the directory. Only logs can be cut: what is wrong with a manifest, a
    segment or the description of a topic raises `CorruptFile`, as nothing could be put in its
    place.
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
    """What stands in the way of using a partition."""
    try:
        found = look(part.directory, part.number)
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
    # Accepted first: whatever is cut then is not missed by the proofs of what stays.
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
    """The groups of the good blocks at the beginning of a file."""
    groups: list[int] = []
    with suppress(CorruptFile):
        groups.extend(block.facts.group for block in Scan(path).blocks())
    return groups
