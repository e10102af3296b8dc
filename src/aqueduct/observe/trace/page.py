"""One self-contained page about a trace: fates, rates, the tree of channels, and their frames."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aqueduct.observe.trace.picture import LEGEND
from aqueduct.observe.trace.read import ChannelStory
from aqueduct.observe.trace.tell import Story, ends_of, tell_row

MAX_CHANNELS = 60
"""Channels whose frames are drawn."""
MAX_FRAMES = 80
"""Frames drawn of one of them."""
MAX_TREE = 2_000
"""Channels shown in the tree."""
BINS = 120

COLOURS = {
    "delivered": "#2e8b57",
    "dropped": "#d9a400",
    "nacked": "#c0392b",
    "lost": "#8e44ad",
    "open": "#9aa0a6",
}
_RATES = (
    ("sent", "#1f6feb"),
    ("received", "#d9730d"),
    ("taken", "#2e8b57"),
)
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --text: #555; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
ul.tree { list-style: none; padding-left: 1.2rem; border-left: 1px solid var(--line) }
.name { font-weight: 600; font-family: ui-monospace, monospace }
.note { color: var(--text); font-size: .85rem }
svg { max-width: 100%; height: auto }
svg text { font: 11px ui-monospace, monospace; fill: currentColor }
details { margin: .4rem 0 } summary { cursor: pointer }
.mark { letter-spacing: 1px }
"""


def page(table: pa.Table, title: str) -> str:
    """The page."""
    story = Story(table)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        _summary(table, story),
        "<h2>What became of the messages</h2>",
        _fates(story.counts),
        "<h2>Messages a second</h2>",
        _rates(table),
        "<h2>Channels, each under the message that carried it</h2>",
        *_tree(story),
        "<h2>Frames</h2>",
        *_sequences(table, story),
        "</body></html>",
    ]
    return "\n".join(parts)


def _summary(table: pa.Table, story: Story) -> str:
    dropped = pc.sum(table.filter(pc.equal(table["kind"], "rows_dropped"))["value"]).as_py() or 0
    edges = pc.min_max(table["wall"]).as_py()
    seconds = (edges["max"] - edges["min"]).total_seconds() if edges["min"] else 0.0
    connections = len({one.connection for one in story.channels})
    size = pc.sum(story.messages["size"]).as_py() or 0
    rows = [
        ("from", f"{edges['min']:%Y-%m-%d %H:%M:%S} UTC, {seconds:.3f} s" if edges["min"] else ""),
        ("connections", f"{connections:,}"),
        ("channels", f"{len(story.channels):,}"),
        ("messages", f"{story.messages.num_rows:,}, {size:,} bytes"),
        ("rows", f"{table.num_rows:,}" + (f", and {dropped:,} dropped" if dropped else "")),
    ]
    cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{cells}</table>"


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
            f'fill="{COLOURS[fate]}"><title>{count:,} {escape(fate)}</title></rect>'
        )
        left += width
        legend.append(
            f'<tr><td style="color:{COLOURS[fate]}">{mark}</td><td>{count:,}</td>'
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
    series = {}
    for name, condition in conditions.items():
        bins = pc.divide(pc.subtract(micros.filter(pc.fill_null(condition, False)), start), step)
        counted = {one["values"]: one["counts"] for one in pc.value_counts(bins).to_pylist()}
        series[name] = [counted.get(at, 0) * 1e6 / step for at in range(BINS)]
    top = max(max(values) for values in series.values()) or 1.0
    lines = []
    for name, colour in _RATES:
        points = " ".join(
            f"{60 + 890 * at / BINS:.1f},{150 - 140 * value / top:.1f}"
            for at, value in enumerate(series[name])
        )
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
    for at, (name, colour) in enumerate(_RATES):
        lines.append(f'<text x="{70 + 90 * at}" y="182" style="fill:{colour}">{name}</text>')
    return (
        '<svg viewBox="0 0 960 190" role="img">'
        '<line x1="60" y1="150" x2="950" y2="150" stroke="#8888"/>'
        f'<text x="54" y="16" text-anchor="end">{top:,.0f}</text>'
        f'<text x="54" y="154" text-anchor="end">0</text>'
        f'<text x="950" y="166" text-anchor="end">{step * BINS / 1e6:.3f} s</text>'
        f"{''.join(lines)}</svg>"
    )


def _tree(story: Story) -> Iterator[str]:
    children: dict[tuple[str, int | None], list[ChannelStory]] = {}
    known = {(one.connection, one.channel) for one in story.channels}
    for one in story.channels:
        above = one.carrier if (one.connection, one.carrier) in known else None
        children.setdefault((one.connection, above), []).append(one)
    shown = 0
    for connection in dict.fromkeys(one.connection for one in story.channels):
        yield f"<details open><summary>connection {escape(connection)}</summary>"
        # Deep as the peer likes, so by a list of what is to be written and not by recursion.
        waiting: list[str | ChannelStory] = ["</ul></details>"]
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
            yield f"<li>{_channel(story, item)}"
            below = children.get((connection, item.channel), [])
            waiting.append("</li>")
            if below:
                waiting.append("</ul>")
                waiting.extend(reversed(below))
                waiting.append('<ul class="tree">')
    if shown > MAX_TREE:
        yield f'<p class="note">{shown - MAX_TREE:,} more channels are not shown.</p>'


def _channel(story: Story, one: ChannelStory) -> str:
    sender, receiver = ends_of(one.channel)
    fate = story.carrier_fate(one)
    carried = ""
    if one.carrier_message is not None:
        carried = f"in {one.carrier_message} {_marks([fate]) if fate else ''} "
    mode = f"{one.mode}, " if one.mode else ""
    fates = _marks(story.fates.get((one.connection, one.channel), []))
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
            f'<span class="mark" style="color:{COLOURS[fate]}" title="{fate}">{text}</span>'
        )
    return " ".join(parts)


