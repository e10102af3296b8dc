"""``aqueduct produce``: stores lines of standard input in a topic of an ingest server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from aqueduct.cli import options, running
from aqueduct.cli.send import standard_input
from aqueduct.errors import AqueductError

if TYPE_CHECKING:
    from aqueduct.ingest import Producer

_SILENCE = 2.0
"""Seconds without a connection before a message is printed."""
_POLL_INTERVAL = 0.1


def produce(
    topic: Annotated[str, typer.Argument(help="Topic; created if it does not exist.")],
    server: options.IngestAddress = options.INGEST_ADDRESS,
    producer_id: Annotated[
        str | None,
        typer.Option(
            "--producer-id",
            metavar="NAME",
            help="Deduplicate: the same input under the same name is stored once.",
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="Partitions of a new topic.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key", metavar="SEPARATOR", help="The part of a line before it is the key."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, metavar="SECONDS", help="How long to retry an unreachable server."
        ),
    ] = 60.0,
    token: options.Token = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
) -> None:
    """Store each line of standard input as a record, and print the count once all are durable.

    With --producer-id, interrupted input can be repeated from the beginning: lines are numbered,
    and those already stored are skipped. Reconnects if the server restarts. Ctrl-C stores the lines
    read so far, and exits with 130.

    Example: aqueduct produce logs --producer-id monday < monday.log

    Example: tail -F events.txt | aqueduct produce events --key , --server localhost:4434
    """
    options.require("ingest", "produce")
    if key_separator == "":
        raise typer.BadParameter("a separator has at least one character", param_hint="--key")
    settings: dict[str, Any] = {
        "producer_id": producer_id,
        "trust": options.client_trust(ca, pin, system),
        "token": token,
        "partitions": partitions,
        "give_up_after": wait,
    }
    separator = None if key_separator is None else key_separator.encode()
    running.run(_run(server, topic, settings, separator, as_json))


async def _run(
    server: str, topic: str, settings: dict[str, Any], separator: bytes | None, as_json: bool
) -> int:
    from aqueduct.ingest import Producer

    producer = Producer(server, topic, **settings)
    run = _ProduceRun(server, producer, separator, settings["give_up_after"], as_json)
    try:
        return await run.run()
    finally:
        await producer.abandon()


@dataclass
class _ProduceRun:
    """The records of one command, and how many were stored."""

    server: str
    producer: Producer
    separator: bytes | None
    wait: float
    as_json: bool
    lines: int = 0
    before: int = 0
    """Records stored earlier under the same producer id."""

    async def run(self) -> int:
        """Store all lines, or those before Ctrl-C, and report."""
        start = time.perf_counter()
        failure: AqueductError | ValueError | None = None
        done = False
        with _progress(self.producer.topic) as show:
            watching = asyncio.create_task(self._watch(show))
            try:
                async with running.interrupts() as stop:
                    done = await running.until(stop, self._open())
                    if done:
                        done = await self._send(stop)
            except KeyboardInterrupt:
                done = False  # the second Ctrl-C: abandon what is not stored
            except (AqueductError, ValueError) as error:
                failure = error
            finally:
                watching.cancel()
        if failure is not None:
            raise self._explained(failure)
        self._report(time.perf_counter() - start, done)
        return 0 if done else running.INTERRUPTED

    async def _open(self) -> None:
        await self.producer.open()
        self.before = self.producer.committed

    async def _send(self, stop: asyncio.Event) -> bool:
        """Send the input; in any case, store the lines that were read."""
        try:
            return await running.until(stop, self._send_lines())
        finally:
            await self.producer.flush()

    async def _send_lines(self) -> None:
        from aqueduct.ingest import IngestError

        largest = self.producer.max_record
        try:
            async for line in standard_input(False, largest):
                key: bytes | None = None
                if self.separator is not None:
                    head, found, _ = line.partition(self.separator)
                    key = head if found else None
                if len(line) + len(key or b"") > largest:
                    raise OverflowError
                await self.producer.send(line, key=key, sequence=self.lines + 1)
                self.lines += 1
        except OverflowError:
            raise IngestError(
                f"line {self.lines + 1} is larger than the server accepts: {largest:,} bytes "
                "(its --max-record), of which a key counts twice"
            ) from None

    async def _watch(self, show: Any) -> None:
        """Show the count, and print a message while the server does not answer."""
        notified, since = False, time.monotonic()
        while True:
            show(self._stored)
            now = time.monotonic()
            if self.producer.is_connected:
                if notified:
                    running.notes.print(f"connected to {self.server}", markup=False)
                notified, since = False, now
            elif not notified and now - since >= _SILENCE:
                notified = True
                why = running.printable(
                    self.producer.disconnect_reason or f"{self.server} does not answer"
                )
                text = f"aqueduct: {why}; retrying for up to {self.wait:g} s; Ctrl-C ends that"
                running.notes.print(text, markup=False, soft_wrap=True)
            await asyncio.sleep(_POLL_INTERVAL)

    @property
    def _stored(self) -> int:
        return max(self.producer.committed - self.before, 0)

    def _explained(self, failure: Exception) -> Exception:
        """Return the error, with the number of lines stored and how to resume."""
        from aqueduct.ingest import IngestError

        if not self.lines:
            return failure
        stored = min(self.producer.committed, self.lines)
        return IngestError(
            f"{failure}; of {options.pluralize(self.lines, 'line')}, {stored:,} "
            f"{'is' if stored == 1 else 'are'} stored: give the same input with "
            f"--producer-id {self.producer.producer_id} to continue after them"
        )

    def _report(self, took: float, done: bool) -> None:
        stored, before = self._stored, self.before
        if self.as_json:
            found = {
                "topic": self.producer.topic,
                "producer_id": self.producer.producer_id,
                "lines": self.lines,
                "stored": stored,
                "stored_before": before,
                "reconnects": self.producer.reconnects,
                "seconds": round(took, 6),
                "interrupted": not done,
            }
            print(json.dumps(found))
            return
        already = f" ({before:,} had been stored before)" if before else ""
        rate = f", {stored / took:,.0f} per second" if stored > 1_000 else ""
        left = "" if done else f"; interrupted after {options.pluralize(self.lines, 'line')}"
        running.notes.print(
            f"{options.pluralize(stored, 'record')} stored{already} in {took:.2f} s{rate}{left}"
        )


@contextlib.contextmanager
def _progress(topic: str) -> Iterator[Any]:
    """Show a count on a terminal; provide a function that sets it."""
    console = running.notes
    columns = (
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.completed:,} records stored"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(running.printable(topic), total=None)
        yield lambda count: bar.update(task, completed=count)
