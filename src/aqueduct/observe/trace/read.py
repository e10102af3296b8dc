"""Reads trace files: all rows, one row per message with its fate, and the channels."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aqueduct.errors import TraceError
from aqueduct.observe.trace.picture import DELIVERED, DROPPED, LOST, NACKED, OPEN
from aqueduct.observe.trace.schema import SCHEMA, SCHEMA_VERSION, VERSION_KEY

KEYS = ["connection", "channel", "reliable", "message"]
"""The columns that identify a message at both ends."""


def read(directory: str | os.PathLike[str]) -> pa.Table:
    """Return all rows of a trace by wall time; rows of one recorder keep their order."""
    folder = Path(directory)
    paths = sorted(folder.glob("*.parquet")) if folder.is_dir() else [folder]
    if not paths or not paths[0].is_file():
        raise TraceError(f"there are no trace files in {str(folder)!r}")
    table = pa.concat_tables([_read_file(path) for path in paths])
    return table.sort_by(
        [("wall", "ascending"), ("recorder", "ascending"), ("sequence", "ascending")]
    )


def _read_file(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{str(path)!r} cannot be read: {error}") from None
    version = (table.schema.metadata or {}).get(VERSION_KEY)
    if version != str(SCHEMA_VERSION).encode():
        found = "no trace" if version is None else f"a trace of schema {version.decode()}"
        raise TraceError(f"{str(path)!r} is {found}; this program reads schema {SCHEMA_VERSION}")
    return table.select(SCHEMA.names)


def ledger(table: pa.Table) -> pa.Table:
    """Return one row per message: when it was sent, received and taken, its size and its fate.

    ``attached`` is the number of channels that it carried. If only one end was traced, the columns
    of the other end are null, and a delivered message counts as taken.
    """
    rows = table.filter(pc.is_valid(table["message"]))
    kind, wall = rows["kind"], rows["wall"]
    is_message = pc.equal(rows["frame"], "MESSAGE")
    sent = pc.and_(is_message, pc.equal(kind, "frame_sent"))
    received = pc.and_(is_message, pc.equal(kind, "frame_received"))

    def when(condition: Any) -> Any:
        return pc.if_else(condition, wall, pa.scalar(None, wall.type))

    facts = {
        "sent": when(sent),
        "received": when(received),
        "taken": when(pc.equal(kind, "message_taken")),
        "delivered": when(pc.equal(kind, "message_delivered")),
        "undelivered": when(pc.equal(kind, "message_undelivered")),
        "lost": when(pc.equal(kind, "message_lost")),
        "size": rows["size"],
        "attached": pc.list_value_length(rows["attachments"]),
        "first": rows["wall"],
    }
    columns = {name: rows[name] for name in KEYS} | facts
    grouped = pa.table(columns).group_by(KEYS).aggregate([(name, "min") for name in facts])
    result = grouped.rename_columns([name.removesuffix("_min") for name in grouped.column_names])
    fates = _fates(result, _seen_by_both(table))
    result = result.append_column("fate", fates)
    return result.sort_by(
        [("connection", "ascending"), ("first", "ascending"), ("message", "ascending")]
    )


def _seen_by_both(table: pa.Table) -> Any:
    pairs = table.select(["connection", "side"]).group_by(["connection", "side"]).aggregate([])
    counts = Counter(pairs["connection"].to_pylist())
    return pa.array([one for one, sides in counts.items() if sides > 1], pa.string())


def _fates(messages: pa.Table, both: Any) -> Any:
    dropped = pc.and_(pc.is_null(messages["taken"]), pc.is_in(messages["connection"], both))
    # The sender decides the fate; without its rows, a message that was taken was delivered.
    open_fate = pc.if_else(pc.is_valid(messages["taken"]), DELIVERED, OPEN)
    fate = pc.if_else(pc.is_valid(messages["undelivered"]), NACKED, open_fate)
    fate = pc.if_else(pc.is_valid(messages["lost"]), LOST, fate)
    return pc.if_else(
        pc.is_valid(messages["delivered"]), pc.if_else(dropped, DROPPED, DELIVERED), fate
    )


@dataclass
class ChannelHistory:
    """One channel: its carrier, its mode and how it ended."""

    connection: str
    channel: int
    name: str
    carrier: int | None = None
    carrier_message: int | None = None
    carrier_reliable: bool | None = None
    mode: str | None = None
    ends: dict[str, str] = field(default_factory=dict)
    """How the half of each role ended."""

    @property
    def ending(self) -> str:
        """How the channel ended: a loss first, then the end of the sender, then of the receiver."""
        hows = list(self.ends.values())
        if "lost in transit" in hows:
            return "lost in transit"
        return self.ends.get("sender") or self.ends.get("receiver") or "open"


def channels(table: pa.Table) -> list[ChannelHistory]:
    """Return the channels of a trace, each after the channel that carried it."""
    wanted = pc.is_in(table["kind"], pa.array(["channel_created", "channel_ended"]))
    histories: dict[tuple[str, int], ChannelHistory] = {}
    for row in table.filter(wanted).to_pylist():
        key = row["connection"], row["channel"]
        history = histories.get(key)
        if history is None:
            history = histories[key] = ChannelHistory(*key, row["channel_name"])
        if row["kind"] == "channel_ended":
            history.ends[row["role"]] = row["how"]
        elif row["carrier"] is not None:
            history.carrier, history.carrier_message = row["carrier"], row["carrier_message"]
            history.carrier_reliable = row["carrier_reliable"]
            history.mode = row["mode"] or history.mode
    return _in_order(histories)


def _in_order(histories: dict[tuple[str, int], ChannelHistory]) -> list[ChannelHistory]:
    """Sort channels behind their carriers: clocks may disagree."""
    ordered: dict[tuple[str, int], ChannelHistory] = {}
    for key, history in histories.items():
        path = []
        at: tuple[str, int] | None = key
        while at is not None and at in histories and at not in ordered and at not in path:
            path.append(at)
            above = histories[at].carrier
            at = None if above is None else (history.connection, above)
        for one in reversed(path):
            ordered[one] = histories[one]
    return list(ordered.values())
