"""Files that survive a crash: replaced atomically, synced, and checked when they are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.storage.checked import decode_checked, encode_checked
from aqueduct.ingest.storage.local.file_modes import DIRECTORY_MODE, create

T = TypeVar("T")


def write_checked(path: Path, content: object) -> None:
    """Replace a small file atomically by one with a checksum."""
    replace_file(path, encode_checked(content))


def read_checked(path: Path, kind: type[T], what: str) -> T:
    """Read the output of `write_checked`; raise `CorruptFile`, or `FileNotFoundError`."""
    return decode_checked(path.read_bytes(), kind, what, path)


def replace_file(path: Path, data: bytes, opener: Callable[[str, int], int] = create) -> None:
    """Write and sync a temporary file, rename it to ``path``, and sync the directory."""
    temporary = path.with_name(f".{path.name}.tmp")
    with removed_on_failure(temporary), open(temporary, "wb", opener=opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


@contextmanager
def removed_on_failure(temporary: Path) -> Iterator[None]:
    """Remove a file if it cannot be written: the disk may be full."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Sync the entries of a directory."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, durably."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True, mode=DIRECTORY_MODE)
        sync_directory(directory.parent)


def sync_file(path: Path) -> None:
    """Sync the contents of a file, whichever process wrote them."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files, if they exist."""
    for path in paths:
        path.unlink(missing_ok=True)


class LocalBlob:
    """A blob of a topic in a file of its directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._size = 0

    @property
    def location(self) -> str:
        """The path of the file."""
        return str(self.path)

    def read(self) -> bytes | None:
        """Return the contents of the file; None if it does not exist."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise IngestError(f"{self.path} could not be read: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        """Replace the file."""
        self.close()
        with self._writing():
            replace_file(self.path, data)

    def append(self, data: bytes) -> None:
        """Append to the file and sync it; on failure, cut it back."""
        with self._writing():
            if self._handle is None:
                self._handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
                self._size = os.fstat(self._handle).st_size
            try:
                written = os.pwrite(self._handle, data, self._size)
                if written < len(data):
                    raise OSError(f"only {written} of {len(data)} bytes could be written")
                os.fsync(self._handle)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._handle, self._size)
                raise
            self._size += len(data)

    def remove(self) -> None:
        """Remove the file, if it exists."""
        self.close()
        with self._writing():
            if self.path.exists():
                self.path.unlink()
                sync_directory(self.path.parent)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise IngestError(f"{self.path} could not be written: {error}") from error
