"""``aqueduct ingest``: a server that stores the records of producers, and serves readers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aqueduct.cli import options, running
from aqueduct.errors import SettingError

if TYPE_CHECKING:
    from aqueduct.ingest import IngestServer


def ingest(
    directory: Annotated[
        Path, typer.Option("--dir", "-d", metavar="DIR", help="Directory of all topics.")
    ],
    listen: options.Listen = options.INGEST_ADDRESS,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Default partitions of a new topic.")
    ] = 4,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens", metavar="FILE", help="JSON file with tokens and their permissions."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="HOST:PORT", help="Serve /metrics for Prometheus at this address."
        ),
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", min=0, help="Remove segments older than this.")
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            "--keep-bytes", min=1, help="Remove the oldest segments of a partition above this size."
        ),
    ] = None,
    keep_free: Annotated[
        int,
        typer.Option(
            "--keep-free",
            min=0,
            metavar="BYTES",
            help="Free disk space below which nothing is stored.",
        ),
    ] = 256 * 1024 * 1024,
    max_record: Annotated[
        int,
        typer.Option(
            "--max-record",
            min=1,
            metavar="BYTES",
            help="The largest record: key, value and headers.",
        ),
    ] = 1024 * 1024,
    dir_mode: Annotated[
        str | None,
        typer.Option(
            "--dir-mode",
            metavar="OCTAL",
            help="Mode of topic directories (750); 755 makes topics world-readable.",
        ),
    ] = None,
    cert: options.Certificate = None,
    key: options.Key = None,
    grace: options.Grace = 5.0,
    as_json: options.Json = False,
) -> None:
    """Store the records of producers durably, exactly once, and serve them to readers.

    Prints its address on standard error and, after Ctrl-C, what it stored; with --json, both are
    lines on standard output. Acknowledged records are on disk.

    --tokens names a file such as {"a-long-token": {"write": ["logs.*"], "read": ["*"]}}. Without
    it, every client that can connect may write and read all topics.

    Example: aqueduct ingest --dir data

    Example: aqueduct ingest --dir data --listen 0.0.0.0:4434 --cert cert.pem --key key.pem
    --tokens tokens.json --metrics 127.0.0.1:9464 --keep-days 7
    """
    options.require("ingest", "ingest")
    from aqueduct.ingest import IngestServer, IngestSettings
    from aqueduct.ingest.storage.local.file_modes import check_mode

    defaults = IngestSettings()
    try:
        limits = IngestSettings(
            partitions=partitions,
            max_partitions=max(partitions, defaults.max_partitions),
            max_record=max_record,
            max_waiting=max(max_record, defaults.max_waiting),
            low_water=keep_free,
            retention_age=None if keep_days is None else keep_days * 86_400,
            retention_size=keep_bytes,
        )
        mode = None if dir_mode is None else check_mode(_octal(dir_mode))
    except SettingError as error:
        option = error.setting.replace("_", "-")
        running.fail(f"--{option}: give {error.allowed}")
    except ValueError as error:
        running.fail(str(error))
    certificate = options.server_tls(cert, key)
    make = partial(IngestServer, listen, directory, tls=certificate, limits=limits)
    running.run(_serve(partial(make, directory_mode=mode), tokens, metrics, grace, as_json))


def _octal(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise ValueError(f"--dir-mode {text!r} is not an octal mode; use 700, 750 or 755") from None


async def _serve(
    make: Callable[..., IngestServer],
    tokens: Path | None,
    metrics: str | None,
    grace: float,
    as_json: bool,
) -> None:
    from aqueduct.ingest import read_permissions
    from aqueduct.ingest.server.metrics_http import Exposition

    server = make(permissions=None if tokens is None else read_permissions(tokens))
    start = time.perf_counter()
    async with running.interrupts() as stop, contextlib.AsyncExitStack() as stack:
        await server.open()
        stack.push_async_callback(server.close, grace)
        page = None
        if metrics is not None:
            exposition = Exposition(metrics, server.metrics_text)
            page = (await stack.enter_async_context(exposition)).address
        _print_addresses(server, page, as_json)
        await running.until(stop, server.wait_closed())
    _print_totals(server, time.perf_counter() - start, as_json)


def _print_addresses(server: IngestServer, page: str | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"listening": server.address, "metrics": page}), flush=True)
        return
    running.notes.print(f"listening on {server.address}", markup=False)
    if page is not None:
        running.notes.print(f"metrics at http://{page}/metrics", markup=False)
    for topic in server.topics():
        if topic.fault:
            continue  # the log has the fault
        records = sum(part.next_offset - part.first_offset for part in topic.partitions)
        running.notes.print(f"{topic.topic}: {options.pluralize(records, 'record')}", markup=False)


def _print_totals(server: IngestServer, took: float, as_json: bool) -> None:
    counts = server.statistics()
    if as_json:
        names = ("records", "bytes", "duplicates", "refused", "segments", "rows_read")
        found = {name: getattr(counts, name) for name in names}
        print(json.dumps({**found, "seconds": round(took, 6)}))
        return
    more = "".join(
        f", {count:,} {what}"
        for count, what in (
            (counts.duplicates, "had been stored before"),
            (counts.refused, "refused"),
            (counts.rows_read, "read"),
        )
        if count
    )
    running.notes.print(
        f"{options.pluralize(counts.records, 'record')} stored{more} in {took:.0f} s"
    )
