"""``aqueduct pipeline``: telemetry from devices through channels, ingest and Spark to tables."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table

from aqueduct.cli import options, running

if TYPE_CHECKING:
    from aqueduct.spark.pipeline.run import Status
    from aqueduct.spark.pipeline.settings import PipelineSettings
    from aqueduct.spark.pipeline.summary import Summary

_LINE_INTERVAL = 2.0
"""Seconds between two lines of progress without a terminal."""


def pipeline(
    master: Annotated[
        str, typer.Option("--master", metavar="MASTER", help="Spark master URL.")
    ] = "local[*]",
    servers: Annotated[
        str | None,
        typer.Option(
            "--servers", metavar="HOST:PORT,…", help="Running ingest servers (default: start one)."
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address of the ingest server that is started."
        ),
    ] = "127.0.0.1:0",
    topic: Annotated[
        str, typer.Option("--topic", help="Topic; with several servers TOPIC-1, TOPIC-2, …")
    ] = "telemetry",
    devices: Annotated[int, typer.Option("--devices", min=1, help="Number of devices.")] = 12,
    rate: Annotated[
        float, typer.Option("--rate", min=1, metavar="N", help="Records per second of all devices.")
    ] = 2_000.0,
    duration: Annotated[
        float,
        typer.Option(
            "--duration",
            min=0,
            metavar="SECONDS",
            help="How long devices send; 0 runs until Ctrl-C.",
        ),
    ] = 30.0,
    loss: Annotated[
        float,
        typer.Option(
            "--loss", min=0, max=0.3, help="Fraction of packets that the simulated network drops."
        ),
    ] = 0.01,
    trigger: Annotated[
        float,
        typer.Option("--trigger", min=0.1, metavar="SECONDS", help="Interval of micro-batches."),
    ] = 0.5,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulated measurements.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Tables and report (default: aqueduct-pipeline/<time>)."
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf", metavar="NAME=VALUE", help="Spark configuration property; repeatable."
        ),
    ] = None,
    token: options.Token = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
) -> None:
    """Send telemetry of simulated devices through ingest to Spark tables, and write a report.

    Devices send over ordered, unordered and unreliable channels to a gateway, which stores the
    records in an ingest server. Spark reads them as a stream and writes two tables: readings, with
    every record, and windows, with aggregates by device. Finally every record is accounted for.

    Ctrl-C stops the devices, waits until their records are in the tables, writes the report and
    exits with 130; a second Ctrl-C exits at once. --out must be new or empty. With a --master on
    another host, --out must be a directory that all workers share.

    Example: aqueduct pipeline --duration 20 --rate 5000

    Example: aqueduct pipeline --master spark://host:7077 --servers host:4434 --duration 0
    --out /shared/telemetry --conf spark.executor.memory=2g
    """
    options.require("spark", "pipeline")
    from aqueduct.spark.pipeline.settings import PipelineError, PipelineSettings

    addresses = tuple(each.strip() for each in servers.split(",")) if servers else ()
    if not addresses and (ca or pin or system):
        raise typer.BadParameter("--ca, --pin and --system go with --servers")
    if addresses and listen != "127.0.0.1:0":
        raise typer.BadParameter("--listen and --servers exclude each other")
    settings = PipelineSettings(
        out=out or Path("aqueduct-pipeline") / f"{datetime.now():%Y%m%d-%H%M%S}",  # noqa: DTZ005
        master=master,
        servers=addresses,
        listen=listen,
        topic=topic,
        devices=devices,
        rate=rate,
        duration=duration,
        loss=loss,
        seed=seed,
        trigger=trigger,
        spark=_spark_settings(conf or []),
        trust=options.client_trust(ca, pin, system),
        token=token if addresses else None,  # from the environment, it may be for other commands
    )
    try:
        settings.check()
        settings.check_master()
    except PipelineError as error:
        running.fail(str(error))
    running.run(_run(settings, as_json))


def _spark_settings(conf: list[str]) -> dict[str, str]:
    """Return Spark configuration properties by name."""
    settings: dict[str, str] = {}
    for each in conf:
        name, found, value = each.partition("=")
        if not found:
            raise typer.BadParameter(f"--conf {each}: write NAME=VALUE")
        if name in settings:
            raise typer.BadParameter(f"--conf {name} is given twice")
        settings[name] = value
    return settings


async def _run(settings: PipelineSettings, as_json: bool) -> int:
    from aqueduct.spark.pipeline.run import Pipeline

    async with running.interrupts() as stop:
        with _redirect_stderr(settings.log), _watching(settings) as watch:
            summary = await Pipeline(settings, watch).run(stop)
    if summary is None:
        running.notes.print("interrupted before anything was sent; nothing was written")
        return running.INTERRUPTED
    if as_json:
        running.write_object(**summary.as_json())
    else:
        _print_summary(summary)
    if summary.faults:
        return running.FAILED
    return running.INTERRUPTED if summary.interrupted and settings.duration else 0


@contextmanager
def _redirect_stderr(log: Path) -> Iterator[None]:
    """Redirect the output of Java to a file; standard error shows the progress."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        log.touch()
    except OSError as error:
        running.fail(f"--out {log.parent} cannot be written: {error.strerror}")
    sys.stderr.flush()
    before, kept = sys.stderr, os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        with open(kept, "w", buffering=1, encoding=before.encoding, closefd=False) as people:
            sys.stderr = people
            yield
    finally:
        sys.stderr = before
        os.dup2(kept, 2)
        os.close(kept)


