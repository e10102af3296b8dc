"""Charts as SVG text for pages that need nothing else: lines, bands and bars, axes with units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
Place = Callable[[float, float], Point]
"""Where a point of the data is in the picture."""

COLOURS = ("#1f77d0", "#d9730d", "#2e9b5f", "#a259c9", "#c0392b", "#7f8c8d")
"""Readable on light and on dark."""
CHARACTER = 6.8
"""Width of a character of 11 pixels, about; to keep words apart."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 30, 36
_TICK = 4


@dataclass(frozen=True)
class Line:
    """Points that belong together, in the order of x."""

    name: str
    points: Sequence[Point]
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Band:
    """What is between two lines: x, the lower and the upper y."""

    points: Sequence[tuple[float, float, float]]
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Bar:
    """From one x to another."""

    left: float
    right: float
    height: float


@dataclass(frozen=True)
class Marker:
    """A vertical line with a name."""

    x: float
    name: str
    colour: str = COLOURS[4]


@dataclass(frozen=True)
class Chart:
    """A picture with two axes; what it shows is scaled to fit."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line] = ()
    bands: Sequence[Band] = ()
    bars: Sequence[Bar] = ()
    markers: Sequence[Marker] = ()
    width: int = 960
    height: int = 260
    from_zero: bool = True
    """Whether the y axis begins at zero."""

    def svg(self) -> str:
        """The picture."""
        xs, ys = self._values()
        if not ys:
            return f'<p class="note">{escape(self.title)}: there is nothing to draw.</p>'
        plot_width = self.width - _LEFT - _RIGHT
        plot_height = self.height - _TOP - _BOTTOM
        x_axis = Axis.fit(min(xs), max(xs), max(int(plot_width / 90), 2), tight=True)
        low = min(0.0, *ys) if self.from_zero else min(ys)
        y_axis = Axis.fit(low, max(ys), max(int(plot_height / 42), 2))

        def place(x: float, y: float) -> Point:
            return (
                _LEFT + plot_width * x_axis.share(x),
                _TOP + plot_height * (1.0 - y_axis.share(y)),
            )

        parts = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}">',
            f"<title>{escape(self.title)}</title>",
            *self._grid(x_axis, y_axis, place),
            *(_band(each, place) for each in self.bands),
            *(_bar(each, place) for each in self.bars),
            *(_line(each, place) for each in self.lines),
            *self._markers(place),
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

    def _grid(self, x_axis: Axis, y_axis: Axis, place: Place) -> list[str]:
        right, bottom = self.width - _RIGHT, self.height - _BOTTOM
        parts = []
        for y in y_axis.ticks:
            _, at = place(x_axis.low, y)
            parts.append(_rule(_LEFT, at, right, at, "grid"))
            parts.append(_text(_LEFT - 8, at + 4, y_axis.label(y), "end"))
        for x in x_axis.ticks:
            at, _ = place(x, y_axis.low)
            parts.append(_rule(at, bottom, at, bottom + _TICK, "axis"))
            parts.append(_text(at, bottom + 16, x_axis.label(x), "middle"))
        parts.append(_rule(_LEFT, bottom, right, bottom, "axis"))
        parts.append(_text(right, self.height - 4, self.x_title, "end"))
        parts.append(_text(4, 14, self.y_title, "start"))
        return parts

    def _markers(self, place: Place) -> list[str]:
        parts = []
        bottom = self.height - _BOTTOM
        rows: list[float] = []
        """Where the last name of each row ends; a name goes into the first row with room."""
        for marker in sorted(self.markers, key=lambda each: each.x):
            at, _ = place(marker.x, 0.0)
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
    """A range with round numbers on it."""

    def __init__(self, low: float, high: float, step: float) -> None:
        self.low, self.high, self.step = low, high, step

    @classmethod
    def fit(cls, low: float, high: float, count: int, *, tight: bool = False) -> Axis:
        """An axis for these values with about so many numbers; a tight one ends where they do."""
        if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
            low, high = low - (0.5 if low else 0.0), high + (0.5 if low else 1.0)
        step = nice_step((high - low) / count)
        if not tight:
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        return cls(low, high, step)

    @property
    def ticks(self) -> list[float]:
        """The round numbers."""
        first = math.ceil(self.low / self.step - 1e-9)
        last = math.floor(self.high / self.step + 1e-9)
        return [number * self.step for number in range(first, last + 1)]

    def share(self, value: float) -> float:
        """How far along the axis a value is, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def label(self, value: float) -> str:
        """A number, with as many digits as the step needs."""
        digits = max(-math.floor(math.log10(self.step) + 1e-9), 0)
        return f"{0.0 if abs(value) < self.step / 2 else value:,.{digits}f}"


def nice_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    for each in (1, 2, 5):
        if each * power >= least * (1 - 1e-9):
            return each * power
    return 10 * power


def _line(line: Line, place: Place) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line.points))
    return (
        f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2" '
        f'stroke-linejoin="round"><title>{escape(line.name)}</title></polyline>'
    )


def _band(band: Band, place: Place) -> str:
    upper = [place(x, high) for x, _, high in band.points]
    lower = [place(x, low) for x, low, _ in reversed(band.points)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in upper + lower)
    return f'<polygon points="{points}" fill="{band.colour}" opacity=".18"/>'


def _bar(bar: Bar, place: Place) -> str:
    left, top = place(bar.left, bar.height)
    right, bottom = place(bar.right, 0.0)
    width = max(right - left - 1.0, 0.5)
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{max(bottom - top, 0.0):.1f}" fill="{COLOURS[0]}">'
        f"<title>{bar.height:,.0f}</title></rect>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, words: str, anchor: str, colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(words)}</text>'
