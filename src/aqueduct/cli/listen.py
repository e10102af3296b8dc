"""``aqueduct listen``: a server that prints the messages of all channels."""

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
from aqueduct.security import ServerTLS, Trust

_NAME = 200
"""The most bytes of a file name: file systems allow 255, and a number may be appended."""
_SHOWN = 2_000
"""The most characters of a payload that are printed."""


def listen(
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", help="Address to bind; port 0 selects a free port."),
    ] = "127.0.0.1:4433",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", file_okay=False, help="Directory for received files."),
    ] = None,
    count: options.Count = 0,
    raw: options.Raw = False,
    cert: options.Certificate = None,
    key: options.Key = None,
    client_ca: options.ClientAuthority = None,
    grace: options.Grace = 5.0,
    trace: options.TraceDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Print messages that arrive, and those on channels attached to them.

    Prints its address on standard error; with --json, as the first line on standard output.

    Example: aqueduct listen 127.0.0.1:4433 --out received
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            running.fail(f"cannot keep files in {out}: {error.strerror}")
    printer: Printer = JsonPrinter() if as_json else RawPrinter() if raw else Printer()
    listening = ListenRun(printer, out, count, options.trace_directory(trace))
    tls, clients = options.server_tls(cert, key), options.trust_in_clients(client_ca)
    running.run(listening.serve(address, tls, clients, grace))


class Printer:
    """Prints messages for people, with control characters escaped."""

    def listening(self, address: str) -> None:
        """Print the address of the server."""
        running.notes.print(f"listening on {address}", markup=False)

    def message(self, label: str, message: Message[bytes]) -> None:
        """Print a message of the channel with a label."""
        shown = readable(message.payload)
        headers = "".join(f" {name}={value}" for name, value in texts(message.headers))
        running.write_line(f"{label}{shown}{' |' if headers else ''}{headers}")

    def file(self, name: str, size: int, path: Path | None) -> None:
        """Print that a file was received."""
        where = f", kept as {path}" if path is not None else ""
        running.write_line(f"{readable(name.encode())}: {size:,} bytes{where}")

    def ended(self, label: str, error: ChannelError) -> None:
        """Print why a channel ended with an error."""
        running.notes.print(running.printable(f"{label}{error}"), markup=False)


class RawPrinter(Printer):
    """Prints payloads unescaped."""

    def message(self, label: str, message: Message[bytes]) -> None:
        """Print the payload and a line end."""
        running.write(message.payload + b"\n")


class JsonPrinter(Printer):
    """Prints one JSON object per line."""

    def listening(self, address: str) -> None:
        """Print the address of the server."""
        running.write_object(listening=address)

    def message(self, label: str, message: Message[bytes]) -> None:
        """Print the payload as text if it is UTF-8, otherwise in hexadecimal."""
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
        """Print that a file was received."""
        running.write_object(file=name, size=size, path=None if path is None else str(path))

    def ended(self, label: str, error: ChannelError) -> None:
        """Print why a channel ended with an error."""
        channel = label.strip("[] ")
        running.write_object(channel=channel, error=type(error).__name__, reason=str(error))


@dataclass
class ListenRun:
    """Receives messages and files of one command, and passes them to a printer."""

    printer: Printer
    out: Path | None
    count: int
    trace: Path | None
    taken: int = 0
    channels: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(
        self, address: str, tls: ServerTLS, clients: Trust | None, grace: float
    ) -> None:
        """Listen until Ctrl-C, or until ``count`` messages have arrived."""
        serving = serve(address, bytes, tls=tls, client_trust=clients, trace=self.trace)
        async with running.interrupts() as stop, serving as server:
            self.enough = stop
            self.printer.listening(server.address)
            await running.serve_until_interrupted(server, self.handle, stop, grace)

    async def handle(self, connection: Connection[bytes]) -> None:
        """Read all channels of a client."""
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
                half.cancel()  # this command does not answer
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
        """Receive a file; remove it if the transfer is incomplete."""
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
    """Create a file in a directory; change a name that exists or contains a path."""
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
    """Return a payload as one line of text, with other characters escaped."""
    text = payload[: 4 * _SHOWN].decode(errors="backslashreplace")[:_SHOWN]
    shown = running.printable(text)
    return shown if len(payload) <= _SHOWN else f"{shown}… ({len(payload):,} bytes)"


def texts(headers: Headers) -> list[tuple[str, str]]:
    """Return headers as printable text."""
    return [(readable(name), readable(value)) for name, value in headers]
