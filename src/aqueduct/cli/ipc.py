"""``aqueduct ipc``: messages to an endpoint of ScalableIPC, and an endpoint that prints them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import socket
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from aqueduct.cli import options, running
from aqueduct.cli.listen import readable
from aqueduct.cli.send import encoded, progress, standard_input
from aqueduct.errors import AqueductError, ConnectError, DeliveryError, MessageError
from aqueduct.ipc.address import ParsedAddress, parse
from aqueduct.ipc.core.config import MIN_MESSAGE, Config
from aqueduct.ipc.core.pdu import MAX_INT32
from aqueduct.ipc.endpoint import Endpoint
from aqueduct.ipc.message import ReceivedMessage
from aqueduct.security import ServerTLS, Trust

PARALLEL = 64
_SHOWN = 10
"""Failures that people get to see one by one; the rest are counted."""
_LISTED = 1_000
"""Failures that programs get to see one by one."""
_RATED = 256 * 1024
"""Bytes from which on a rate says something."""

app = typer.Typer(
    help="Messages without connections: between processes of a host, or hosts.",
    no_args_is_help=True,
)


@app.command()
def send(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="udp://HOST:PORT or tls://HOST:PORT.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="A message each; else lines of standard input."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            "-f",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Send a file as one message; repeat.",
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="All of standard input is one message.")
    ] = False,
    parallel: Annotated[
        int, typer.Option("--parallel", "-p", min=1, max=16_384, help="Messages sent at once.")
    ] = PARALLEL,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.001,
            metavar="SECONDS",
            help="Give a message up after this; without an answer it is after 5 s anyway.",
        ),
    ] = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
) -> None:
    """Send messages, and wait until the receiver has taken each.

    Exits with 0 if it has taken all of them, else with 1 after saying which failed and why.
    Several are sent at once, and may arrive in another order; --parallel 1 keeps it.

    Example: aqueduct ipc send udp://127.0.0.1:5000 hello world

    Example: tail -f log | aqueduct ipc send udp://127.0.0.1:5000

    Example: aqueduct ipc send tls://example.com:5000 --system --file picture.png
    """
    if texts and files:
        raise typer.BadParameter("give texts or --file, not both")
    place = _place(address)
    if not place.host or not place.port:
        running.fail(f"not an address to send to: {address!r}; write {place.scheme}://host:port")
    trust = None
    if place.scheme == "tls":
        trust = options.chosen_trust(ca, pin, system)
    elif ca is not None or pin is not None or system:
        raise typer.BadParameter("--ca, --pin and --system are for tls:// addresses")
    job = Job(address, timeout, parallel)
    if files:
        largest = max(files, key=_size)
        if _size(largest) > MAX_INT32:
            raise typer.BadParameter(f"{largest} is too large for a message", param_hint="--file")
        running.run(job.run(place, trust, _contents(files), sum(map(_size, files)), as_json))
    elif texts:
        running.run(job.run(place, trust, _numbered(encoded(texts)), None, as_json))
    else:
        total = None if sys.stdin.isatty() else 0
        running.run(job.run(place, trust, _numbered(standard_input(whole)), total, as_json))


@app.command()
def listen(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="udp://HOST:PORT or tls://HOST:PORT; port 0 takes a free one."
        ),
    ] = "udp://127.0.0.1:0",
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="End after so many messages; 0 for never.")
    ] = 0,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print payloads as they are, a line each.")
    ] = False,
    max_message: Annotated[
        int,
        typer.Option(
            "--max-message",
            min=MIN_MESSAGE,
            max=MAX_INT32,
            metavar="BYTES",
            help="The largest message taken.",
        ),
    ] = Config.max_message,
    cert: options.Certificate = None,
    key: options.Key = None,
    as_json: options.Json = False,
) -> None:
    """Print the messages that arrive; senders hear that a message was taken once it is printed.

    Says on standard error where it listens. With --json the first line on standard output is an
    object with the address, and each line after it one with from, id, size and payload_base64.

    Example: aqueduct ipc listen udp://127.0.0.1:5000

    Example: aqueduct ipc listen udp://127.0.0.1:0 --json --count 1

    Example: aqueduct ipc listen tls://0.0.0.0:5000 --cert cert.pem --key key.pem
    """
    place = _place(address)
    tls = None
    if place.scheme == "tls":
        if not place.host:
            running.fail(f"not an address to listen at: {address!r}; write tls://host:port")
        tls = options.chosen_tls(cert, key)
    elif cert is not None or key is not None:
        raise typer.BadParameter("--cert and --key are for tls:// addresses")
    printer: Printer = JsonPrinter() if as_json else RawPrinter() if raw else Printer()
    config = Config(max_message=max_message, max_received=max(Config.max_received, 2 * max_message))
    running.run(Desk(printer, count).serve(address, tls, config))


class Printer:
    """Shows messages to people; what could steer a terminal is escaped."""

    def listening(self, address: str) -> None:
        """The endpoint is ready."""
        running.notes.print(f"listening on {address}", markup=False, soft_wrap=True)

    def message(self, message: ReceivedMessage[bytes]) -> None:
        """A message came."""
        running.write_line(f"{message.source}: {readable(message.payload)}")


class RawPrinter(Printer):
    """Writes payloads as they are."""

    def message(self, message: ReceivedMessage[bytes]) -> None:
        """The payload and a line end."""
        running.write(message.payload + b"\n")


class JsonPrinter(Printer):
    """Prints an object a line."""

    def listening(self, address: str) -> None:
        """The endpoint is ready."""
        running.write_object(address=address)

    def message(self, message: ReceivedMessage[bytes]) -> None:
        """The payload in base64, as it may be anything."""
        shown = {
            "from": message.source,
            "id": str(message.id),
            "size": len(message.payload),
            "payload_base64": base64.b64encode(message.payload).decode(),
        }
        running.write_object(**shown)


@dataclass
class Desk:
    """Takes what arrives and gives it to a printer."""

    printer: Printer
    count: int
    taken: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: OSError | None = None

    async def serve(self, address: str, tls: ServerTLS | None, config: Config) -> None:
        """Print until Ctrl-C, until there were enough messages, or until nobody reads it."""
        endpoint = Endpoint(address, on_message=self.take, tls=tls, config=config)
        async with running.interrupts() as self.stop, _opened(endpoint):
            self.printer.listening(endpoint.address)
            await self.stop.wait()
        if self.trouble is not None:
            raise self.trouble

    def take(self, message: ReceivedMessage[bytes]) -> Awaitable[None] | None:
        """Print a message: it is acknowledged once this has returned, and so never lost."""
        if not self.stop.is_set():
            try:
                self.printer.message(message)
            except OSError as error:
                self.trouble = error
                self.stop.set()
            else:
                self.taken += 1
                if self.taken == self.count:
                    self.stop.set()
                return None
        return asyncio.get_running_loop().create_future()  # not printed, so it is never taken


class Parcel(NamedTuple):
    """A message to send."""

    number: int
    name: str | None
    """Of the file it is."""
    payload: bytes


@dataclass
class Job:
    """What is sent where, and what became of it."""

    address: str
    timeout: float | None
    parallel: int
    messages: int = 0
    size: int = 0
    given_up: int = 0
    failed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    hopeless: BaseException | None = None
    """Why nothing can be sent there at all, or no more can be read."""
    advance: Callable[[int], object] = abs
    """Told how many bytes were acknowledged; without a bar on the terminal nothing comes of it."""

    async def run(
        self,
        place: ParsedAddress,
        trust: Trust | None,
        parcels: AsyncIterator[Parcel],
        total: int | None,
        as_json: bool,
    ) -> int:
        """Send everything, wait for acknowledgements, report.

        ``total`` is how many bytes there are, 0 if nobody knows, None if no progress is shown.
        """
        async with running.interrupts() as stop, _opened(await _sender(place, trust)) as endpoint:
            start = time.perf_counter()
            with contextlib.ExitStack() as stack:
                if total is not None:
                    self.advance = stack.enter_context(progress(self.address, total or None))
                done = await running.until(stop, self._send_all(endpoint, parcels))
            took = time.perf_counter() - start
        self._report(took, as_json)
        if self.hopeless is not None:
            raise self.hopeless
        if not done:
            return running.INTERRUPTED
        return running.FAILED if self.failed else 0

    async def _send_all(self, endpoint: Endpoint[bytes], parcels: AsyncIterator[Parcel]) -> None:
        slots = asyncio.Semaphore(self.parallel)
        try:
            async with asyncio.TaskGroup() as group:
                async for parcel in parcels:
                    await slots.acquire()
                    sending = group.create_task(self._send(endpoint, parcel))
                    sending.add_done_callback(lambda _: slots.release())
        except* (AqueductError, OSError) as errors:
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            self.hopeless = first

    async def _send(self, endpoint: Endpoint[bytes], parcel: Parcel) -> None:
        try:
            await endpoint.send(self.address, parcel.payload, timeout=self.timeout)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        except (DeliveryError, MessageError) as error:
            self._fail(parcel, error)
        else:
            self.messages += 1
            self.size += len(parcel.payload)
            self.advance(len(parcel.payload))

    def _fail(self, parcel: Parcel, error: DeliveryError | MessageError) -> None:
        self.failed += 1
        if self.failed <= _SHOWN:
            which = f"message {parcel.number}" if parcel.name is None else parcel.name
            line = running.plain(f"aqueduct: {which}: {error}")
            running.notes.print(line, markup=False, soft_wrap=True)
        if len(self.failures) < _LISTED:
            self.failures.append(
                {
                    "number": parcel.number,
                    "file": parcel.name,
                    "address": self.address,
                    "error": type(error).__name__,
                    "reason": str(error),
                    "may_have_arrived": getattr(error, "may_have_arrived", False),
                }
            )

    def _report(self, took: float, as_json: bool) -> None:
        if as_json:
            found = {
                "messages": self.messages,
                "bytes": self.size,
                "seconds": round(took, 6),
                "failed": self.failed,
                "given_up": self.given_up,
                "failures": self.failures,
            }
            running.write_object(**found)
            return
        if self.hopeless is not None and not self.messages:
            return  # the one line that follows says it all
        rate = self.size / max(took, 1e-9) / 1e6
        running.notes.print(
            f"{self.messages:,} messages, {self.size:,} bytes acknowledged in {took:.2f} s"
            + (f", {rate:.1f} MB/s" if self.size > _RATED else "")
            + (f"; {self.failed:,} failed" if self.failed else "")
            + (f"; {self.given_up:,} given up" if self.given_up else ""),
            soft_wrap=True,
        )


def _place(address: str) -> ParsedAddress:
    """An address that other processes can have."""
    try:
        return parse(address, schemes=("udp", "tls"))
    except ConnectError as error:
        running.fail(str(error))


@contextlib.asynccontextmanager
async def _opened(endpoint: Endpoint[bytes]) -> AsyncIterator[Endpoint[bytes]]:
    """An endpoint that is there; what it warns of is said to people."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await endpoint.open()
    for warning in warned:
        line = running.plain(f"aqueduct: {warning.message}")
        running.notes.print(line, markup=False, soft_wrap=True)
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def _sender(place: ParsedAddress, trust: Trust | None) -> Endpoint[bytes]:
    """An endpoint that can send to a place, and needs no port that others know."""
    if place.scheme == "tls":
        return Endpoint("tls://", trust=trust)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise ConnectError(f"cannot find {place.host!r}: {error.strerror}") from None
    there = ipaddress.ip_address(str(found[0][4][0]))
    if there.version == 6:
        return Endpoint("udp://[::1]:0" if there.is_loopback else "udp://[::]:0")
    return Endpoint("udp://127.0.0.1:0" if there.is_loopback else "udp://0.0.0.0:0")


def _size(path: Path) -> int:
    return path.stat().st_size


async def _numbered(payloads: AsyncIterator[bytes]) -> AsyncIterator[Parcel]:
    number = 0
    async for payload in payloads:
        number += 1
        yield Parcel(number, None, payload)


async def _contents(paths: Sequence[Path]) -> AsyncIterator[Parcel]:
    for number, path in enumerate(paths, 1):
        yield Parcel(number, str(path), await asyncio.to_thread(path.read_bytes))
