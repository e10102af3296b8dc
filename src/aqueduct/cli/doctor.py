"""``aqueduct doctor``: checks the requirements of channels on this machine, with remedies."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import resource
import socket
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aqueduct.api.client import connect
from aqueduct.api.server import serve
from aqueduct.cli import cert, options, running
from aqueduct.cli.ping import PingRequest
from aqueduct.errors import AqueductError
from aqueduct.security import dev_directory, dev_tls, dev_trust
from aqueduct.spark.errors import NoJava
from aqueduct.spark.java import find_java
from aqueduct.transport import quic
from aqueduct.transport.udp import BUFFER_SIZE, UdpSocket

_MIN_PYTHON = (3, 11)
_MIN_FILES = 4_096
_TIMEOUT = 10
_MAX_SYNC = 0.02
"""The longest acceptable sync in seconds; a slower one delays producers noticeably."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = True
    """Whether channels fail without it; other findings affect speed or other parts."""


def doctor(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", "-d", metavar="DIR", help="Also check that an ingest server's data is private."
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Also check that its tokens are private."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check this machine: Python, UDP, certificates, limits, and a real connection.

    Exits with 1 if something that channels need is missing, or if the data or the tokens of an
    ingest server are world-readable.

    Example: aqueduct doctor

    Example: aqueduct doctor --dir data --tokens tokens.json
    """
    findings: list[Finding] = []
    with running.notes.status("checking"):
        for check in CHECKS:
            findings += check()
        if directory is not None:
            findings += check_privacy(directory)
        if tokens is not None:
            findings += check_tokens(tokens)
    if as_json:
        print(json.dumps([asdict(one) for one in findings]))
    else:
        _print(findings)
    running.run(_exit_code(findings))


async def _exit_code(findings: list[Finding]) -> int:
    return running.FAILED if any(one.needed and not one.ok for one in findings) else 0


def _print(findings: list[Finding]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for one in findings:
        mark = "[green]✓[/]" if one.ok else "[red]✗[/]" if one.needed else "[yellow]✗[/]"
        table.add_row(mark, Text(one.check), Text(one.found))
    console = Console()
    console.print(table)
    for one in findings:
        if not one.ok:  # in whole lines, to be copied into a shell
            console.print(Text(f"{one.check}: {one.advice}"), soft_wrap=True)


def check_python() -> Iterator[Finding]:
    """Check the version of the interpreter."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("Python", sys.version_info >= _MIN_PYTHON, version, "use Python 3.11 or newer")


def check_packages() -> Iterator[Finding]:
    """Check the packages that channels need."""
    for name in (quic.IMPLEMENTATION, "msgspec", "cryptography"):
        yield Finding(
            name, (found := _version(name)) != "", found or "missing", f"pip install {name}"
        )
    found = _version("uvloop")
    yield Finding(
        "uvloop",
        found != "",
        found or "not installed",
        "pip install 'aqueduct-channels[uvloop]' for a faster event loop; asyncio works too",
        needed=False,
    )


def check_udp() -> Iterator[Finding]:
    """Check the UDP buffers and offloads of the kernel."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.bind(("127.0.0.1", 0))
        udp = UdpSocket(sock)
        receive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        send = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    for name, size, setting in (
        ("UDP receive buffer", receive, "rmem_max"),
        ("UDP send buffer", send, "wmem_max"),
    ):
        yield Finding(
            name,
            size >= BUFFER_SIZE,
            f"{size // 1024:,} KiB",
            f"sysctl -w net.core.{setting}={BUFFER_SIZE}, else fast senders lose packets",
            needed=False,
        )
    advice = "without it, each packet is a system call; use Linux 5.0 or newer"
    yield Finding("UDP GSO (send)", udp.gso, "yes" if udp.gso else "no", advice, needed=False)
    yield Finding("UDP GRO (receive)", udp.gro, "yes" if udp.gro else "no", advice, needed=False)


def check_certificates() -> Iterator[Finding]:
    """Check the development certificate."""
    name = "development certificate"
    try:
        trusted = dev_trust()
        shown = cert.describe(dev_tls().certificate)
    except AqueductError as error:
        yield Finding(name, False, error.message, error.hint)
        return
    except (OSError, ValueError) as error:
        yield Finding(name, False, str(error), f"remove {dev_directory()}, and run doctor again")
        return
    ok = trusted.authorities is not None and shown["days_left"] > 0
    yield Finding(
        name, ok, f"{shown['days_left']} days, {', '.join(shown['names'])}", "check the clock"
    )


def check_files() -> Iterator[Finding]:
    """Check the limit of open files, which includes sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    ok = soft == resource.RLIM_INFINITY or soft >= _MIN_FILES
    room = "" if hard == resource.RLIM_INFINITY else f" (at most {hard:,})"
    advice = f"ulimit -n {_MIN_FILES}{room}; each client connection has a socket"
    yield Finding("open files", ok, limit, advice, needed=False)


def check_ingest() -> Iterator[Finding]:
    """Check the requirements of ingest: pyarrow, and a disk with a low sync latency."""
    found = _version("pyarrow")
    yield Finding(
        "pyarrow",
        found != "",
        found or "not installed",
        "only ingest and traces need it: pip install 'aqueduct-channels[ingest]'",
        needed=False,
    )
    name = "disk sync here"
    try:
        took = _sync_time(Path.cwd())
    except OSError as error:
        advice = "only ingest needs it: run this in a directory that can be written"
        yield Finding(name, False, error.strerror or str(error), advice, needed=False)
    else:
        advice = "only ingest needs it: each acknowledgement waits for a sync; use a faster disk"
        yield Finding(name, took <= _MAX_SYNC, f"{1000 * took:.1f} ms", advice, needed=False)


def check_privacy(directory: Path) -> Iterator[Finding]:
    """Check that the data of a server is private."""
    from aqueduct.ingest.storage.local.file_modes import exposed

    name = "stored data"
    try:
        found = exposed(directory)
    except OSError as error:
        yield Finding(name, False, f"{directory}: {error.strerror}", "pass a server's directory")
        return
    if found:
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        advice = f"chmod -R o-rwx {directory}, or start its server without --dir-mode"
        yield Finding(name, False, f"open to all users: {found[0]}{more}", advice)
    else:
        yield Finding(name, True, f"{directory} is private")


def check_tokens(path: Path) -> Iterator[Finding]:
    """Check that the file of tokens of a server is private."""
    name = "tokens"
    try:
        mode = path.stat().st_mode
    except OSError as error:
        yield Finding(name, False, f"{path}: {error.strerror}", "pass a server's file of tokens")
        return
    private = not mode & stat.S_IRWXO
    shown = f"{path} is {'private' if private else 'open to all users'}"
    yield Finding(name, private, shown, f"chmod 600 {path}, and rotate the tokens in it")


def _sync_time(directory: Path) -> float:
    """Return the median time in seconds to sync a small block."""
    took = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(9):
            start = time.perf_counter()
            file.write(bytes(4_096))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - start)
    return statistics.median(took)


