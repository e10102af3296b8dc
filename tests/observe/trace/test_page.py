from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from aqueduct.observe.trace.page import match_frames, page
from aqueduct.observe.trace.read import read

VOID = {"meta", "rect", "line", "polyline", "path"}


class Balance(HTMLParser):
    """Checks that elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text(recorded: Path) -> str:
    return page(read(recorded), "A <trace>")


def test_the_page_is_well_formed(text: str) -> None:
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []


def test_the_page_is_self_contained(text: str) -> None:
    assert not re.search(r"https?://|src=|href=|@import|url\((?!#)", text)


def test_the_page_shows_fates_rates_tree_and_frames(text: str) -> None:
    assert "A &lt;trace&gt;" in text
    assert "lost with a channel above it" in text
    assert "<polyline" in text
    assert "client#6&gt;" in text
    assert "FINISH_SENDER" in text


def test_the_page_of_an_empty_trace_says_so(recorded: Path) -> None:
    assert "None were recorded." in page(read(recorded).slice(0, 0), "empty")


def test_frames_are_matched_between_the_ends(recorded: Path) -> None:
    rows = [
        {**row, "count": 1}
        for row in read(recorded).to_pylist()
        if row["channel"] == 0 and row["frame"] is not None
    ]
    arrows = match_frames(rows)
    assert all(arrow.sent is not None and arrow.received is not None for arrow in arrows)
