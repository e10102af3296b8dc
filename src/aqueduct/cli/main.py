"""The command ``aqueduct`` with all its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

import aqueduct
from aqueduct.cli import (
    bench,
    cert,
    doctor,
    echo,
    ingest,
    ipc,
    listen,
    ping,
    pipeline,
    produce,
    send,
    topics,
    trace,
)

app = typer.Typer(
    name="aqueduct",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("echo")(echo.echo)
app.command("ping")(ping.ping)
app.command("send")(send.send)
app.command("listen")(listen.listen)
app.add_typer(ipc.app, name="ipc")
app.add_typer(cert.app, name="cert")
app.add_typer(trace.app, name="trace")
app.command("ingest")(ingest.ingest)
app.command("produce")(produce.produce)
app.command("topics")(topics.topics)
app.command("pipeline")(pipeline.pipeline)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(aqueduct.__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Message channels that cross tasks, processes and hosts.

    Example: aqueduct echo, and in another terminal: aqueduct ping localhost:4433
    """


def main() -> None:
    """Run the command line."""
    app()
