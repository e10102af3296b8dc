"""``aqueduct ingest``, ``produce`` and ``topics``: records into topics, and what is there."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from aqueduct.cli import options, running
from aqueduct.cli.send import standard_input

if TYPE_CHECKING:
    from aqueduct.ingest import IngestLimits, IngestServer, TopicInfo

SERVER = "127.0.0.1:4434"
_TOKEN = "AQUEDUCT_TOKEN"

Server = Annotated[
    str, typer.Option("--server", "-s", metavar="HOST:PORT", help="The ingest server.")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar=_TOKEN, metavar="TOKEN", help=f"Who you are; better as ${_TOKEN}."
    ),
]


def ingest(
    directory: Annotated[
        Path, typer.Option("--dir", "-d", file_okay=False, help="Where everything is stored.")
    ],
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Port 0 takes a free one.")
    ] = SERVER,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Of a topic whose producer does not say.")
    ] = 4,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", dir_okay=False, help="JSON file: who may write and read what."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics for Prometheus here."),
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", min=0, help="Remove segments older than this.")
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option("--keep-bytes", min=1, help="Keep a partition below this size."),
    ] = None,
    keep_free: Annotated[
        int,
        typer.Option("--keep-free", min=0, metavar="BYTES", help="Store nothing below this."),
    ] = 256 * 1024 * 1024,
    max_record: Annotated[
        int, typer.Option("--max-record", min=1, metavar="BYTES", help="The largest record.")
    ] = 1024 * 1024,
    cert: options.Certificate = None,
    key: options.Key = None,
    grace: options.Grace = 5.0,
    as_json: options.Json = False,
) -> None:
    """Store what producers send, durably and once each, and serve it to readers.

    Says on standard error where it listens; with --json in a line on standard output.

    Example: aqueduct ingest --dir data --listen 127.0.0.1:4434
    """
    _need_pyarrow()
    from aqueduct.ingest import IngestLimits

    limits = IngestLimits(
        partitions=partitions,
        max_partitions=max(partitions, IngestLimits.max_partitions),
        max_record=max_record,
        max_waiting=max(max_record, IngestLimits.max_waiting),
        low_water=keep_free,
        retention_age=None if keep_days is None else keep_days * 86_400,
        retention_size=keep_bytes,
    )
    certificate = options.chosen_tls(cert, key)
    running.run(_serve(listen, directory, certificate, limits, tokens, metrics, grace, as_json))


async def _serve(
    listen: str,
    directory: Path,
    tls: Any,
    limits: IngestLimits,
    tokens: Path | None,
    metrics: str | None,
    grace: float,
    as_json: bool,
) -> None:
    from aqueduct.ingest import IngestServer, read_permissions
    from aqueduct.ingest.exposition import Exposition

    permissions = None if tokens is None else read_permissions(tokens)
    server = IngestServer(listen, directory, tls=tls, limits=limits, permissions=permissions)
    async with running.interrupts() as stop, contextlib.AsyncExitStack() as stack:
        await server.open()
        stack.push_async_callback(server.close, grace)
        page = None
        if metrics is not None:
            exposition = Exposition(metrics, server.metrics_text)
            page = (await stack.enter_async_context(exposition)).address
        _say_where(server, page, as_json)
        await running.until(stop, server.wait_closed())


def _say_where(server: IngestServer, page: str | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"listening": server.address, "metrics": page}), flush=True)
        return
    running.notes.print(f"listening on {server.address}", markup=False)
    if page is not None:
        running.notes.print(f"metrics at http://{page}/metrics", markup=False)
    for topic in server.topics():
        records = sum(part.next_offset - part.first_offset for part in topic.partitions)
        running.notes.print(f"{topic.topic}: {records:,} records", markup=False)


def produce(
    topic: Annotated[str, typer.Argument(help="Made if it is new.")],
    server: Server = SERVER,
    producer_id: Annotated[
        str | None,
        typer.Option(
            "--producer-id",
            metavar="NAME",
            help="Send the same input again under the same name, and only what is new is stored.",
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="Of a topic that is new.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key", metavar="SEPARATOR", help="What is before it in a line is the key."),
    ] = None,
    token: Token = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
) -> None:
    """Store each line of standard input as a record, and say how many once all are durable.

    With --producer-id, input that was interrupted can be given again from its beginning: lines are
    counted, and those that are stored already are skipped.

    Example: aqueduct produce logs < access.log

    Example: tail -F events.txt | aqueduct produce events --key , --server localhost:4434
    """
    _need_pyarrow()
    trust = options.chosen_trust(ca, pin, system)
    settings: dict[str, Any] = {
        "producer_id": producer_id,
        "trust": trust,
        "token": token,
        "partitions": partitions,
    }
    separator = None if key_separator is None else key_separator.encode()
    running.run(_produce(server, topic, settings, separator, as_json))


async def _produce(
    server: str, topic: str, settings: dict[str, Any], separator: bytes | None, as_json: bool
) -> int:
    from aqueduct.ingest import Producer

    start = time.perf_counter()
    async with running.interrupts() as stop:
        producer = Producer(server, topic, **settings)
        async with producer:
            before = producer.committed
            with _progress(topic) as show:
                watching = asyncio.create_task(_watch(producer, show))
                try:
                    done = await running.until(stop, _send_lines(producer, separator))
                    await producer.flush()
                finally:
                    watching.cancel()
    took = time.perf_counter() - start
    stored = producer.committed - before
    if as_json:
        found = {
            "topic": topic,
            "producer_id": producer.producer_id,
            "stored": stored,
            "stored_before": before,
            "reconnects": producer.reconnects,
            "seconds": round(took, 6),
        }
        print(json.dumps(found))
    else:
        already = f" ({before:,} had been stored before)" if before else ""
        rate = f", {stored / took:,.0f} a second" if stored > 1_000 else ""
        running.notes.print(f"{stored:,} records stored{already} in {took:.2f} s{rate}")
    return 0 if done else running.INTERRUPTED


async def _send_lines(producer: Any, separator: bytes | None) -> None:
    number = 0
    async for line in standard_input(False):
        number += 1
        key: bytes | None = None
        if separator is not None:
            before, found, _ = line.partition(separator)
            key = before if found else None
        await producer.send(line, key=key, sequence=number)


async def _watch(producer: Any, show: Any) -> None:
    while True:
        show(producer.committed)
        await asyncio.sleep(0.1)


@contextlib.contextmanager
def _progress(topic: str) -> Any:
    """A count on the terminal, if there is one; gives a function that sets it."""
    console = running.notes
    columns = (
        TextColumn(running.plain(topic), markup=False),
        TextColumn("{task.completed:,} records stored"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.update(task, completed=count)


def topics(
    name: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this one.")] = None,
    server: Server = SERVER,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", "-d", file_okay=False, help="Look into a directory instead."),
    ] = None,
    token: Token = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
) -> None:
    """List topics: their partitions, offsets, times and sizes.

    Example: aqueduct topics --server localhost:4434

    Example: aqueduct topics --dir data --json
    """
    _need_pyarrow()
    if directory is not None:
        running.run(_look(directory, name, as_json))
    else:
        trust = options.chosen_trust(ca, pin, system)
        running.run(_ask(server, name, trust, token, as_json))


async def _look(directory: Path, name: str | None, as_json: bool) -> None:
    from aqueduct.ingest import DirectoryReader

    _show(DirectoryReader(directory).topics(name), as_json)


async def _ask(server: str, name: str | None, trust: Any, token: str | None, as_json: bool) -> None:
    from aqueduct.ingest import Reader

    async with Reader(server, trust=trust, token=token) as reader:
        _show(await reader.topics(name), as_json)


def _show(found: list[TopicInfo], as_json: bool) -> None:
    if as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())
        return
    if not found:
        running.notes.print("there are no topics")
        return
    table = Table("topic", "partition", "first", "next", "bytes", "first stored", "last stored", "")
    for topic in found:
        for part in topic.partitions:
            table.add_row(
                topic.topic,
                str(part.partition),
                f"{part.first_offset:,}",
                f"{part.next_offset:,}",
                f"{part.size:,}",
                _time(part.first_time),
                _time(part.last_time),
                running.plain(part.fault),
            )
        for reader, offsets in topic.readers.items():
            where = ", ".join(f"{number}: {offset:,}" for number, offset in offsets.items())
            table.add_row(topic.topic, "", "", "", "", "", "", f"reader {reader} is at {where}")
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _time(microseconds: int | None) -> str:
    if microseconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(microseconds / 1e6))


def _need_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        running.fail("ingest needs pyarrow: pip install 'aqueduct-channels[ingest]'")
