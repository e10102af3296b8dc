"""Self-contained HTML pages with charts as SVG text: lines, bands and bars on labelled axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
Projection = Callable[[float, float], Point]
"""Maps a point of the data to a point of the picture."""

COLOURS = ("#1f77d0", "#d9730d", "#2e9b5f", "#a259c9", "#c0392b", "#7f8c8d")
"""Colours that are readable on a light and on a dark background."""
CHARACTER = 6.8
"""Approximate width of a character of 11 pixels, to keep labels apart."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 30, 36
_TICK = 4


_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --text: #666 }
@media (prefers-color-scheme: dark) { :root { --text: #aaa } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem 1.2rem .25rem 0; text-align: left; border-bottom: 1px solid var(--soft) }
td.number, th.number { text-align: right }
.note { color: var(--text); font-size: .9rem }
svg { max-width: 100%; height: auto; display: block; margin: .6rem 0 }
svg text { font: 11px ui-monospace, monospace; fill: currentColor }
svg .grid { stroke: var(--soft) } svg .axis { stroke: var(--line) }
"""


def html_page(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a page that needs no other file; ``style`` is added to the common rules."""
    return "\n".join(
        (
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}{style}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *body,
            "</body></html>",
        )
    )


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of escaped text; with headings, all columns but the first are numbers."""
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


@dataclass(frozen=True)
class LineSeries:
    """A line through points in the order of x."""

    name: str
    points: Sequence[Point]
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class BandSeries:
    """The area between two lines: x, the lower and the upper y of each point."""

    points: Sequence[tuple[float, float, float]]
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram."""

    left: float
    right: float
    height: float


@dataclass(frozen=True)
class Marker:
    """A labelled vertical line."""

    x: float
    name: str
    colour: str = COLOURS[4]


@dataclass(frozen=True)
class Chart:
    """A picture with two axes, scaled to what it shows."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[LineSeries] = ()
    bands: Sequence[BandSeries] = ()
    bars: Sequence[Bar] = ()
    markers: Sequence[Marker] = ()
    width: int = 960
    height: int = 260
    from_zero: bool = True
    """Whether the y axis begins at zero."""

    def svg(self) -> str:
        """Return the picture as an ``svg`` element."""
        xs, ys = self._values()
        if not ys:
            return f'<p class="note">{escape(self.title)}: there is nothing to draw.</p>'
        plot_width = self.width - _LEFT - _RIGHT
        plot_height = self.height - _TOP - _BOTTOM
        x_axis = Axis.fit(min(xs), max(xs), max(int(plot_width / 90), 2), tight=True)
        low = min(0.0, *ys) if self.from_zero else min(ys)
        y_axis = Axis.fit(low, max(ys), max(int(plot_height / 42), 2))

        def project(x: float, y: float) -> Point:
            return (
                _LEFT + plot_width * x_axis.share(x),
                _TOP + plot_height * (1.0 - y_axis.share(y)),
            )

        parts = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}">',
            f"<title>{escape(self.title)}</title>",
            *self._grid(x_axis, y_axis, project),
            *(_band(each, project) for each in self.bands),
            *(_bar(each, project) for each in self.bars),
            *(_line(each, project) for each in self.lines),
            *self._markers(project),
            *self._legend(),
            "</svg>",
        ]
        return "".join(parts)

    def _values(self) -> tuple[list[float], list[float]]:
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        for band in self.bands:
            xs += [x for x, _, _ in band.points]
            ys += [y for _, *both in band.points for y in both]
        for bar in self.bars:
            xs += [bar.left, bar.right]
            ys += [0.0, bar.height]
        xs += [marker.x for marker in self.markers]
        return [x for x in xs if math.isfinite(x)], [y for y in ys if math.isfinite(y)]

    def _grid(self, x_axis: Axis, y_axis: Axis, project: Projection) -> list[str]:
        right, bottom = self.width - _RIGHT, self.height - _BOTTOM
        parts = []
        for y in y_axis.ticks:
            _, at = project(x_axis.low, y)
            parts.append(_rule(_LEFT, at, right, at, "grid"))
            parts.append(_text(_LEFT - 8, at + 4, y_axis.label(y), "end"))
        for x in x_axis.ticks:
            at, _ = project(x, y_axis.low)
            parts.append(_rule(at, bottom, at, bottom + _TICK, "axis"))
            parts.append(_text(at, bottom + 16, x_axis.label(x), "middle"))
        parts.append(_rule(_LEFT, bottom, right, bottom, "axis"))
        parts.append(_text(right, self.height - 4, self.x_title, "end"))
        parts.append(_text(4, 14, self.y_title, "start"))
        return parts

    def _markers(self, project: Projection) -> list[str]:
        parts = []
        bottom = self.height - _BOTTOM
        rows: list[float] = []
        """Where the last label of each row ends; a label goes into the first row with room."""
        for marker in sorted(self.markers, key=lambda each: each.x):
            at, _ = project(marker.x, 0.0)
            width = CHARACTER * len(marker.name) + 10
            left = at + 4 if at + width < self.width else at - width
            row = next((row for row, end in enumerate(rows) if end < left), len(rows))
            rows[row : row + 1] = [left + width]
            parts.append(
                f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}" '
                f'stroke="{marker.colour}" stroke-dasharray="4 3"/>'
            )
            parts.append(_text(left, _TOP + 12 + 14 * row, marker.name, "start", marker.colour))
        return parts

    def _legend(self) -> list[str]:
        parts = []
        right = float(self.width - _RIGHT)
        for line in reversed([line for line in self.lines if line.name]):
            width = CHARACTER * len(line.name)
            parts.append(_text(right, 14, line.name, "end", line.colour))
            right -= width + 22
            parts.append(
                f'<rect x="{right + 8:.1f}" y="5" width="10" height="10" rx="2" '
                f'fill="{line.colour}"/>'
            )
        return parts


class Axis:
    """A range of values with ticks at round numbers."""

    def __init__(self, low: float, high: float, step: float) -> None:
        self.low, self.high, self.step = low, high, step

    @classmethod
    def fit(cls, low: float, high: float, count: int, *, tight: bool = False) -> Axis:
        """Return an axis with about ``count`` ticks; a tight one ends at ``low`` and ``high``."""
        if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
            low, high = low - (0.5 if low else 0.0), high + (0.5 if low else 1.0)
        step = nice_step((high - low) / count)
        if not tight:
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        return cls(low, high, step)

    @property
    def ticks(self) -> list[float]:
        """The values of the ticks."""
        first = math.ceil(self.low / self.step - 1e-9)
        last = math.floor(self.high / self.step + 1e-9)
        return [number * self.step for number in range(first, last + 1)]

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def label(self, value: float) -> str:
        """Return the text of a value, with as many digits as the step needs."""
        digits = max(-math.floor(math.log10(self.step) + 1e-9), 0)
        return f"{0.0 if abs(value) < self.step / 2 else value:,.{digits}f}"


def nice_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    for each in (1, 2, 5):
        if each * power >= least * (1 - 1e-9):
            return each * power
    return 10 * power


def _line(line: LineSeries, project: Projection) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (project(*point) for point in line.points))
    return (
        f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2" '
        f'stroke-linejoin="round"><title>{escape(line.name)}</title></polyline>'
    )


def _band(band: BandSeries, project: Projection) -> str:
    upper = [project(x, high) for x, _, high in band.points]
    lower = [project(x, low) for x, low, _ in reversed(band.points)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in upper + lower)
    return f'<polygon points="{points}" fill="{band.colour}" opacity=".18"/>'


def _bar(bar: Bar, project: Projection) -> str:
    left, top = project(bar.left, bar.height)
    right, bottom = project(bar.right, 0.0)
    width = max(right - left - 1.0, 0.5)
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{max(bottom - top, 0.0):.1f}" fill="{COLOURS[0]}">'
        f"<title>{bar.height:,.0f}</title></rect>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'