# -- frames ----------------------------------------------------------------------------------------


@dataclass
class Arrow:
    """A frame on its way: when it left and when it arrived, as far as a trace knows."""

    side: str
    label: str
    sent: Any = None
    received: Any = None


def _sequences(table: pa.Table, story: Story) -> Iterator[str]:
    wanted = story.channels[:MAX_CHANNELS]
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
    if len(story.channels) > len(wanted):
        rest = len(story.channels) - len(wanted)
        yield f'<p class="note">The frames of {rest:,} more channels are not drawn.</p>'


def _merge_runs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages in a row, written or read at one moment, as one row with a count."""
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
    """Pair what was sent with what arrived: the same frame, in order, on the same stream."""
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
            arrow.label = tell_row({**shown, "channel_name": None}).lstrip("<> ")
    return _join(arrows)


def _join(arrows: list[Arrow]) -> list[Arrow]:
    """Messages that left and arrived together are one arrow."""
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
    # Time by rank: what matters is what came before what.
    places = {moment: 40 + 26 * at for at, moment in enumerate(moments)}
    taken: Counter[Any] = Counter()
    lines = []
    for one in arrows:
        start_x, stop_x = (150, 810) if one.side == "client" else (810, 150)
        first = one.sent if one.sent is not None else one.received
        start_y: float = places[first] + 3 * taken[first]
        taken[first] += 1
        stop_y: float = places[one.received] if one.received is not None else start_y
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
    for moment, place in places.items():
        offset = (moment - moments[0]).total_seconds() * 1000
        lines.append(f'<text x="140" y="{place + 4}" text-anchor="end">{offset:.2f} ms</text>')
    return (
        f'<svg viewBox="0 0 960 {height}" role="img"><defs><marker id="tip" viewBox="0 0 8 8" '
        'refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
        '<text x="150" y="16" text-anchor="middle">client</text>'
        '<text x="810" y="16" text-anchor="middle">server</text>'
        f'<line x1="150" y1="24" x2="150" y2="{height}" stroke="#8886"/>'
        f'<line x1="810" y1="24" x2="810" y2="{height}" stroke="#8886"/>{"".join(lines)}</svg>'
    )