# Progress


class _Progress:
    """Shows progress: a live table on a terminal, otherwise lines."""

    def __init__(self, live: Live | None, settings: PipelineSettings) -> None:
        self._live = live
        self._settings = settings
        self._stage = ""
        self._printed = 0.0
        self._last = (0.0, 0)
        self._rate = 0.0

    def __call__(self, status: Status) -> None:
        self._measure(status)
        if self._live is not None:
            self._live.update(self._table(status))
            return
        now = time.monotonic()
        if status.stage != self._stage:
            running.notes.print(status.stage, markup=False, soft_wrap=True)
        if status.stage == self._stage and now - self._printed < _LINE_INTERVAL:
            return
        self._printed = now
        if status.running and status.stage == self._stage:
            running.notes.print(self._line(status), markup=False, soft_wrap=True)
        self._stage = status.stage

    def _measure(self, status: Status) -> None:
        """Update the send rate, measured over about a second."""
        sent = sum(status.sent.values())
        then, before = self._last
        if status.running - then >= 1.0:
            self._rate = (sent - before) / (status.running - then)
            self._last = (status.running, sent)

    def _line(self, status: Status) -> str:
        latency = "" if status.latency_p50 is None else f", p50 {1000 * status.latency_p50:,.0f} ms"
        return (
            f"{status.running:4.0f} s: {sum(status.sent.values()):,} sent, {self._rate:,.0f}/s; "
            f"{status.rows:,} in the table, {status.batches:,} batches{latency}; "
            f"{sum(status.late.values()):,} late, {_in_flight(status)}"
        )

    def _table(self, status: Status) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim")
        table.add_column()
        left = "" if not self._settings.duration else f" of {self._settings.duration:g}"
        table.add_row("now", status.stage)
        table.add_row("running", f"{status.running:.0f}{left} s")
        table.add_row("sent", f"{sum(status.sent.values()):,}, {self._rate:,.0f} per second")
        table.add_row("in the table", f"{status.rows:,} in {status.batches:,} batches")
        latency = status.latency_p50
        table.add_row("latency p50", "" if latency is None else f"{1000 * latency:,.0f} ms")
        table.add_row("late", f"{sum(status.late.values()):,}")
        table.add_row("unreliable", _in_flight(status))
        return table


def _in_flight(status: Status) -> str:
    sent, arrived = status.sent.get("unreliable", 0), status.arrived.get("unreliable", 0)
    return f"{max(sent - arrived, 0):,} of {sent:,} samples lost or in flight"


@contextmanager
def _watching(settings: PipelineSettings) -> Iterator[_Progress]:
    console = running.notes
    if not console.is_terminal:
        yield _Progress(None, settings)
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield _Progress(live, settings)


# The summary


def _print_summary(summary: Summary) -> None:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("mode")
    for name in ("sent", "lost", "arrived", "in readings", "in windows", "too late"):
        table.add_column(name, justify="right")
    for mode, one in summary.totals.items():
        numbers = (one.sent, one.lost, one.arrived, one.rows, one.windowed, one.too_late)
        table.add_row(mode, *(f"{number:,}" for number in numbers))
    console = running.notes
    console.print(table)
    latency = summary.figures.latency
    if latency is not None:
        console.print(
            f"latency from send to table: p50 {1000 * latency.p50:,.0f} ms, "
            f"p95 {1000 * latency.p95:,.0f} ms, p99 {1000 * latency.p99:,.0f} ms"
        )
    rate = summary.rows / summary.seconds if summary.seconds else 0
    console.print(
        f"{options.pluralize(summary.rows, 'record')} in {summary.seconds:.1f} s, {rate:,.0f} per "
        f"second, {options.pluralize(summary.figures.windows, 'window')}; "
        f"{summary.whole_seconds:.0f} s in total" + (", interrupted" if summary.interrupted else "")
    )
    for fault in summary.faults:
        console.print(f"inconsistent: {fault}", markup=False, soft_wrap=True)
    if not summary.faults:
        console.print("every record is accounted for")
    console.print(f"tables and report: {summary.report}", markup=False, soft_wrap=True)
