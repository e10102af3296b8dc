"""Pictures for Markdown pages: panels of lines as one SVG file, the x axis logarithmic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from aqueduct.observe.charts import COLOURS, Axis

Point = tuple[float, float]

_WIDTH, _HEIGHT = 320, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 52, 36
_STYLE = (
    "text { font: 11px ui-monospace, monospace; fill: #777 } .title { font-weight: bold } "
    ".grid { stroke: #8883 } .axis { stroke: #8888 }"
)


@dataclass(frozen=True)
class Panel:
    """One of the charts of a picture."""

    title: str
    x_title: str
    lines: Mapping[str, Sequence[Point]]
    """By name, in the order of x; x is more than 0."""


def picture(title: str, panels: Sequence[Panel]) -> str:
    """Return an SVG file with the panels beside each other."""
    width = _WIDTH * len(panels)
    drawn = "".join(
        f'<g transform="translate({_WIDTH * at},0)">{_panel(panel)}</g>\n'
        for at, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" '
        f'height="{_HEIGHT}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{drawn}</svg>\n"
    )


def _panel(panel: Panel) -> str:
    points = [point for line in panel.lines.values() for point in line]
    low, high = (log10(pick(x for x, _ in points)) for pick in (min, max))
    y_axis = Axis.fit(0.0, max(y for _, y in points), 4)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def project(x: float, y: float) -> Point:
        share = (log10(x) - low) / ((high - low) or 1.0)
        return (
            _LEFT + (right - _LEFT) * share,
            bottom - (bottom - _TOP) * y_axis.share(y),
        )

    parts = [_text(6, 14, panel.title, "start", ' class="title"')]
    for y in y_axis.ticks:
        _, at = project(10**low, y)
        parts.append(_rule(_LEFT, at, right, at, "grid"))
        parts.append(_text(_LEFT - 6, at + 4, y_axis.label(y), "end"))
    for x in sorted({x for x, _ in points}):
        at, _ = project(x, 0.0)
        parts.append(_rule(at, bottom, at, bottom + 4, "axis"))
        parts.append(_text(at, bottom + 16, f"{x:,.0f}", "middle"))
    parts.append(_rule(_LEFT, bottom, right, bottom, "axis"))
    parts.append(_text(right, _HEIGHT - 4, panel.x_title, "end"))
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        placed = [project(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in placed]
        parts.append(_text(_LEFT + 90 * number, 34, name, "start", f' style="fill:{colour}"'))
    return "".join(parts)


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
