"""What a partition consists of besides its log: one small file, replaced as a whole."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.local.file_modes import DIRECTORY_MODE, create

NAME = "manifest.json"
VERSION = 1

T = TypeVar("T")


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


class _File(msgspec.Struct):
    checksum: int
    content: msgspec.Raw


def write_checked(path: Path, content: object) -> None:
    """Replace a small file, in one step that survives a crash, by one with a checksum."""
    body = msgspec.json.encode(content)
    replace_file(path, msgspec.json.encode(_File(zlib.crc32(body), msgspec.Raw(body))))


def read_checked(path: Path, kind: type[T], what: str) -> T:
    """What such a file holds; raises `CorruptFile`, or `FileNotFoundError`."""
    data = path.read_bytes()
    try:
        file = msgspec.json.decode(data, type=_File)
        if zlib.crc32(file.content) != file.checksum:
            raise CorruptFile(path, 0, f"the checksum of {what} is wrong")
        return msgspec.json.decode(file.content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptFile(path, 0, f"not {what}: {error}") from None


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


def replace_file(path: Path, data: bytes, opener: Callable[[str, int], int] = create) -> None:
    """Write a file beside the old one, then put it in its place, all of it synced."""
    temporary = path.with_name(f".{path.name}.tmp")
    with removed_on_failure(temporary), open(temporary, "wb", opener=opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


@contextmanager
def removed_on_failure(temporary: Path) -> Iterator[None]:
    """A file that could not be written takes no room: it may be room that lacked."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it, that are there after any crash."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True, mode=DIRECTORY_MODE)
        sync_directory(directory.parent)


def sync_file(path: Path) -> None:
    """Have on disk what somebody wrote into a file."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files, if they are there."""
    for path in paths:
        path.unlink(missing_ok=True)
