"""The HTML report: self-contained, with escaped names."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from aqueduct.spark.pipeline.report import page
from aqueduct.spark.pipeline.summary import Figures, Percentiles, Summary
from tests.spark.pipeline.test_summary import GOOD, a_summary

VOID = {"meta", "!doctype"}
FIGURES = Figures(
    rows={},
    distinct={},
    windowed={},
    too_late={},
    windows=6,
    latency=Percentiles(0.5, 1.0, 1.5),
    start=1_767_323_040.0,
    rates={"ordered": [(0, 10.0), (1, 12.0)], "unreliable": [(0, 9.0), (1, 8.0)]},
    latencies=[(0, 0.5, 1.0), (1, 0.6, 1.2)],
    histogram=[(0.0, 0.5, 3), (0.5, 1.0, 5)],
    devices={"device-<1>": [(2.5, 20.0, 18.0, 22.0), (7.5, 21.0, 19.0, 23.0)]},
)


def a_page(**more: object) -> str:
    summary: Summary = replace(a_summary(), figures=FIGURES)
    return page(replace(summary, **more))  # type: ignore[arg-type]


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_element_is_closed() -> None:
    balance = Balance()
    balance.feed(a_page())
    assert balance.open == []


def test_the_page_is_self_contained() -> None:
    text = a_page()
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


def test_names_are_escaped() -> None:
    text = a_page(topics=["<b>topic</b>"], out='"><script>')
    assert "<b>topic" not in text
    assert "<script" not in text
    assert "device-&lt;1&gt;" in text


def test_the_page_reports_inconsistent_counts() -> None:
    assert "Every record is accounted for" in a_page()
    wrong = a_page(totals={**a_summary().totals, "ordered": replace(GOOD, sent=99)})
    assert "Inconsistent: ordered: 99 sent" in wrong


def test_the_page_has_all_charts() -> None:
    text = a_page()
    assert text.count("<svg") == 4
    assert "records/s" in text
    assert "500 ms" in text


def test_a_run_without_records_has_a_page() -> None:
    text = page(replace(a_summary(), figures=Figures({}, {}, {}, {}, 0, None)))
    assert "nothing was sent" in text
    assert "No window was closed" in text
