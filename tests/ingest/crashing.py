"""Ingest servers that die at a chosen moment, forked one after the other from one process.

python -m tests.ingest.crashing, then lines of JSON: each starts a server (see `Start`), and the
next one is read when that server is dead. Importing takes far longer than a server lives here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from aqueduct.ingest.server import committer, server
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.local import wal
from aqueduct.security import ServerTLS

LIFE = 100
"""Seconds after which a server that was not killed ends."""

LIMITS = IngestSettings(roll_size=8 * 1024, roll_age=0.06, low_water=0, linger=0.001)
"""So small that logs become segments continuously."""


class Start(msgspec.Struct):
    """How a server runs, and when it dies."""

    address: str
    directory: str
    certificate: str
    key: str
    moment: str = ""
    """One of `MOMENTS`; empty to run until another process kills it."""
    count: int = 1
    """It dies when that moment comes for the time with this number."""
    seed: int = 0
    loses: bool = False
    """Whether what was not synced is lost with it, as if the power had failed."""


def say(event: str, **more: Any) -> None:
    """Report an event to the test, in one write, so that threads do not mix their lines."""
    os.write(1, (json.dumps({"event": event, **more}) + "\n").encode())


class Doom:
    """Counts how often the chosen moment is reached, and kills the process at the last one."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.left = start.count
        self.recovers = True
        self.rng = random.Random(start.seed)
        self.lock = threading.Lock()
        self.unsynced: dict[int, tuple[int, int]] = {}
        """By open file, the range of bytes written since the last sync."""

    def comes(self, moment: str) -> bool:
        """Return whether to die now; the caller does nothing else after that."""
        if moment != self.start.moment:
            return False
        with self.lock:
            self.left -= 1
            return self.left == 0

    def die(self) -> None:
        """Kill the process, with or without the loss of unsynced bytes."""
        with self.lock:
            if self.start.loses:
                for file, (synced, written) in self.unsynced.items():
                    with contextlib.suppress(OSError):
                        os.ftruncate(file, self.rng.randint(synced, written))
            say("dies", moment=self.start.moment)
            os.kill(os.getpid(), signal.SIGKILL)


def name_of(file: int) -> str:
    """Return the name of an open file."""
    return os.path.basename(os.readlink(f"/proc/self/fd/{file}"))


def watch_log(doom: Doom) -> None:
    """Watch the writes and syncs of the log."""
    write, sync, close = os.pwritev, os.fdatasync, os.close

    def pwritev(file: int, parts: list[Any], position: int) -> int:
        if doom.comes("in the middle of a block"):
            data = b"".join(parts)
            write(file, [data[: doom.rng.randrange(1, len(data))]], position)
            doom.die()
        size = write(file, parts, position)
        with doom.lock:
            synced, _ = doom.unsynced.get(file, (position, 0))
            doom.unsynced[file] = (synced, position + size)
        if doom.comes("between a block and its sync"):
            doom.die()
        return size

    def fdatasync(file: int) -> None:
        sync(file)
        with doom.lock:
            doom.unsynced.pop(file, None)
        if doom.comes("between the syncs of a group"):
            doom.die()

    def forget(file: int) -> None:
        with doom.lock:
            doom.unsynced.pop(file, None)
        close(file)

    os.pwritev, os.fdatasync, os.close = pwritev, fdatasync, forget  # type: ignore[assignment]
    answer = committer.Committer._answer

    def _answer(self: committer.Committer, group: Any) -> None:
        if doom.comes("between the sync and the answer"):
            doom.die()
        answer(self, group)

    committer.Committer._answer = _answer  # type: ignore[method-assign]


def watch_rolls(doom: Doom) -> None:
    """Watch segments, manifests and the removal of logs."""
    sync, replace, unlink = os.fsync, os.replace, os.unlink

    def fsync(file: int) -> None:
        name = name_of(file)
        kind = "segment" if "parquet" in name else "manifest" if "manifest" in name else ""
        if kind and doom.comes(f"in the middle of a {kind}"):
            os.ftruncate(file, doom.rng.randrange(os.fstat(file).st_size))
            doom.die()
        sync(file)
        if kind and doom.comes(f"between a {kind} and its name"):
            doom.die()

    def rename(source: Any, target: Any) -> None:
        replace(source, target)
        name = os.path.basename(target)
        if name.endswith(".parquet") and doom.comes("between a segment and its manifest"):
            doom.die()
        if name == "manifest.json" and doom.comes("between a manifest and the end of the log"):
            doom.die()

    def remove(path: Any, **more: Any) -> None:
        unlink(path, **more)
        if str(path).endswith(".wal") and doom.comes("after the end of a log"):
            doom.die()

    os.fsync, os.replace, os.unlink = fsync, rename, remove  # type: ignore[assignment]


def watch_recovery(doom: Doom) -> None:
    """Watch the recovery, before the server listens."""
    look, cut = wal.Scan.__init__, wal.WalFile.cut

    def scan(self: wal.Scan, path: Path) -> None:
        if doom.comes("in the middle of recovery"):
            doom.die()
        look(self, path)

    def shorten(self: wal.WalFile, size: int) -> None:
        if doom.recovers and doom.comes("before a torn tail is cut"):
            doom.die()
        cut(self, size)
        if doom.recovers and doom.comes("after a torn tail is cut"):
            doom.die()

    wal.Scan.__init__ = scan  # type: ignore[method-assign]
    wal.WalFile.cut = shorten  # type: ignore[method-assign]


WATCHES: list[Callable[[Doom], None]] = [watch_log, watch_rolls, watch_recovery]

WRITING = [
    "in the middle of a block",
    "between a block and its sync",
    "between the syncs of a group",
    "between the sync and the answer",
]
ROLLING = [
    "in the middle of a segment",
    "between a segment and its name",
    "between a segment and its manifest",
    "in the middle of a manifest",
    "between a manifest and its name",
    "between a manifest and the end of the log",
    "after the end of a log",
]
RECOVERING = [
    "in the middle of recovery",
    "before a torn tail is cut",
    "after a torn tail is cut",
]
MOMENTS = [*WRITING, *ROLLING, *RECOVERING]


class Telling(logging.Handler):
    """Reports what the server logs."""

    def emit(self, record: logging.LogRecord) -> None:
        say("log", level=record.levelname, text=record.getMessage())


async def serve(start: Start, tls: ServerTLS, doom: Doom) -> None:
    async with server.IngestServer(
        start.address, start.directory, tls=tls, limits=LIMITS
    ) as running:
        doom.recovers = False
        say("ready", address=running.address)
        await running.wait_closed()


def live(start: Start) -> None:
    """Run the server; never return."""
    signal.alarm(LIFE)
    logging.getLogger("aqueduct.ingest").addHandler(Telling())
    server._UPKEEP = 0.02
    doom = Doom(start)
    for watch in WATCHES:
        watch(doom)
    tls = ServerTLS(Path(start.certificate).read_bytes(), Path(start.key).read_bytes())
    say("began", pid=os.getpid())
    try:
        asyncio.run(serve(start, tls, doom))
    except BaseException as error:
        say("trouble", error=repr(error))
        raise
    finally:
        os._exit(1)


def main() -> None:
    for line in sys.stdin:
        start = msgspec.json.decode(line, type=Start)
        child = os.fork()
        if child == 0:
            live(start)
        _, status = os.waitpid(child, 0)
        say("ended", killed=os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


if __name__ == "__main__":
    main()
