"""One self-contained page about a run: accounts, rates, latency and what devices measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from aqueduct.spark.jobs.pipeline.fleet import MODES
from aqueduct.spark.jobs.pipeline.settings import WATERMARK, WINDOW
from aqueduct.spark.jobs.pipeline.summary import Summary
from aqueduct.spark.jobs.plot import COLOURS, Band, Bar, Chart, Line, Marker

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --text: #666 }
@media (prefers-color-scheme: dark) { :root { --text: #aaa } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem 1.2rem .25rem 0; text-align: left; border-bottom: 1px solid var(--soft) }
td.number, th.number { text-align: right }
.note { color: var(--text); font-size: .9rem }
.well { color: #2e9b5f } .wrong { color: #c0392b; font-weight: 600 }
svg { max-width: 100%; height: auto; display: block; margin: .6rem 0 }
svg text { font: 11px ui-monospace, monospace; fill: currentColor }
svg .grid { stroke: var(--soft) } svg .axis { stroke: var(--line) }
.several { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: .6rem }
"""
_HEADINGS = ("mode", "sent", "lost", "arrived", "in readings", "in windows", "too late")


def page(summary: Summary) -> str:
    """The page."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Pipeline</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Telemetry, from devices to tables</h1>",
        _facts(summary),
        "<h2>What became of every record</h2>",
        *_accounts(summary),
        "<h2>Records a second</h2>",
        _rates(summary),
        "<h2>From sending to being in the table</h2>",
        *_latency(summary),
        "<h2>What the devices measured</h2>",
        *_devices(summary),
        "</body></html>",
    ]
    return "\n".join(parts)


def _facts(summary: Summary) -> str:
    figures = summary.figures
    began = datetime.fromtimestamp(figures.start, UTC)
    rate = summary.rows / summary.seconds if summary.seconds else 0.0
    rows = [
        ("began", f"{began:%Y-%m-%d %H:%M:%S} UTC" if figures.start else "nothing was sent"),
        (
            "devices",
            f"{summary.devices:,}, which sent for {summary.seconds:.1f} s"
            + (", until it was interrupted" if summary.interrupted else ""),
        ),
        ("records in the table", f"{summary.rows:,}, {rate:,.0f} a second"),
        ("micro-batches", f"{summary.batches:,}"),
        ("windows", f"{figures.windows:,} of {WINDOW} s, a watermark of {WATERMARK} s"),
        ("Spark", f"{summary.master}, which read from {summary.source}"),
        ("topics", ", ".join(summary.topics)),
        ("tables", f"{summary.out}/readings and {summary.out}/windows"),
    ]
    return _table((), [[name, text] for name, text in rows])


def _accounts(summary: Summary) -> Iterator[str]:
    rows = []
    for mode, one in summary.accounts.items():
        numbers = (one.sent, one.lost, one.arrived, one.rows, one.windowed, one.too_late)
        rows.append([mode, *(f"{number:,}" for number in numbers)])
    yield _table(_HEADINGS, rows)
    late = summary.late
    yield (
        f'<p class="note">{late.get("buffered", 0):,} were held back by their device; '
        f"{late.get('stale', 0):,} told a time that was ten minutes ago. What comes for a window "
        "that the watermark has closed is in readings, and in no window.</p>"
    )
    if summary.faults:
        for fault in summary.faults:
            yield f'<p class="wrong">It does not add up: {escape(fault)}.</p>'
    else:
        yield (
            '<p class="well">It adds up: each record that was sent arrived or is known to be lost, '
            "each that arrived is in readings once, and each of those is in one window or came "
            "too late.</p>"
        )


def _rates(summary: Summary) -> str:
    rates = summary.figures.rates
    lines = [Line(mode, rates[mode], COLOURS[at]) for at, mode in enumerate(MODES) if mode in rates]
    return Chart("Records a second, by mode", "seconds", "records/s", lines).svg()


def _latency(summary: Summary) -> Iterator[str]:
    figures = summary.figures
    if figures.latency is None:
        yield '<p class="note">No record is in the table.</p>'
        return
    spread = figures.latency
    yield _table(
        ("p50", "p95", "p99"),
        [[f"{1000 * each:,.0f} ms" for each in (spread.p50, spread.p95, spread.p99)]],
    )
    yield Chart(
        "Latency over time",
        "seconds",
        "seconds of latency",
        [
            Line("p50", [(at, p50) for at, p50, _ in figures.latencies], COLOURS[0]),
            Line("p95", [(at, p95) for at, _, p95 in figures.latencies], COLOURS[1]),
        ],
    ).svg()
    yield Chart(
        "Records by latency",
        "seconds of latency",
        "records",
        bars=[Bar(left, right, count) for left, right, count in figures.histogram],
        markers=[
            Marker(spread.p50, "p50", COLOURS[2]),
            Marker(spread.p95, "p95", COLOURS[1]),
            Marker(spread.p99, "p99", COLOURS[4]),
        ],
    ).svg()


def _devices(summary: Summary) -> Iterator[str]:
    devices = summary.figures.devices
    if not devices:
        yield '<p class="note">No window was closed.</p>'
        return
    yield (
        f'<p class="note">Mean of each window of {WINDOW} s of the readings that were sent in '
        "order, within the least and the greatest."
        + (
            f" The first {len(devices)} of {summary.devices} devices."
            if summary.devices > len(devices)
            else ""
        )
        + "</p>"
    )
    yield '<div class="several">'
    for name, points in devices.items():
        yield Chart(
            name,
            "seconds",
            f"{name}, °C",
            [Line("", [(at, mean) for at, mean, _, _ in points])],
            [Band([(at, least, greatest) for at, _, least, greatest in points])],
            width=320,
            height=170,
            from_zero=False,
        ).svg()
    yield "</div>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numeric = ' class="number"' if headings else ""
    head = "".join(
        f"<th{numeric if at else ''}>{escape(each)}</th>" for at, each in enumerate(headings)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{numeric if at else ''}>{escape(cell)}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"
