"""The HTML report of a run: totals, rates, latency and measurements."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from aqueduct.observe.charts import (
    COLOURS,
    BandSeries,
    Bar,
    Chart,
    LineSeries,
    Marker,
    html_page,
    html_table,
)
from aqueduct.spark.pipeline.fleet import MODES
from aqueduct.spark.pipeline.settings import WATERMARK, WINDOW
from aqueduct.spark.pipeline.summary import Summary

_STYLE = """
.well { color: #2e9b5f } .wrong { color: #c0392b; font-weight: 600 }
.several { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: .6rem }
"""
_HEADINGS = ("mode", "sent", "lost", "arrived", "in readings", "in windows", "too late")


def page(summary: Summary) -> str:
    """Return the report of a run as one HTML page."""
    parts = [
        _facts(summary),
        "<h2>What became of every record</h2>",
        *_totals(summary),
        "<h2>Records per second</h2>",
        _rates(summary),
        "<h2>Latency from send to table</h2>",
        *_latency(summary),
        "<h2>Measurements by device</h2>",
        *_devices(summary),
    ]
    return html_page("Telemetry, from devices to tables", parts, _STYLE)


def _facts(summary: Summary) -> str:
    figures = summary.figures
    began = datetime.fromtimestamp(figures.start, UTC)
    rate = summary.rows / summary.seconds if summary.seconds else 0.0
    rows = [
        ("began", f"{began:%Y-%m-%d %H:%M:%S} UTC" if figures.start else "nothing was sent"),
        (
            "devices",
            f"{summary.devices:,}, sending for {summary.seconds:.1f} s"
            + (" until the run was interrupted" if summary.interrupted else ""),
        ),
        ("records in the table", f"{summary.rows:,}, {rate:,.0f} per second"),
        ("micro-batches", f"{summary.batches:,}"),
        ("windows", f"{figures.windows:,} of {WINDOW} s with a watermark of {WATERMARK} s"),
        ("Spark", f"{summary.master}, reading from {summary.source}"),
        ("topics", ", ".join(summary.topics)),
        ("tables", f"{summary.out}/readings and {summary.out}/windows"),
    ]
    return html_table((), [[name, text] for name, text in rows])


def _totals(summary: Summary) -> Iterator[str]:
    rows = []
    for mode, one in summary.totals.items():
        numbers = (one.sent, one.lost, one.arrived, one.rows, one.windowed, one.too_late)
        rows.append([mode, *(f"{number:,}" for number in numbers)])
    yield html_table(_HEADINGS, rows)
    late = summary.late
    yield (
        f'<p class="note">Devices buffered {late.get("buffered", 0):,} records before sending; '
        f"{late.get('stale', 0):,} carried a timestamp ten minutes old. A record behind the "
        "watermark is in readings, and in no window.</p>"
    )
    if summary.faults:
        for fault in summary.faults:
            yield f'<p class="wrong">Inconsistent: {escape(fault)}.</p>'
    else:
        yield (
            '<p class="well">Every record is accounted for: each record sent arrived or is known '
            "to be lost, each that arrived is in readings exactly once, and each reading is in one "
            "window or came too late.</p>"
        )


def _rates(summary: Summary) -> str:
    rates = summary.figures.rates
    lines = [
        LineSeries(mode, rates[mode], COLOURS[at]) for at, mode in enumerate(MODES) if mode in rates
    ]
    return Chart("Records per second, by mode", "seconds", "records/s", lines).svg()


def _latency(summary: Summary) -> Iterator[str]:
    figures = summary.figures
    if figures.latency is None:
        yield '<p class="note">No record is in the table.</p>'
        return
    spread = figures.latency
    yield html_table(
        ("p50", "p95", "p99"),
        [[f"{1000 * each:,.0f} ms" for each in (spread.p50, spread.p95, spread.p99)]],
    )
    yield Chart(
        "Latency over time",
        "seconds",
        "seconds of latency",
        [
            LineSeries("p50", [(at, p50) for at, p50, _ in figures.latencies], COLOURS[0]),
            LineSeries("p95", [(at, p95) for at, _, p95 in figures.latencies], COLOURS[1]),
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
        f'<p class="note">Mean, minimum and maximum of each window of {WINDOW} s, for readings on '
        "the ordered channel."
        + (
            f" Only the first {len(devices)} of {summary.devices} devices are shown."
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
            [LineSeries("", [(at, mean) for at, mean, _, _ in points])],
            [BandSeries([(at, least, greatest) for at, _, least, greatest in points])],
            width=320,
            height=170,
            from_zero=False,
        ).svg()
    yield "</div>"
