"""``aqueduct ipc``: sends messages over ScalableIPC, and prints received ones."""

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
from aqueduct.ipc.core.pdu import MAX_INT32
from aqueduct.ipc.core.settings import MIN_MESSAGE, IpcSettings
from aqueduct.ipc.endpoint import Endpoint
from aqueduct.ipc.message import ReceivedMessage
from aqueduct.security import ServerTLS, Trust

PARALLEL = 64
_SHOWN = 10
"""The most failures printed one by one; further ones are only counted."""
_LISTED = 1_000
"""The most failures listed with --json."""
_RATED = 256 * 1024
"""The least bytes for which a rate is printed."""
_DEFAULTS = IpcSettings()

app = typer.Typer(
    help="Messages without connections, between processes or hosts (ScalableIPC).\n\n"
    "Example: aqueduct ipc listen udp://127.0.0.1:5000",
    no_args_is_help=True,
)


@app.command()
def send(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="udp://HOST:PORT or tls://HOST:PORT.")
    ],
    texts: options.Texts = None,
    files: options.Files = None,
    whole: options.Whole = False,
    parallel: Annotated[
        int,
        typer.Option("--parallel", "-p", min=1, max=16_384, help="The most messages in flight."),
    ] = PARALLEL,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.001,
            metavar="SECONDS",
            help="Abandon a message after this time; without an answer, after 5 s.",
        ),
    ] = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
) -> None:
    """Send messages, and wait until the receiver has processed each.

    Exits with 0 if it processed all of them; otherwise prints which failed and why, and exits
    with 1. Messages are sent concurrently and may arrive in another order; --parallel 1 keeps it.

    Example: aqueduct ipc send udp://127.0.0.1:5000 hello world

    Example: tail -f log | aqueduct ipc send udp://127.0.0.1:5000

    Example: aqueduct ipc send tls://example.com:5000 --system --file picture.png
    """
    if texts and files:
        raise typer.BadParameter("give texts or --file, not both")
    target = _parse(address)
    if not target.host or not target.port:
        running.fail(f"not an address to send to: {address!r}; write {target.scheme}://host:port")
    trust = None
    if target.scheme == "tls":
        trust = options.client_trust(ca, pin, system)
    elif ca is not None or pin is not None or system:
        raise typer.BadParameter("--ca, --pin and --system are for tls:// addresses")
    job = IpcSendRun(address, timeout, parallel)
    if files:
        largest = max(files, key=_size)
        if _size(largest) > MAX_INT32:
            raise typer.BadParameter(f"{largest} is too large for a message", param_hint="--file")
        running.run(job.run(target, trust, _contents(files), sum(map(_size, files)), as_json))
    elif texts:
        running.run(job.run(target, trust, _numbered(encoded(texts)), None, as_json))
    else:
        total = None if sys.stdin.isatty() else 0
        running.run(job.run(target, trust, _numbered(standard_input(whole)), total, as_json))


@app.command()
def listen(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="udp://HOST:PORT or tls://HOST:PORT; port 0 selects a free port.",
        ),
    ] = "udp://127.0.0.1:0",
    count: options.Count = 0,
    raw: options.Raw = False,
    max_message: Annotated[
        int,
        typer.Option(
            "--max-message",
            min=MIN_MESSAGE,
            max=MAX_INT32,
            metavar="BYTES",
            help="The largest message accepted.",
        ),
    ] = _DEFAULTS.max_message,
    cert: options.Certificate = None,
    key: options.Key = None,
    as_json: options.Json = False,
) -> None:
    """Print messages that arrive, and acknowledge each one after it is printed.

    Prints its address on standard error. With --json, the first line on standard output is an
    object with the address, and each further line one with from, id, size and payload_base64.

    Example: aqueduct ipc listen udp://127.0.0.1:5000

    Example: aqueduct ipc listen udp://127.0.0.1:0 --json --count 1

    Example: aqueduct ipc listen tls://0.0.0.0:5000 --cert cert.pem --key key.pem
    """
    target = _parse(address)
    tls = None
    if target.scheme == "tls":
        if not target.host:
            running.fail(f"not an address to listen at: {address!r}; write tls://host:port")
        tls = options.server_tls(cert, key)
    elif cert is not None or key is not None:
        raise typer.BadParameter("--cert and --key are for tls:// addresses")
    config = IpcSettings(
        max_message=max_message, max_received=max(_DEFAULTS.max_received, 2 * max_message)
    )
    running.run(IpcListenRun(count, raw, as_json).serve(address, tls, config))


@dataclass
class IpcListenRun:
    """Receives the messages of one command, and prints them."""

    count: int
    raw: bool
    as_json: bool
    taken: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    failure: OSError | None = None

    async def serve(self, address: str, tls: ServerTLS | None, config: IpcSettings) -> None:
        """Print until Ctrl-C, until ``count`` messages, or until the output is closed."""
        endpoint = Endpoint(address, on_message=self.take, tls=tls, config=config)
        async with running.interrupts() as self.stop, _opened(endpoint):
            if self.as_json:
                running.write_object(address=endpoint.address)
            else:
                address = f"listening on {endpoint.address}"
                running.notes.print(address, markup=False, soft_wrap=True)
            await self.stop.wait()
        if self.failure is not None:
            raise self.failure

    def take(self, message: ReceivedMessage[bytes]) -> Awaitable[None] | None:
        """Print a message; it is acknowledged after this returns, so that none is lost."""
        if not self.stop.is_set():
            try:
                self._print(message)
            except OSError as error:
                self.failure = error
                self.stop.set()
            else:
                self.taken += 1
                if self.taken == self.count:
                    self.stop.set()
                return None
        return asyncio.get_running_loop().create_future()  # not printed: never acknowledge it

    def _print(self, message: ReceivedMessage[bytes]) -> None:
        if self.as_json:
            shown = {
                "from": message.source,
                "id": str(message.id),
                "size": len(message.payload),
                "payload_base64": base64.b64encode(message.payload).decode(),
            }
            running.write_object(**shown)
        elif self.raw:
            running.write(message.payload + b"\n")
        else:
            running.write_line(f"{message.source}: {readable(message.payload)}")