def check_java() -> Iterator[Finding]:
    """Check for a Java runtime, which only Spark needs."""
    try:
        home = find_java()
    except NoJava as error:
        yield Finding("Java", False, "not found", f"only Spark needs it: {error}", needed=False)
    else:
        yield Finding("Java", True, _java_version(str(home / "bin" / "java")), needed=False)


def check_connection() -> Iterator[Finding]:
    """Check that a client can connect to a server on loopback, and call it."""
    try:
        with asyncio.Runner(loop_factory=running.loop_factory()) as runner:
            took = runner.run(_connect_and_call())
    except (AqueductError, OSError, TimeoutError) as error:
        advice = "check that UDP on 127.0.0.1 is allowed, and the versions of all packages"
        yield Finding("connection", False, str(error) or "no answer", advice)
    else:
        yield Finding("connection", True, f"over loopback, {1000 * took:.1f} ms")


async def _connect_and_call() -> float:
    from aqueduct.cli import echo

    loop = asyncio.get_running_loop()
    async with serve("127.0.0.1:0", bytes, tls=dev_tls()) as server:
        serving = asyncio.ensure_future(server.run(echo.handle))
        start = loop.time()
        async with connect(
            server.address, PingRequest, trust=dev_trust(), timeout=_TIMEOUT
        ) as connection:
            await connection.entrypoint.call(PingRequest, number=0, filling=b"", timeout=_TIMEOUT)
            took = loop.time() - start
        serving.cancel()
    return took


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _java_version(java: str) -> str:
    try:
        ran = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter((ran.stderr or ran.stdout).splitlines()), "")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_packages,
    check_udp,
    check_certificates,
    check_files,
    check_connection,
    check_ingest,
    check_java,
)
