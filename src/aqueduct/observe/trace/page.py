"""The HTML page of a trace: fates, rates, the tree of channels, and their frames."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aqueduct.observe.charts import COLOURS, Chart, LineSeries, html_page, html_table
from aqueduct.observe.trace.picture import LEGEND
from aqueduct.observe.trace.read import ChannelHistory
from aqueduct.observe.trace.text import TraceSummary, ends_of, format_row

MAX_CHANNELS = 60
"""Channels whose frames are drawn, at most."""
MAX_FRAMES = 80
"""Frames drawn per channel, at most."""
MAX_TREE = 2_000
"""Channels shown in the tree, at most."""
BINS = 120

FATE_COLOURS = {
    "delivered": "#2e8b57",
    "dropped": "#d9a400",
    "nacked": "#c0392b",
    "lost": "#8e44ad",
    "open": "#9aa0a6",
}
_STYLE = """
ul.tree { list-style: none; padding-left: 1.2rem; border-left: 1px solid var(--line) }
.name { font-weight: 600; font-family: ui-monospace, monospace }
details { margin: .4rem 0 } summary { cursor: pointer }
.mark { letter-spacing: 1px }
"""


def page(table: pa.Table, title: str) -> str:
    """Return the trace as one HTML page."""
    summary = TraceSummary(table)
    parts = [
        _summary(table, summary),
        "<h2>What became of the messages</h2>",
        _fates(summary.counts),
        "<h2>Messages per second</h2>",
        _rates(table),
        "<h2>Channels, each under the message that carried it</h2>",
        *_tree(summary),
        "<h2>Frames</h2>",
        *_sequences(table, summary),
    ]
    return html_page(title, parts, _STYLE)


def _summary(table: pa.Table, summary: TraceSummary) -> str:
    dropped = pc.sum(table.filter(pc.equal(table["kind"], "rows_dropped"))["value"]).as_py() or 0
    edges = pc.min_max(table["wall"]).as_py()
    seconds = (edges["max"] - edges["min"]).total_seconds() if edges["min"] else 0.0
    connections = len({one.connection for one in summary.channels})
    size = pc.sum(summary.messages["size"]).as_py() or 0
    rows = [
        ("from", f"{edges['min']:%Y-%m-%d %H:%M:%S} UTC, {seconds:.3f} s" if edges["min"] else ""),
        ("connections", f"{connections:,}"),
        ("channels", f"{len(summary.channels):,}"),
        ("messages", f"{summary.messages.num_rows:,}, {size:,} bytes"),
        ("rows", f"{table.num_rows:,}" + (f", and {dropped:,} dropped" if dropped else "")),
    ]
    return html_table((), rows)


def _fates(counts: Counter[str]) -> str:
    total = sum(counts.values())
    if not total:
        return "<p>None were recorded.</p>"
    bar, legend = [], []
    left = 0.0
    for fate, (mark, _, _, meaning) in LEGEND.items():
        count = counts[fate]
        if not count:
            continue
        width = 960 * count / total
        bar.append(
            f'<rect x="{left:.1f}" y="0" width="{max(width, 1):.1f}" height="26" '
            f'fill="{FATE_COLOURS[fate]}"><title>{count:,} {escape(fate)}</title></rect>'
        )
        left += width
        legend.append(
            f'<tr><td style="color:{FATE_COLOURS[fate]}">{mark}</td><td>{count:,}</td>'
            f"<td>{100 * count / total:.2f} %</td><td>{escape(meaning)}</td></tr>"
        )
    return (
        f'<svg viewBox="0 0 960 26" role="img">{"".join(bar)}</svg><table>{"".join(legend)}</table>'
    )


def _rates(table: pa.Table) -> str:
    micros = table["wall"].cast(pa.int64())
    if not table.num_rows:
        return ""
    start = pc.min(micros).as_py()
    step = max((pc.max(micros).as_py() - start) // BINS + 1, 1)
    is_message = pc.equal(table["frame"], "MESSAGE")
    conditions = {
        "sent": pc.and_(is_message, pc.equal(table["kind"], "frame_sent")),
        "received": pc.and_(is_message, pc.equal(table["kind"], "frame_received")),
        "taken": pc.equal(table["kind"], "message_taken"),
    }
    lines = []
    for (name, condition), colour in zip(conditions.items(), COLOURS, strict=False):
        bins = pc.divide(pc.subtract(micros.filter(pc.fill_null(condition, False)), start), step)
        counted = {one["values"]: one["counts"] for one in pc.value_counts(bins).to_pylist()}
        points = [(at * step / 1e6, counted.get(at, 0) * 1e6 / step) for at in range(BINS)]
        lines.append(LineSeries(name, points, colour))
    return Chart("Messages per second", "seconds", "messages/s", lines).svg()


def _tree(summary: TraceSummary) -> Iterator[str]:
    children: dict[tuple[str, int | None], list[ChannelHistory]] = {}
    known = {(one.connection, one.channel) for one in summary.channels}
    for one in summary.channels:
        above = one.carrier if (one.connection, one.carrier) in known else None
        children.setdefault((one.connection, above), []).append(one)
    shown = 0
    for connection in dict.fromkeys(one.connection for one in summary.channels):
        yield f"<details open><summary>connection {escape(connection)}</summary>"
        # The peer controls the depth, so this uses a stack instead of recursion.
        waiting: list[str | ChannelHistory] = ["</ul></details>"]
        waiting.extend(reversed(children.get((connection, None), [])))
        waiting.append('<ul class="tree">')
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                yield item
                continue
            shown += 1
            if shown > MAX_TREE:
                continue
            yield f"<li>{_channel(summary, item)}"
            below = children.get((connection, item.channel), [])
            waiting.append("</li>")
            if below:
                waiting.append("</ul>")
                waiting.extend(reversed(below))
                waiting.append('<ul class="tree">')
    if shown > MAX_TREE:
        yield f'<p class="note">{shown - MAX_TREE:,} more channels are not shown.</p>'


def _channel(summary: TraceSummary, one: ChannelHistory) -> str:
    sender, receiver = ends_of(one.channel)
    fate = summary.carrier_fate(one)
    carried = ""
    if one.carrier_message is not None:
        carried = f"in {one.carrier_message} {_marks([fate]) if fate else ''} "
    mode = f"{one.mode}, " if one.mode else ""
    fates = _marks(summary.fates.get((one.connection, one.channel), []))
    return (
        f'{carried}<span class="name">{escape(one.name)}</span> '
        f"{sender} → {receiver}, {escape(mode + one.ending)} {fates}"
    )


def _marks(fates: Iterable[str]) -> str:
    parts = []
    for fate, group in groupby(fates):
        length = sum(1 for _ in group)
        mark = LEGEND[fate][0]
        text = mark * length if length <= 6 else f"{mark}\N{MULTIPLICATION SIGN}{length:,}"
        parts.append(
            f'<span class="mark" style="color:{FATE_COLOURS[fate]}" title="{fate}">{text}</span>'
        )
    return " ".join(parts)


# -- frames ----------------------------------------------------------------------------------------


@dataclass
class Arrow:
    """A frame with the times when it was sent and received; None if not recorded."""

    side: str
    label: str
    sent: Any = None
    received: Any = None


def _sequences(table: pa.Table, summary: TraceSummary) -> Iterator[str]:
    wanted = summary.channels[:MAX_CHANNELS]
    for one in wanted:
        rows = table.filter(
            pc.and_(
                pc.equal(table["connection"], one.connection),
                pc.and_(pc.equal(table["channel"], one.channel), pc.is_valid(table["frame"])),
            )
        )
        arrows = match_frames(_merge_runs(rows.slice(0, 4 * MAX_FRAMES).to_pylist()))
        more = rows.num_rows - 4 * MAX_FRAMES
        yield (
            f'<details><summary><span class="name">{escape(one.name)}</span> '
            f'<span class="note">{escape(one.connection[:8])}, {rows.num_rows:,} rows</span>'
            f"</summary>{_draw_sequence(arrows[:MAX_FRAMES])}"
        )
        if more > 0 or len(arrows) > MAX_FRAMES:
            yield '<p class="note">The rest is not drawn.</p>'
        yield "</details>"
    if len(summary.channels) > len(wanted):
        rest = len(summary.channels) - len(wanted)
        yield f'<p class="note">The frames of {rest:,} more channels are not drawn.</p>'


def _merge_runs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge consecutive messages with one timestamp into a row with a count."""
    merged: list[dict[str, Any]] = []
    for row in rows:
        last = merged[-1] if merged else None
        plain = row["frame"] == "MESSAGE" and not row["attachments"]
        if (
            plain
            and last is not None
            and last["frame"] == "MESSAGE"
            and not last["attachments"]
            and all(last[key] == row[key] for key in ("side", "kind", "stream", "monotonic_ns"))
            and last["message"] + last["count"] == row["message"]
        ):
            last["count"] += 1
        else:
            merged.append({**row, "count": 1})
    return merged


