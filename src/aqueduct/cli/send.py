"""``aqueduct send``: sends arguments, lines or files to the entrypoint of a server.

A file is sent as one message with an attached channel. The name and the size are headers of that
channel, and its messages are the contents of the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from aqueduct.api.channels import channel
from aqueduct.api.client import connect
from aqueduct.api.connection import Connection
from aqueduct.api.handles import Receiver, Sender
from aqueduct.cli import options, running
from aqueduct.errors import ReceiverClosed
from aqueduct.security import ServerTLS, Trust

CHUNK = 256 * 1024
_READ = 64 * 1024


class File(msgspec.Struct):
    """The message to which the channel of a file is attached."""

    name: str
    size: int
    content: Receiver[bytes]


def send(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT")],
    texts: options.Texts = None,
    files: options.Files = None,
    whole: options.Whole = False,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="Header of each message; repeatable."
        ),
    ] = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    cert: options.OwnCertificate = None,
    key: options.Key = None,
    trace: options.TraceDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Send messages, and wait until the peer has acknowledged them.

    Exits with 0 once all messages are acknowledged.

    Example: aqueduct send localhost:4433 hello world
    Example: aqueduct send localhost:4433 --file picture.png
    Example: tail -f log | aqueduct send localhost:4433
    """
    if texts and files:
        raise typer.BadParameter("give texts or --file, not both")
    own = options.own_certificate(cert, key)
    traced = options.trace_directory(trace)
    job = SendRun(address, options.parse_headers(header or ()), own, traced)
    trust = options.client_trust(ca, pin, system)
    if files:
        running.run(job.run(trust, File, job.send_files(files), as_json))
    elif texts:
        running.run(job.run(trust, bytes, job.send_all(encoded(texts)), as_json))
    else:
        running.run(job.run(trust, bytes, job.send_all(standard_input(whole)), as_json))


@dataclass
class SendRun:
    """The messages of one command, and how many were sent."""

    address: str
    headers: list[tuple[str, str]]
    certificate: ServerTLS | None
    trace: Path | None
    messages: int = 0
    size: int = 0
    connection: Connection[Any] | None = None

    async def run(self, trust: Trust, kind: Any, work: Any, as_json: bool) -> int:
        """Connect, run ``work``, wait for acknowledgements and report."""
        async with running.interrupts() as stop, contextlib.AsyncExitStack() as stack:
            stack.callback(work.close)
            connecting = connect(
                self.address, kind, trust=trust, certificate=self.certificate, trace=self.trace
            )
            connection = await stack.enter_async_context(connecting)
            self.connection = connection
            start = time.perf_counter()
            async with connection.entrypoint as entrypoint:
                done = await running.until(stop, work)
                await _flush(entrypoint)
        took = time.perf_counter() - start
        self._report(took, as_json)
        return 0 if done else running.INTERRUPTED

    async def send_all(self, payloads: AsyncIterator[bytes]) -> None:
        """Send each payload as a message."""
        assert self.connection is not None
        entrypoint: Sender[bytes] = self.connection.entrypoint
        async for payload in payloads:
            await entrypoint.send(payload, headers=self.headers or None)
            self.messages += 1
            self.size += len(payload)

    async def send_files(self, paths: Sequence[Path]) -> None:
        """Send each file as a message with a channel for its contents."""
        assert self.connection is not None
        for path in paths:
            size = path.stat().st_size
            about = {"name": path.name, "size": str(size)}
            sender, receiver = channel(bytes, headers=about)
            message = File(path.name, size, receiver)
            async with sender:
                await self.connection.entrypoint.send(message, headers=self.headers or None)
                with progress(path.name, size) as advance:
                    async for chunk in _chunks(path):
                        await sender.send(chunk)
                        advance(len(chunk))
                        self.size += len(chunk)
                await sender.flush()
            self.messages += 1

    def _report(self, took: float, as_json: bool) -> None:
        if as_json:
            found = {"messages": self.messages, "bytes": self.size, "seconds": round(took, 6)}
            print(json.dumps(found))
        else:
            rate = self.size / max(took, 1e-9) / 1e6
            running.notes.print(
                f"{self.messages} messages, {self.size:,} bytes acknowledged in {took:.2f} s"
                + (f", {rate:.1f} MB/s" if self.size > CHUNK else "")
            )


async def _flush(entrypoint: Sender[Any]) -> None:
    """Wait until all messages are delivered, also to a server that closes after the last one."""
    try:
        await entrypoint.flush()
    except ReceiverClosed:
        counts = entrypoint.statistics()
        if counts["delivered"] < counts["sent"] + counts["queued"]:
            raise


@contextlib.contextmanager
def progress(name: str, size: int | None) -> Iterator[Any]:
    """Show a progress bar on a terminal; provide a function that advances it."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = running.notes
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(running.printable(name), total=size)
        yield lambda count: bar.advance(task, count)


async def encoded(texts: Sequence[str]) -> AsyncIterator[bytes]:
    """Yield each text as a payload."""
    for text in texts:
        yield text.encode()


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk


async def standard_input(whole: bool, longest: int | None = None) -> AsyncIterator[bytes]:
    """Yield the lines of standard input without their ends, or all of it at once.

    Raises `OverflowError` if a line is longer than ``longest`` bytes.
    """
    rest = b""
    async for block in _blocks():
        if longest is not None and len(rest) > longest:
            raise OverflowError
        rest += block
        if not whole:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield line
    if rest or whole:
        yield rest


async def _blocks() -> AsyncIterator[bytes]:
    """Yield standard input as it arrives, read by a daemon thread."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        block = b"-"
        while block:
            block = os.read(sys.stdin.fileno(), _READ)
            putting = queue.put(block)
            try:
                asyncio.run_coroutine_threadsafe(putting, loop).result()
            except (RuntimeError, CancelledError):  # the loop is closed or closing
                putting.close()
                return

    threading.Thread(target=read, daemon=True).start()
    while block := await queue.get():
        yield block
