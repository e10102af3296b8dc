"""What a partition consists of besides its log: one small file, replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.local.files import read_checked, write_checked

NAME = "manifest.json"
VERSION = 1


class Segment(msgspec.Struct, frozen=True):
    """A Parquet file of the partition."""

    first: int
    last: int
    size: int
    first_time: int
    """The least and the greatest timestamp of its rows."""
    last_time: int
    first_ingest: int
    last_ingest: int
    checksum: int
    """Of the whole file: Parquet's own ones leave out all that describes the pages."""
    clock: int = 0
    """The clock reading at its last row, earlier than ``last_ingest`` if the clock was set back;
    0 if unknown."""

    @property
    def stored_at(self) -> int:
        """When its last row was stored, by the clock reading of that time."""
        return self.clock or self.last_ingest

    @property
    def name(self) -> str:
        """Of its file."""
        return segment_name(self.first, self.last)


def segment_name(first: int, last: int) -> str:
    """The name of the file with the rows from one offset to another."""
    return f"{first:020}-{last:020}.parquet"


class Manifest(msgspec.Struct, frozen=True):
    """The partition up to some offset."""

    first: int = 0
    """The first offset that is still there."""
    next: int = 0
    """The offset behind the last segment; from there on rows are in the log."""
    group: int = 0
    """The last group of blocks that is in a segment."""
    ingest_time: int = 0
    segments: list[Segment] = []
    producers: dict[str, tuple[int, int]] = {}
    """Of each producer the last sequence number, and when it was stored."""
    proof: dict[int, int] = {}
    """How far each partition of the topic must reach, since that group was on disk everywhere."""
    instances: dict[str, str] = {}
    """Which of those with the id that was, of each producer that told."""
    version: int = VERSION


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest of a partition in one step that survives a crash."""
    write_checked(directory / NAME, manifest)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a partition, an empty one if there is none; raises `CorruptFile`."""
    path = directory / NAME
    try:
        manifest = read_checked(path, Manifest, "a manifest")
    except FileNotFoundError:
        return Manifest()
    _check(path, manifest)
    return manifest


def _check(path: Path, manifest: Manifest) -> None:
    if manifest.version != VERSION:
        raise CorruptFile(path, 0, f"a manifest of version {manifest.version}, not {VERSION}")
    if manifest.first < 0:
        raise CorruptFile(path, 0, f"the first offset is {manifest.first}")
    expected = manifest.first
    for segment in manifest.segments:
        if segment.first != expected or segment.last < segment.first:
            raise CorruptFile(path, 0, f"segment {segment.name} does not begin at {expected}")
        expected = segment.last + 1
    if manifest.next != expected:
        raise CorruptFile(path, 0, f"the segments end at {expected}, not at {manifest.next}")
