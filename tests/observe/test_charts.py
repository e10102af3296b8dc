"""Charts: round numbers on the axes, everything inside the picture, and no overlaps."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.observe.charts import (
    CHARACTER,
    Axis,
    BandSeries,
    Bar,
    Chart,
    LineSeries,
    Marker,
    html_page,
    html_table,
    nice_step,
)


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def boxes(picture: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Return the boxes of the texts: left, top, right, bottom."""
    found = []
    for text in picture.iter("text"):
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        width = CHARACTER * len(text.text or "")
        left = {"start": x, "middle": x - width / 2, "end": x - width}[text.attrib["text-anchor"]]
        found.append((left, y - 9, left + width, y + 2))
    return found


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return (
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    )  # fmt: skip


def coordinates(picture: ElementTree.Element) -> list[tuple[float, float]]:
    found = []
    for element in picture.iter():
        points = re.findall(r"(-?[\d.]+),(-?[\d.]+)", element.attrib.get("points", ""))
        found += [(float(x), float(y)) for x, y in points]
        if element.tag == "rect":
            x, y, width, height = (
                float(element.attrib[name]) for name in ("x", "y", "width", "height")
            )
            found += [(x, y), (x + width, y + height)]
    return found


FULL = Chart(
    "Latency <over> time & more",
    "seconds",
    "seconds of latency",
    [
        LineSeries("p50", [(0, 0.5), (10, 0.7), (20, 0.6)]),
        LineSeries("p95", [(0, 1.5), (10, 123_456.7), (20, 1.6)], "#d9730d"),
    ],
    [BandSeries([(0, 0.2, 0.8), (20, 0.1, 2.0)])],
    [Bar(0, 5, 10), Bar(5, 10, 20)],
    [Marker(4.0, "p50"), Marker(4.2, "p95"), Marker(19.99, "p99")],
)


def test_everything_is_inside_the_picture() -> None:
    for x, y in coordinates(drawn(FULL)):
        assert 0 <= x <= FULL.width
        assert 0 <= y <= FULL.height
    for left, top, right, bottom in boxes(drawn(FULL)):
        assert left >= 0
        assert right <= FULL.width + 1
        assert top >= 0
        assert bottom <= FULL.height


@pytest.mark.parametrize("width", [960, 320])
def test_texts_do_not_overlap(width: int) -> None:
    chart = Chart(FULL.title, "seconds", "latency", FULL.lines, width=width, markers=FULL.markers)
    words = boxes(drawn(chart))
    for at, one in enumerate(words):
        for other in words[at + 1 :]:
            assert not overlap(one, other), (one, other)


def test_texts_are_escaped() -> None:
    text = FULL.svg()
    assert "<over>" not in text
    assert "&lt;over&gt;" in text
    assert drawn(FULL).findtext("title") == FULL.title


def test_a_page_and_its_tables_are_escaped() -> None:
    text = html_page("<title>", [html_table(("name", "<count>"), [["<one>", "1"]])])
    assert text.count("&lt;title&gt;") == 2
    assert '<th class="number">&lt;count&gt;</th>' in text
    assert '<td>&lt;one&gt;</td><td class="number">1</td>' in text


def test_a_chart_without_points_says_so() -> None:
    assert Chart("Rates <x>", "s", "n").svg().count("<") == 2
    assert "nothing to draw" in Chart("Rates", "s", "n", [LineSeries("one", [])]).svg()


def test_a_chart_may_have_one_point() -> None:
    picture = drawn(Chart("One", "s", "n", [LineSeries("one", [(3.0, 7.0)])], from_zero=False))
    assert all(math.isfinite(x) and math.isfinite(y) for x, y in coordinates(picture))


@given(st.floats(1e-6, 1e9))
def test_a_step_is_round_and_large_enough(least: float) -> None:
    step = nice_step(least)
    assert least * (1 - 1e-6) <= step <= 2.5 * least * (1 + 1e-6)
    digits = f"{step:e}".partition("e")[0].rstrip("0").rstrip(".")
    assert digits in {"1", "2", "5"}


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_an_axis_covers_its_values_with_few_ticks(low: float, length: float, count: int) -> None:
    axis = Axis.fit(low, low + length, count)
    assert axis.low <= low + 1e-6 * length
    assert axis.high >= low + length * (1 - 1e-6)
    assert 2 <= len(axis.ticks) <= count + 3
    assert len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)
