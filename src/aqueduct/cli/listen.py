"""``aqueduct listen``: a server that prints what arrives, and what comes on carried channels."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from aqueduct.api.connection import Connection
from aqueduct.api.handles import Receiver, Sender
from aqueduct.api.server import serve
from aqueduct.cli import options, running
from aqueduct.cli.send import progress
from aqueduct.errors import ChannelError, EndOfChannel, MessageError
from aqueduct.runtime.headers import Headers
from aqueduct.runtime.ports import Message
from aqueduct.security import ServerTLS

_NAME = 200
"""Bytes of a file's name that are kept; file systems take 255, and there may be a number behind."""
_SHOWN = 2_000
"""Characters of a payload that people get to see."""


def listen(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Port 0 takes a free one.")
    ] = "127.0.0.1:4433",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", file_okay=False, help="Keep files here.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="End after so many messages; 0 for never.")
    ] = 0,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print payloads as they are, a line each.")
    ] = False,
    cert: options.Certificate = None,
    key: options.Key = None,
    grace: options.Grace = 5.0,
    trace: options.Trace = None,
    as_json: options.Json = False,
) -> None:
    """Print the messages that arrive, and those on the channels that they carry.

    Says on standard error where it listens; with --json in the first line on standard output.

    Example: aqueduct listen 127.0.0.1:4433 --out received
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            running.fail(f"cannot keep files in {out}: {error.strerror}")
    printer: Printer = JsonPrinter() if as_json else RawPrinter() if raw else Printer()
    desk = Desk(printer, out, count, options.chosen_trace(trace))
    running.run(desk.serve(address, options.chosen_tls(cert, key), grace))


class Printer:
    """Shows messages to people; what could steer a terminal is escaped."""

    def listening(self, address: str) -> None:
        """The server is ready."""
        running.notes.print(f"listening on {address}", markup=False)

    def message(self, label: str, message: Message[bytes]) -> None:
        """A message came on the channel with a label."""
        shown = readable(message.payload)
        headers = "".join(f" {name}={value}" for name, value in texts(message.headers))
        running.write_line(f"{label}{shown}{' |' if headers else ''}{headers}")

    def file(self, name: str, size: int, path: Path | None) -> None:
        """A file came."""
        where = f", kept as {path}" if path is not None else ""
        running.write_line(f"{readable(name.encode())}: {size:,} bytes{where}")

    def ended(self, label: str, error: ChannelError) -> None:
        """A channel ended badly."""
        running.notes.print(running.plain(f"{label}{error}"), markup=False)


class RawPrinter(Printer):
    """Writes payloads as they are."""

    def message(self, label: str, message: Message[bytes]) -> None:
        """The payload and a line end."""
        running.write(message.payload + b"\n")


class JsonPrinter(Printer):
    """Prints an object a line."""

    def listening(self, address: str) -> None:
        """The server is ready."""
        running.write_object(listening=address)

    def message(self, label: str, message: Message[bytes]) -> None:
        """Text where the payload is text, else its bytes in hexadecimal."""
        try:
            content = {"text": message.payload.decode()}
        except UnicodeDecodeError:
            content = {"hex": message.payload.hex()}
        channel = label.strip("[] ")
        running.write_object(
            channel=channel,
            number=message.number,
            **content,
            headers=[list(pair) for pair in texts(message.headers)],
        )

    def file(self, name: str, size: int, path: Path | None) -> None:
        """A file came."""
        running.write_object(file=name, size=size, path=None if path is None else str(path))

    def ended(self, label: str, error: ChannelError) -> None:
        """A channel ended badly."""
        channel = label.strip("[] ")
        running.write_object(channel=channel, error=type(error).__name__, reason=str(error))


@dataclass
class Desk:
    """Takes what arrives and gives it to a printer."""

    printer: Printer
    out: Path | None
    count: int
    trace: Path | None
    taken: int = 0
    channels: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, address: str, tls: ServerTLS, grace: float) -> None:
        """Listen until Ctrl-C, or until there were enough messages."""
        serving = serve(address, bytes, tls=tls, trace=self.trace)
        async with running.interrupts() as stop, serving as server:
            self.enough = stop
            self.printer.listening(server.address)
            await running.serve_until_interrupted(server, self.handle, stop, grace)

    async def handle(self, connection: Connection[bytes]) -> None:
        """Read everything a client sends."""
        async with asyncio.TaskGroup() as group:
            await self._read(connection.entrypoint, "", group)

    async def _read(self, receiver: Receiver[bytes], label: str, group: asyncio.TaskGroup) -> None:
        async with receiver:
            while True:
                try:
                    message = await receiver.receive_message()
                except MessageError:
                    continue
                except EndOfChannel:
                    return
                except ChannelError as error:
                    if label:
                        self.printer.ended(label, error)
                    return
                self._take(message, label, group)

    def _take(self, message: Message[bytes], label: str, group: asyncio.TaskGroup) -> None:
        is_file = False
        for half in message.attachments:
            if isinstance(half, Sender):
                half.cancel()  # nobody here has an answer
            elif half.headers.text("name"):
                is_file = True
                group.create_task(self._keep(half))
            else:
                self.channels += 1
                group.create_task(self._read(half, f"[{self.channels}] ", group))
        if not is_file:
            self.printer.message(label, message)
            self._count()

    async def _keep(self, receiver: Receiver[bytes]) -> None:
        """Receive a file; one that breaks off leaves nothing behind."""
        name = receiver.headers.text("name") or ""
        stated = receiver.headers.text("size") or ""
        total = int(stated) if stated.isascii() and stated.isdigit() else None
        path, file = (None, None) if self.out is None else create(self.out, name)
        size = 0
        try:
            async with receiver:
                with progress(name, total) as advance:
                    async for chunk in receiver:
                        if file is not None:
                            file.write(chunk)
                        size += len(chunk)
                        advance(len(chunk))
        except BaseException as error:
            if file is not None and path is not None:
                file.close()
                path.unlink(missing_ok=True)
            if not isinstance(error, ChannelError):
                raise
            self.printer.ended(f"[{name}] ", error)
            return
        if file is not None:
            file.close()
        self.printer.file(name, size, path)
        self._count()

    def _count(self) -> None:
        self.taken += 1
        if self.taken == self.count:
            self.enough.set()


def create(directory: Path, name: str) -> tuple[Path, BinaryIO]:
    """A new file in a directory; a name that is taken, or leads elsewhere, is changed."""
    plain = "".join(c for c in name.replace("\\", "/").split("/")[-1] if c.isprintable())
    plain = plain.encode()[:_NAME].decode(errors="ignore")
    if plain.strip(". ") == "":
        plain = "file"
    for number in range(1, 10_000):
        path = directory / (plain if number == 1 else f"{plain}.{number}")
        try:
            return path, path.open("xb")
        except FileExistsError:
            continue
    raise OSError(f"too many files named {plain} in {directory}")


def readable(payload: bytes) -> str:
    """A payload as text of one line, with escapes for what is not printable."""
    text = payload[: 4 * _SHOWN].decode(errors="backslashreplace")[:_SHOWN]
    shown = running.plain(text)
    return shown if len(payload) <= _SHOWN else f"{shown}… ({len(payload):,} bytes)"


def texts(headers: Headers) -> list[tuple[str, str]]:
    """Headers as people read them."""
    return [(readable(name), readable(value)) for name, value in headers]
