"""Permissions of stored files: by default, the server's user and group can read them.

The mode of a topic's directory applies to its partitions. Its files get the same mode without the
execute bits, and are writable by the owner only. The setgid bit of a directory stays: it decides
which group the files get.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("aqueduct.ingest")

DIRECTORY_MODE = 0o750
"""Mode of new directories: records are private to the server's user and group."""
_FILE_BITS = 0o644
_OTHERS = stat.S_IRWXO


def check_mode(mode: int) -> int:
    """Return a mode for directories; raise `ValueError` if the server cannot use it."""
    if not 0o700 <= mode <= 0o777 or mode & 0o022:
        raise ValueError(
            f"invalid directory mode {mode:o}: the owner needs read, write and execute, and others "
            "must not have write permission; use 700, 750 or 755"
        )
    return mode


def file_mode(directory: Path) -> int:
    """Return the mode of files in a directory."""
    return stat.S_IMODE(directory.stat().st_mode) & _FILE_BITS


def create(path: str | Path, flags: int) -> int:
    """Open or create a file with the mode of its directory; an ``opener`` for `open`."""
    mode = file_mode(Path(path).parent)
    file = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        if stat.S_IMODE(os.fstat(file).st_mode) != mode:
            os.fchmod(file, mode)
    except PermissionError:
        pass  # another user owns the file, and chose its mode
    except BaseException:
        os.close(file)
        raise
    return file


def make_private(directory: Path, mode: int | None) -> None:
    """Create a directory of a topic with exactly that mode, regardless of the umask.

    Without ``mode`` it gets `DIRECTORY_MODE`, restricted by the umask.
    """
    directory.mkdir(exist_ok=True, mode=DIRECTORY_MODE if mode is None else mode)
    now = stat.S_IMODE(directory.stat().st_mode)
    after = _limited(now, DIRECTORY_MODE if mode is None else mode, exact=mode is not None)
    if after != now:
        os.chmod(directory, after)


def _limited(now: int, mode: int, *, exact: bool) -> int:
    """Return the mode of a directory that has ``now``, and is to have ``mode`` or less."""
    return (mode if exact else now & mode) | now & stat.S_ISGID


def open_directory(directory: Path, mode: int) -> None:
    """Set the configured mode of a server's directory, so that its topics are reachable.

    Other entries of the directory stay private. A directory of another user is not changed.
    """
    now = stat.S_IMODE(directory.stat().st_mode)
    after = _limited(now, mode, exact=True)
    if after == now:
        return
    try:
        os.chmod(directory, after)
    except PermissionError as error:
        _log.error("cannot change the mode of %s to %o: %s", directory, mode, error.strerror)


def settle_modes(topic: Path, mode: int, *, exact: bool) -> None:
    """Remove permissions beyond ``mode`` from the files of a topic, and log a warning.

    With ``exact`` directories and files get exactly the mode, also if that allows more.
    """
    changed, refused = 0, ""
    for path, found in _entries(topic):
        now = stat.S_IMODE(found)
        if stat.S_ISDIR(found):
            after = _limited(now, mode, exact=exact)
        else:
            after = mode & _FILE_BITS if exact else now & mode & _FILE_BITS
        if after == now:
            continue
        try:
            os.chmod(path, after)
            changed += 1
        except OSError as error:
            refused = refused or f"{path}: {error.strerror}"
    if changed:
        _log.warning(
            "topic %s: changed the permissions of %d files and directories to those of mode %o",
            topic.name,
            changed,
            mode,
        )
    if refused:
        _log.error(
            "topic %s: permissions unchanged, other users may read it: %s", topic.name, refused
        )


def exposed(directory: Path) -> list[Path]:
    """Return the directory and its entries that any user of this machine can access."""
    if not stat.S_IMODE(directory.stat().st_mode) & _OTHERS:
        return []  # without the execute bit the entries are inaccessible
    return [path for path, mode in _entries(directory) if mode & _OTHERS]


def _entries(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield the directory and all entries below it with their modes; do not follow links."""
    yield directory, directory.lstat().st_mode
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(root, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # rolled or removed meanwhile
            if not stat.S_ISLNK(mode):
                yield path, mode
