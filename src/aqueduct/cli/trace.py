"""``aqueduct trace``: what endpoints recorded, as lines, as a tree, as a page."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aqueduct.cli import options, running

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(
    help="Show what endpoints recorded with --trace DIR, or trace=.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Where the endpoints wrote; both ends, if you can.")
]
Only = Annotated[
    str | None,
    typer.Option("--connection", metavar="ID", help="This connection only; its first letters do."),
]


def _read(directory: Path, connection: str | None) -> pa.Table:
    # Arrow is large; the other commands start without it.
    import pyarrow.compute as pc

    from aqueduct.observe.trace.read import TraceError, read

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
        int | None, typer.Option("--limit", min=1, metavar="N", help="The first N rows only.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print every row in the order of time: >> left a side, << arrived at it.

    Example: aqueduct trace print traces --connection 4be6 --limit 100
    """
    from aqueduct.observe.trace.text import format_rows

    table = _read(directory, connection)
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
    """A row without what does not apply to it."""
    row["wall"] = row["wall"].isoformat()
    return {name: value for name, value in row.items() if value is not None}


@app.command()
def tree(directory: Directory, connection: Only = None, as_json: options.Json = False) -> None:
    """Draw every channel under the message that carried it, and each message's fate.

    Example: aqueduct trace tree traces
    """
    from rich.console import Console

    from aqueduct.observe.trace.picture import Marks
    from aqueduct.observe.trace.text import TraceSummary, channel_trees

    summary = TraceSummary(_read(directory, connection))
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
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the page goes.")
    ] = Path("trace.html"),
    connection: Only = None,
) -> None:
    """Write one page that needs nothing else: fates, rates, the tree, the frames per channel.

    Example: aqueduct trace html traces -o trace.html
    """
    from aqueduct.observe.trace.page import page

    text = page(_read(directory, connection), f"Trace of {directory.name}")
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        running.fail(f"cannot write {output}: {error.strerror}")
    print(f"wrote {output}, {len(text) // 1024 + 1} KiB")