class OutgoingMessage(NamedTuple):
    """A message to send."""

    number: int
    name: str | None
    """The name of the file, if the message is one."""
    payload: bytes


@dataclass
class IpcSendRun:
    """The messages of one command, and the outcome of each."""

    address: str
    timeout: float | None
    parallel: int
    messages: int = 0
    size: int = 0
    given_up: int = 0
    failed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    fatal: BaseException | None = None
    """Why nothing can be sent to the address, or no more input can be read."""
    advance: Callable[[int], object] = abs
    """Called with the number of bytes acknowledged; advances the progress bar, if there is one."""

    async def run(
        self,
        target: ParsedAddress,
        trust: Trust | None,
        outgoing: AsyncIterator[OutgoingMessage],
        total: int | None,
        as_json: bool,
    ) -> int:
        """Send all messages, wait for acknowledgements and report.

        ``total`` is the number of bytes, 0 if it is unknown, None to show no progress.
        """
        async with running.interrupts() as stop, _opened(await _sender(target, trust)) as endpoint:
            start = time.perf_counter()
            with contextlib.ExitStack() as stack:
                if total is not None:
                    self.advance = stack.enter_context(progress(self.address, total or None))
                done = await running.until(stop, self._send_all(endpoint, outgoing))
            took = time.perf_counter() - start
        self._report(took, as_json)
        if self.fatal is not None:
            raise self.fatal
        if not done:
            return running.INTERRUPTED
        return running.FAILED if self.failed else 0

    async def _send_all(
        self, endpoint: Endpoint[bytes], outgoing: AsyncIterator[OutgoingMessage]
    ) -> None:
        slots = asyncio.Semaphore(self.parallel)
        try:
            async with asyncio.TaskGroup() as group:
                async for message in outgoing:
                    await slots.acquire()
                    sending = group.create_task(self._send(endpoint, message))
                    sending.add_done_callback(lambda _: slots.release())
        except* (AqueductError, OSError) as errors:
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            self.fatal = first

    async def _send(self, endpoint: Endpoint[bytes], message: OutgoingMessage) -> None:
        try:
            await endpoint.send(self.address, message.payload, timeout=self.timeout)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        except (DeliveryError, MessageError) as error:
            self._fail(message, error)
        else:
            self.messages += 1
            self.size += len(message.payload)
            self.advance(len(message.payload))

    def _fail(self, message: OutgoingMessage, error: DeliveryError | MessageError) -> None:
        self.failed += 1
        if self.failed <= _SHOWN:
            which = f"message {message.number}" if message.name is None else message.name
            line = running.printable(f"aqueduct: {which}: {error}")
            running.notes.print(line, markup=False, soft_wrap=True)
        if len(self.failures) < _LISTED:
            self.failures.append(
                {
                    "number": message.number,
                    "file": message.name,
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
        if self.fatal is not None and not self.messages:
            return  # the error follows
        rate = self.size / max(took, 1e-9) / 1e6
        running.notes.print(
            f"{self.messages:,} messages, {self.size:,} bytes acknowledged in {took:.2f} s"
            + (f", {rate:.1f} MB/s" if self.size > _RATED else "")
            + (f"; {self.failed:,} failed" if self.failed else "")
            + (f"; {self.given_up:,} given up" if self.given_up else ""),
            soft_wrap=True,
        )


def _parse(address: str) -> ParsedAddress:
    """Parse an address; exit with a message if it is invalid."""
    try:
        return parse(address, schemes=("udp", "tls"))
    except ConnectError as error:
        running.fail(str(error))


@contextlib.asynccontextmanager
async def _opened(endpoint: Endpoint[bytes]) -> AsyncIterator[Endpoint[bytes]]:
    """Open an endpoint, and print its warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await endpoint.open()
    for warning in warned:
        line = running.printable(f"aqueduct: {warning.message}")
        running.notes.print(line, markup=False, soft_wrap=True)
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def _sender(target: ParsedAddress, trust: Trust | None) -> Endpoint[bytes]:
    """Return an endpoint on a free port that can send to an address."""
    if target.scheme == "tls":
        return Endpoint("tls://", trust=trust)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise ConnectError(f"cannot find {target.host!r}: {error.strerror}") from None
    address = ipaddress.ip_address(str(found[0][4][0]))
    if address.version == 6:
        return Endpoint("udp://[::1]:0" if address.is_loopback else "udp://[::]:0")
    return Endpoint("udp://127.0.0.1:0" if address.is_loopback else "udp://0.0.0.0:0")


def _size(path: Path) -> int:
    return path.stat().st_size


async def _numbered(payloads: AsyncIterator[bytes]) -> AsyncIterator[OutgoingMessage]:
    number = 0
    async for payload in payloads:
        number += 1
        yield OutgoingMessage(number, None, payload)


async def _contents(paths: Sequence[Path]) -> AsyncIterator[OutgoingMessage]:
    for number, path in enumerate(paths, 1):
        yield OutgoingMessage(number, str(path), await asyncio.to_thread(path.read_bytes))
