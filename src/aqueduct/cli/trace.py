"""``aqueduct trace``: shows recorded traces as lines, as a tree or as an HTML page."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aqueduct.cli import options, running
from aqueduct.errors import TraceError

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(
    help="Show traces that endpoints recorded with --trace DIR or trace=.\n\n"
    "Example: aqueduct trace tree traces",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory of the trace, of both ends if possible.")
]
Only = Annotated[
    str | None,
    typer.Option(
        "--connection", metavar="ID", help="Show only connections whose id begins with this."
    ),
]


def _read(directory: Path, connection: str | None) -> pa.Table:
    # Importing Arrow is slow; other commands do without it.
    options.require("trace", "trace")
    import pyarrow.compute as pc

    from aqueduct.observe.trace.read import read

    try:
        table = read(directory)
    except TraceError as error:
        running.fail(str(error))
    if connection is not None:
        table = table.filter(pc.starts_with(table["connection"], connection))
        if not table.num_rows:
            running.fail(f"no connection in {directory} begins with {connection}")
    return table


@app.command("print")
def print_(
    directory: Directory,
    connection: Only = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Print only the first N rows.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print every row in order of time: >> was sent, << was received.

    Example: aqueduct trace print traces --connection 4be6 --limit 100
    """
    table = _read(directory, connection)
    from aqueduct.observe.trace.text import format_rows

    if limit is not None:
        table = table.slice(0, limit)
    if not as_json:
        for line in islice(format_rows(table), limit):
            print(line)
        return
    for batch in table.to_batches(max_chunksize=8192):
        for row in batch.to_pylist():
            print(json.dumps(_present(row)))


def _present(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its empty columns."""
    row["wall"] = row["wall"].isoformat()
    return {name: value for name, value in row.items() if value is not None}


@app.command()
def tree(directory: Directory, connection: Only = None, as_json: options.Json = False) -> None:
    """Draw every channel below the message that carried it, with the outcome of each message.

    Example: aqueduct trace tree traces
    """
    from rich.console import Console

    table = _read(directory, connection)
    from aqueduct.observe.trace.picture import Marks
    from aqueduct.observe.trace.text import TraceSummary, channel_trees

    summary = TraceSummary(table)
    if as_json:
        for one in summary.channels:
            entry = {
                "connection": one.connection,
                "channel": one.name,
                "carrier": one.carrier,
                "carrier_message": one.carrier_message,
                "mode": one.mode,
                "ended": one.ending,
                "fates": summary.fate_counts(one),
            }
            print(json.dumps(entry))
        return
    console = Console()
    ascii_only = console.options.ascii_only
    for picture in channel_trees(summary, ascii_only=ascii_only):
        console.print(picture)
        console.print()
    console.print(Marks(ascii_only=ascii_only).legend(summary.counts), end="")


@app.command()
def html(
    directory: Directory,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File to write.")
    ] = Path("trace.html"),
    connection: Only = None,
) -> None:
    """Write a self-contained HTML page: outcomes, rates, the tree, the frames of each channel.

    Example: aqueduct trace html traces -o trace.html
    """
    table = _read(directory, connection)
    from aqueduct.observe.trace.page import page

    text = page(table, f"Trace of {directory.name}")
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        running.fail(f"cannot write {output}: {error.strerror}")
    print(f"wrote {output}, {len(text) // 1024 + 1} KiB")
