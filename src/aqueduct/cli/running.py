"""Runs commands: the event loop, Ctrl-C, and errors as one line instead of a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NoReturn

import typer
from rich.console import Console

from aqueduct.api.server import ConnectionHandler, Server
from aqueduct.errors import AqueductError, Unauthenticated
from aqueduct.security import CERTIFICATE_HINT, TRUST_HINT

FAILED = 1
INTERRUPTED = 130
"""The exit code that shells use for a program that Ctrl-C ended."""

_HINTS = {
    TRUST_HINT: (
        "check the server's certificate and its name, and set the trust: --ca FILE, "
        "--pin SHA256 or --system; the default is the development certificate of this user"
    ),
    CERTIFICATE_HINT: "present one: --cert FILE --key FILE",
}
"""Hints about arguments of functions, and what they are in options of the command line."""
_TOKEN_HINT = "give the token as --token or, where others cannot see it, as $AQUEDUCT_TOKEN"

notes = Console(stderr=True, highlight=False)
"""Diagnostics for the user, on standard error; output for programs goes to standard output."""


def run(work: Coroutine[Any, Any, int | None]) -> NoReturn:
    """Run a command, with uvloop if it is installed, and exit with the code that it returns."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(work)
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe; Python must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    except (AqueductError, OSError, ValueError) as error:
        fail(explain(error))
    raise typer.Exit(code or 0)


def fail(what: str) -> NoReturn:
    """Print a line that says what is wrong, and exit with 1."""
    print(f"aqueduct: {printable(what)}", file=sys.stderr)
    raise typer.Exit(FAILED)


def explain(error: Exception) -> str:
    """Return what an error says, with a hint that names options instead of arguments."""
    if not isinstance(error, AqueductError):
        return str(error) or type(error).__name__
    hint = _HINTS.get(error.hint, error.hint)
    if not hint and isinstance(error, Unauthenticated):
        hint = _TOKEN_HINT
    return "; ".join(part for part in (error.message, hint) if part) or type(error).__name__


def write(data: bytes) -> None:
    """Write all data to standard output, and flush it.

    Without a buffer (``python -u``), a write that a signal interrupts is partial, and ``print``
    does not notice.
    """
    sys.stdout.flush()
    stream = sys.stdout.buffer
    rest = memoryview(data)
    while rest:
        try:
            written: int | None = stream.write(rest)
        except BlockingIOError as error:
            written = error.characters_written
        if not written:
            select.select([], [stream], [])  # a non-blocking pipe: wait until it can be written
        rest = rest[written or 0 :]
    while True:
        try:
            stream.flush()
        except BlockingIOError:
            select.select([], [stream], [])
        else:
            return


def write_line(line: str) -> None:
    """Write a line of text to standard output."""
    write(f"{line}\n".encode(sys.stdout.encoding, sys.stdout.errors or "strict"))


def write_object(**fields: Any) -> None:
    """Write an object to standard output as a line of JSON."""
    write_line(json.dumps(fields))


def printable(text: str) -> str:
    """Return text as one line, with control characters escaped: a peer may have written it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops, if uvloop is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.asynccontextmanager
async def interrupts() -> AsyncIterator[asyncio.Event]:
    """Provide an event that Ctrl-C and SIGTERM set, instead of ending the program.

    The second Ctrl-C cancels the current task.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stop = asyncio.Event()

    def interrupted() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for one in signals:
        loop.add_signal_handler(one, interrupted)
    try:
        yield stop
    except asyncio.CancelledError:
        if stop.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        for one in signals:
            loop.remove_signal_handler(one)


async def until(stop: asyncio.Event, work: Coroutine[Any, Any, Any]) -> bool:
    """Run until the work is done, or until the event cancels it; return whether it was done."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
    if not stop.is_set() or (working.done() and not working.cancelled()):
        await working
        return True
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return False


async def serve_until_interrupted(
    server: Server[Any], handler: ConnectionHandler, stop: asyncio.Event, grace: float
) -> None:
    """Handle connections until Ctrl-C, then wait up to ``grace`` seconds for them to end."""
    serving = asyncio.ensure_future(server.run(handler))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and server.connections:
            many = len(server.connections)
            notes.print(f"draining {many} connections for up to {grace:g} s; Ctrl-C ends them now")
        await server.drain(grace if stop.is_set() else 0)
        await serving
    finally:
        stopping.cancel()
        serving.cancel()
