"""What a partition consists of besides its log: one small file, replaced as a whole."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from aqueduct.ingest.faults import CorruptFile

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

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.first:020}-{self.last:020}.parquet"


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
    version: int = VERSION


class _File(msgspec.Struct):
    checksum: int
    manifest: msgspec.Raw


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest of a partition in one step that survives a crash."""
    body = msgspec.json.encode(manifest)
    data = msgspec.json.encode(_File(zlib.crc32(body), msgspec.Raw(body)))
    replace_file(directory / NAME, data)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a partition, an empty one if there is none; raises `CorruptFile`."""
    path = directory / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Manifest()
    try:
        file = msgspec.json.decode(data, type=_File)
        if zlib.crc32(file.manifest) != file.checksum:
            raise CorruptFile(path, 0, "the checksum of the manifest is wrong")
        manifest = msgspec.json.decode(file.manifest, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptFile(path, 0, f"not a manifest: {error}") from None
    _check(path, manifest)
    return manifest


def _check(path: Path, manifest: Manifest) -> None:
    if manifest.version != VERSION:
        raise CorruptFile(path, 0, f"a manifest of version {manifest.version}, not {VERSION}")
    expected = manifest.first
    for segment in manifest.segments:
        if segment.first != expected or segment.last < segment.first:
            raise CorruptFile(path, 0, f"segment {segment.name} does not begin at {expected}")
        expected = segment.last + 1
    if manifest.next != expected:
        raise CorruptFile(path, 0, f"the segments end at {expected}, not at {manifest.next}")


def replace_file(path: Path, data: bytes) -> None:
    """Write a file beside the old one, then put it in its place, all of it synced."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files, if they are there."""
    for path in paths:
        path.unlink(missing_ok=True)