def match_frames(rows: Sequence[dict[str, Any]]) -> list[Arrow]:
    """Pair each frame sent with the same frame received, by order on its stream."""
    arrows: list[Arrow] = []
    flying: dict[tuple[Any, ...], deque[Arrow]] = {}
    arrived: dict[tuple[Any, ...], deque[Arrow]] = {}
    for row in rows:
        sent = row["kind"] == "frame_sent"
        sender = row["side"] if sent else ("server" if row["side"] == "client" else "client")
        for number in range(row["count"]):
            message = None if row["message"] is None else row["message"] + number
            key = (sender, row["stream"], row["frame"], message, str(row["ranges"]), row["value"])
            waiting = (arrived if sent else flying).get(key)
            if waiting:
                arrow = waiting.popleft()
            else:
                arrow = Arrow(sender, "")
                (flying if sent else arrived).setdefault(key, deque()).append(arrow)
                arrows.append(arrow)
            if sent:
                arrow.sent = row["wall"]
            else:
                arrow.received = row["wall"]
            shown = {**row, "message": message, "size": None if row["count"] > 1 else row["size"]}
            arrow.label = format_row({**shown, "channel_name": None}).lstrip("<> ")
    return _join(arrows)


def _join(arrows: list[Arrow]) -> list[Arrow]:
    """Join the arrows of messages that were sent and received together."""
    joined: list[Arrow] = []
    for key, group in groupby(
        arrows, key=lambda one: (one.side, one.sent, one.received, " MESSAGE " in one.label)
    ):
        alike = list(group)
        if key[3] and len(alike) > 2:
            last = alike[-1].label.rpartition("MESSAGE ")[2].split(" ")[0]
            joined.append(
                Arrow(key[0], f"{alike[0].label} to {last} ({len(alike)} messages)", *key[1:3])
            )
        else:
            joined.extend(alike)
    return joined


