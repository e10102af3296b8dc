"""``aqueduct topics``: what an ingest server has stored, asked of it or seen in its directory."""

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
    name: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this one.")] = None,
    server: options.IngestAddress = options.INGEST,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", "-d", metavar="DIR", help="Look into a server's directory instead."),
    ] = None,
    token: options.Token = None,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    as_json: options.Json = False,
    forget_reader: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Forget a named reader of TOPIC, which then keeps nothing."
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="With --dir: show what damaged logs of TOPIC have to lose; see --cut."
        ),
    ] = False,
    cut: Annotated[
        bool, typer.Option("--cut", help="With --repair: cut that off, for good.")
    ] = False,
) -> None:
    """List topics: their partitions, offsets, times and sizes, and what is out of use.

    For named readers and unfinished steps of jobs, the list has the offsets from which they keep
    rows from retention.

    A directory can be looked into whether its server runs or not; what was stored in the last
    moment may then be missing.

    Example: aqueduct topics --server localhost:4434

    Example: aqueduct topics telemetry --dir data --json

    Example: aqueduct topics telemetry --dir data --repair
    """
    options.need_pyarrow()
    if (repair or forget_reader is not None) and name is None:
        running.fail("say of which topic: aqueduct topics TOPIC ...")
    if cut and not repair:
        running.fail("--cut goes with --repair")
    if repair:
        if directory is None:
            running.fail("--repair needs --dir, the directory of a server that does not run")
        running.run(_repair(directory, name or "", cut))
    elif forget_reader is not None:
        if directory is not None:
            running.fail("--forget-reader is asked of a server: leave --dir out")
        trust = options.chosen_trust(ca, pin, system)
        running.run(_forget(server, name or "", forget_reader, trust, token))
    elif directory is not None:
        running.run(_look(directory, name, as_json))
    else:
        trust = options.chosen_trust(ca, pin, system)
        running.run(_ask(server, name, trust, token, as_json))


async def _look(directory: Path, name: str | None, as_json: bool) -> None:
    from aqueduct.ingest import DirectoryReader

    _show(DirectoryReader(directory).topics(name), as_json)


async def _ask(
    server: str, name: str | None, trust: Trust, token: str | None, as_json: bool
) -> None:
    from aqueduct.ingest import Reader

    async with Reader(server, trust=trust, token=token) as reader:
        _show(await reader.topics(name), as_json)


async def _repair(directory: Path, name: str, cut: bool) -> None:
    from aqueduct.ingest import repair

    losses = repair(directory, name, cut=cut)
    for loss in losses:
        print(running.plain(str(loss)))
    if not losses:
        running.notes.print("there is nothing to repair")
    elif cut:
        running.notes.print("that is given up; the topic can be used again")
    else:
        running.notes.print("nothing was changed: copy the directory, and say --cut to do it")


async def _forget(server: str, name: str, forgotten: str, trust: Trust, token: str | None) -> None:
    from aqueduct.ingest import Reader

    async with Reader(server, trust=trust, token=token) as reader:
        await reader.advance(forgotten, name, {})


def _show(found: list[TopicInfo], as_json: bool) -> None:
    if as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())
    elif not found:
        running.notes.print("there are no topics")
    else:
        # What is out of use says which file and byte: cut off, that would be of no use.
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
            table.add_row(running.plain(topic.topic), *[""] * 6, f"id {running.plain(topic.id)}")
        if topic.fault:
            table.add_row(running.plain(topic.topic), *[""] * 6, running.plain(topic.fault))
        for part in topic.partitions:
            table.add_row(
                running.plain(topic.topic),
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
            note = f"reader {running.plain(reader)} is at {where}"
            if reader in topic.stale_readers:
                note += f", does not match the topic: {running.plain(topic.stale_readers[reader])}"
            table.add_row(running.plain(topic.topic), *[""] * 6, note)
        for step in topic.steps:
            table.add_row(running.plain(topic.topic), *[""] * 6, _step(step))
        if topic.unfinished_steps > len(topic.steps):
            more = f"and {topic.unfinished_steps - len(topic.steps):,} more steps of jobs"
            table.add_row(running.plain(topic.topic), *[""] * 6, more)
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
        f"job {running.plain(step.job)}: step {step.step} is unfinished (began {_time(step.began)}"
        f", last used {_time(step.last_used)}); {keeps}"
    )


def _time(microseconds: int | None) -> str:
    if microseconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(microseconds / 1e6))
