"""The manifest of a partition: a small file that lists its segments, replaced atomically."""

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
    """The smallest timestamp of its rows."""
    last_time: int
    """The largest timestamp of its rows."""
    first_ingest: int
    last_ingest: int
    checksum: int
    """CRC-32 of the file: the checksums of Parquet do not cover page headers and footer."""
    clock: int = 0
    """The clock reading at its last row, earlier than ``last_ingest`` if the clock was set back;
    0 if unknown."""

    @property
    def stored_at(self) -> int:
        """When its last row was stored, by the clock of that time."""
        return self.clock or self.last_ingest

    @property
    def name(self) -> str:
        """The name of its file."""
        return segment_name(self.first, self.last)


def segment_name(first: int, last: int) -> str:
    """Return the file name of the segment with the rows from ``first`` to ``last``."""
    return f"{first:020}-{last:020}.parquet"


class Manifest(msgspec.Struct, frozen=True):
    """The segments of a partition, and its state at their end."""

    first: int = 0
    """The first offset that retention has not removed."""
    next: int = 0
    """The offset after the last segment; later rows are in the log."""
    group: int = 0
    """The newest group in a segment."""
    ingest_time: int = 0
    segments: list[Segment] = []
    producers: dict[str, tuple[int, int]] = {}
    """By producer, the last sequence number and when it was stored."""
    high_water: dict[int, int] = msgspec.field(name="proof", default_factory=dict)
    """By partition of the topic, the end that it had durably reached with that group."""
    instances: dict[str, str] = {}
    """By producer, the instance that stored it, if known."""
    version: int = VERSION


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest of a partition, atomically and durably."""
    write_checked(directory / NAME, manifest)


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a partition, empty if there is none; raise `CorruptFile`."""
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
