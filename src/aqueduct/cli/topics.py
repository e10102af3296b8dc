"""``aqueduct topics``: lists the topics of an ingest server, or of its directory."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from aqueduct.cli import options, running
from aqueduct.security import Trust

if TYPE_CHECKING:
    from aqueduct.ingest import StepInfo, TopicInfo


def topics(
    name: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Show only this topic.")
    ] = None,
    server: options.IngestAddress = options.INGEST_ADDRESS,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", "-d", metavar="DIR", help="Read a server's directory instead."),
    ] = None,
    token: options.Token = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
    forget_reader: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Remove a named reader of TOPIC, so that retention ignores its offsets.",
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="With --dir: show the damaged part of the logs of TOPIC; see --cut.",
        ),
    ] = False,
    cut: Annotated[
        bool, typer.Option("--cut", help="With --repair: truncate the logs there; irreversible.")
    ] = False,
) -> None:
    """List topics with their partitions, offsets, times, sizes and faults.

    For named readers and unfinished steps of jobs, the list has the offsets from which they
    protect rows from retention.

    A directory can be read while its server runs; the most recent records may then be missing.

    Example: aqueduct topics --server localhost:4434

    Example: aqueduct topics telemetry --dir data --json

    Example: aqueduct topics telemetry --dir data --repair
    """
    options.require("ingest", "topics")
    if (repair or forget_reader is not None) and name is None:
        running.fail("name the topic: aqueduct topics TOPIC ...")
    if cut and not repair:
        running.fail("--cut requires --repair")
    if repair:
        if directory is None:
            running.fail("--repair needs --dir, the directory of a stopped server")
        running.run(_repair(directory, name or "", cut))
    elif forget_reader is not None:
        if directory is not None:
            running.fail("--forget-reader needs a server: omit --dir")
        trust = options.client_trust(ca, pin, system)
        running.run(_forget(server, name or "", forget_reader, trust, token))
    elif directory is not None:
        running.run(_list_directory(directory, name, as_json))
    else:
        trust = options.client_trust(ca, pin, system)
        running.run(_list_server(server, name, trust, token, as_json))


async def _list_directory(directory: Path, name: str | None, as_json: bool) -> None:
    from aqueduct.ingest import DirectoryReader

    _show(DirectoryReader(directory).topics(name), as_json)


async def _list_server(
    server: str, name: str | None, trust: Trust, token: str | None, as_json: bool
) -> None:
    from aqueduct.ingest import Reader

    async with Reader(server, trust=trust, token=token) as reader:
        _show(await reader.topics(name), as_json)


async def _repair(directory: Path, name: str, cut: bool) -> None:
    from aqueduct.ingest import repair

    losses = repair(directory, name, cut=cut)
    for loss in losses:
        print(running.printable(str(loss)))
    if not losses:
        running.notes.print("nothing to repair")
    elif cut:
        running.notes.print("the logs were truncated; the topic can be used again")
    else:
        running.notes.print("nothing was changed: back up the directory, then repeat with --cut")


async def _forget(server: str, name: str, forgotten: str, trust: Trust, token: str | None) -> None:
    from aqueduct.ingest import Reader

    async with Reader(server, trust=trust, token=token) as reader:
        await reader.advance(forgotten, name, {})


def _show(found: list[TopicInfo], as_json: bool) -> None:
    if as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())
    elif not found:
        running.notes.print("no topics")
    else:
        # A fault names a file and a byte, which must not be truncated.
        width = None if sys.stdout.isatty() else 240
        Console(width=width, highlight=False, markup=False).print(_table(found))


def _table(found: list[TopicInfo]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("topic", "partition", "first", "next", "bytes", "first stored", "last stored"):
        numbers = heading in {"partition", "first", "next", "bytes"}
        table.add_column(heading, no_wrap=True, justify="right" if numbers else "left")
    table.add_column("", overflow="fold")
    for topic in found:
        if topic.id and len(found) == 1:
            table.add_row(
                running.printable(topic.topic), *[""] * 6, f"id {running.printable(topic.id)}"
            )
        if topic.fault:
            table.add_row(running.printable(topic.topic), *[""] * 6, running.printable(topic.fault))
        for part in topic.partitions:
            table.add_row(
                running.printable(topic.topic),
                str(part.partition),
                f"{part.first_offset:,}",
                f"{part.next_offset:,}",
                f"{part.size:,}",
                _time(part.first_time),
                _time(part.last_time),
                running.printable(part.fault),
            )
        for reader, offsets in topic.readers.items():
            where = ", ".join(f"{number}: {offset:,}" for number, offset in offsets.items())
            note = f"reader {running.printable(reader)} is at {where}"
            if reader in topic.stale_readers:
                note += (
                    f", does not match the topic: {running.printable(topic.stale_readers[reader])}"
                )
            table.add_row(running.printable(topic.topic), *[""] * 6, note)
        for step in topic.steps:
            table.add_row(running.printable(topic.topic), *[""] * 6, _step(step))
        if topic.unfinished_steps > len(topic.steps):
            more = f"and {topic.unfinished_steps - len(topic.steps):,} more steps of jobs"
            table.add_row(running.printable(topic.topic), *[""] * 6, more)
    return table


def _step(step: StepInfo) -> str:
    """Describe an unfinished step, and the rows that it keeps from retention."""
    where = ", ".join(f"{number}: {offset:,}" for number, offset in step.offsets.items())
    keeps = f"it keeps rows from offsets {where}"
    if step.kept_until is not None:
        keeps += f" until {_time(step.kept_until)} if it stays idle"
        if step.kept_until / 1e6 < time.time():
            keeps = f"it no longer keeps rows from offsets {where}: it was idle for too long"
    return (
        f"job {running.printable(step.job)}: step {step.step} is unfinished "
        f"(began {_time(step.began)}, last used {_time(step.last_used)}); {keeps}"
    )


def _time(microseconds: int | None) -> str:
    if microseconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(microseconds / 1e6))