def _draw_sequence(arrows: Sequence[Arrow]) -> str:
    if not arrows:
        return '<p class="note">No frames were recorded.</p>'
    moments = sorted({t for one in arrows for t in (one.sent, one.received) if t is not None})
    # Vertical positions show the order of events, not durations.
    heights = {moment: 40 + 26 * at for at, moment in enumerate(moments)}
    taken: Counter[Any] = Counter()
    lines = []
    for one in arrows:
        start_x, stop_x = (150, 810) if one.side == "client" else (810, 150)
        first = one.sent if one.sent is not None else one.received
        start_y: float = heights[first] + 3 * taken[first]
        taken[first] += 1
        stop_y: float = heights[one.received] if one.received is not None else start_y
        if one.sent is None:
            start_x = 480
        elif one.received is None:
            stop_x = 480
        dashed = ' stroke-dasharray="5 4"' if "datagram" in one.label else ""
        end = '<tspan fill="#c0392b"> ✗</tspan>' if one.received is None else ""
        anchor = "start" if one.side == "client" else "end"
        at = 160 if one.side == "client" else 800
        lines.append(
            f'<line x1="{start_x}" y1="{start_y:.0f}" x2="{stop_x}" y2="{stop_y:.0f}" '
            f'stroke="currentColor" opacity=".45" marker-end="url(#tip)"{dashed}/>'
            f'<text x="{at}" y="{start_y - 3:.0f}" text-anchor="{anchor}">'
            f"{escape(one.label)}{end}</text>"
        )
    height = 40 + 26 * len(moments) + 20
    for moment, height in heights.items():
        offset = (moment - moments[0]).total_seconds() * 1000
        lines.append(f'<text x="140" y="{height + 4}" text-anchor="end">{offset:.2f} ms</text>')
    return (
        f'<svg viewBox="0 0 960 {height}" role="img"><defs><marker id="tip" viewBox="0 0 8 8" '
        'refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
        '<text x="150" y="16" text-anchor="middle">client</text>'
        '<text x="810" y="16" text-anchor="middle">server</text>'
        f'<line x1="150" y1="24" x2="150" y2="{height}" stroke="#8886"/>'
        f'<line x1="810" y1="24" x2="810" y2="{height}" stroke="#8886"/>{"".join(lines)}</svg>'
    )
