from __future__ import annotations

from pathlib import Path

from rich.console import Console

from aqueduct.observe.trace.read import read
from aqueduct.observe.trace.text import TraceSummary, channel_trees, format_rows


def drawn(recorded: Path, *, ascii_only: bool = False) -> str:
    console = Console(width=120, no_color=True)
    with console.capture() as capture:
        for tree in channel_trees(TraceSummary(read(recorded)), ascii_only=ascii_only):
            console.print(tree)
    return capture.get()


def test_the_tree_shows_each_channel_under_its_carrier(recorded: Path) -> None:
    lines = drawn(recorded).splitlines()
    assert lines[0].startswith("connection ")
    assert "entrypoint  client → server" in lines[1]
    lost = next(line for line in lines if "lost in transit" in line)
    assert "in 0 ✗ client#6>" in lost
    assert any("unordered, finished" in line for line in lines)


def test_the_tree_can_be_plain_ascii(recorded: Path) -> None:
    text = drawn(recorded, ascii_only=True)
    assert "+*300" in text
    assert "✓" not in text


def test_every_row_is_a_line(recorded: Path) -> None:
    table = read(recorded)
    lines = list(format_rows(table))
    assert len(lines) == table.num_rows
    text = "\n".join(lines)
    assert ">> s2 VERSION" in text
    assert "CONNECTION_HEADERS headers token, aqueduct-limits fin" in text
    assert "datagram client#3> MESSAGE ~0 (12 B)" in text
    assert "channel created in 0 of entrypoint ordered" in text
    assert "message lost 0 lost in transit under" in text
