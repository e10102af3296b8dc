"""A trace as text: a line per row, and the tree of channels with the fates of messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from aqueduct.observe.trace.picture import Marks
from aqueduct.observe.trace.read import ChannelHistory, channels, ledger
from aqueduct.wire.chanid import describe
from aqueduct.wire.primitives import MAX_VARINT

SHOWN_OF_CONNECTION = 8
_ARROWS = {"frame_sent": ">>", "frame_received": "<<"}


def format_rows(table: pa.Table) -> Iterator[str]:
    """Return each row as a line: seconds since the first row, connection, side, what happened.

    ``>>`` marks what a side sent and ``<<`` what it received.
    """
    start: Any = None
    for batch in table.to_batches(max_chunksize=8192):
        for row in batch.to_pylist():
            start = row["wall"] if start is None else start
            seconds = (row["wall"] - start).total_seconds()
            connection = row["connection"][:SHOWN_OF_CONNECTION]
            yield f"{seconds:11.6f} {connection:8} {row['side']:6} {format_row(row)}"


def format_row(row: dict[str, Any]) -> str:
    """Return the text of one row without its time and side."""
    parts = [_ARROWS.get(row["kind"], "  ")]
    if row["stream"] is not None:
        parts.append(f"s{row['stream']}")
    elif row["frame"] is not None:
        parts.append("datagram")
    if row["channel_name"] is not None:
        parts.append(row["channel_name"])
    parts.append(row["frame"] or row["kind"].replace("_", " "))
    if row["message"] is not None:
        parts.append(str(row["message"]) if row["reliable"] else f"~{row['message']}")
    if row["size"] is not None:
        parts.append(f"({row['size']} B)")
    parts.extend(_details(row))
    return " ".join(parts)


def _details(row: dict[str, Any]) -> Iterator[str]:
    if row["value"] is not None:
        yield str(row["value"])
    if row["ranges"] is not None:
        yield str(row["ranges"])
    for channel in row["attachments"] or ():
        yield f"+{describe(channel & MAX_VARINT)}"
    if row["header_names"]:
        yield f"headers {', '.join(row['header_names'])}"
    if row["carrier"] is not None:
        yield f"in {row['carrier_message']} of {describe(row['carrier'] & MAX_VARINT)}"
    for name in ("mode", "how", "rule"):
        if row[name] is not None:
            yield row[name]
    if row["lineage"]:
        yield f"under {', '.join(describe(one & MAX_VARINT) for one in row['lineage'])}"
    if row["code"] is not None:
        yield f"code {row['code']:#x}"
    if row["by_peer"]:
        yield "by the peer"
    if row["fin"]:
        yield "fin"


class TraceSummary:
    """The channels of a trace and the fates of their messages."""

    def __init__(self, table: pa.Table) -> None:
        self.channels = channels(table)
        self.messages = ledger(table)
        self.fates: dict[tuple[str, int], list[str]] = {}
        self.counts: Counter[str] = Counter()
        self._by_message: dict[tuple[str, int | None, bool | None, int | None], str] = {}
        carriers = {
            (one.connection, one.carrier, one.carrier_reliable, one.carrier_message)
            for one in self.channels
        }
        names = ("connection", "channel", "reliable", "message", "fate")
        lists = [self.messages[name].to_pylist() for name in names]
        for connection, channel, reliable, message, fate in zip(*lists, strict=True):
            self.fates.setdefault((connection, channel), []).append(fate)
            self.counts[fate] += 1
            if (connection, channel, reliable, message) in carriers:
                self._by_message[connection, channel, reliable, message] = fate

    def fate_counts(self, one: ChannelHistory) -> dict[str, int]:
        """Return the number of messages of a channel by fate."""
        return dict(Counter(self.fates.get((one.connection, one.channel), [])))

    def carrier_fate(self, one: ChannelHistory) -> str | None:
        """Return the fate of the message that carried a channel, or None if it is unknown."""
        key = one.connection, one.carrier, one.carrier_reliable, one.carrier_message
        return self._by_message.get(key)


def channel_trees(summary: TraceSummary, *, ascii_only: bool = False) -> Iterator[Tree]:
    """Return a tree per connection, with each channel under the one that carried it."""
    marks = Marks(ascii_only=ascii_only)
    roots: dict[str, Tree] = {}
    nodes: dict[tuple[str, int], Tree] = {}
    for one in summary.channels:
        if one.connection not in roots:
            roots[one.connection] = Tree(f"connection {one.connection}")
        above = roots[one.connection]
        if one.carrier is not None:
            above = nodes.get((one.connection, one.carrier), above)
        nodes[one.connection, one.channel] = above.add(_label(summary, one, marks))
    yield from roots.values()


def _label(summary: TraceSummary, one: ChannelHistory, marks: Marks) -> Group:
    sender, receiver = ends_of(one.channel)
    title = marks.title(one.name, sender, receiver, one.mode, one.ending)
    fate = summary.carrier_fate(one)
    if one.carrier_message is not None:
        carrier = Text(f"in {one.carrier_message} ")
        if fate is not None:
            carrier.append_text(marks.draw([fate])).append(" ")
        title = carrier.append_text(title)
    fates = summary.fates.get((one.connection, one.channel))
    return Group(title, marks.draw(fates)) if fates else Group(title)


def ends_of(channel: int) -> tuple[str, str]:
    """Return the sender and the receiver of a channel (AQ-CHANID-1)."""
    return ("server", "client") if channel >> 1 & 1 else ("client", "server")
