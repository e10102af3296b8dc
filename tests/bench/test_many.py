"""Few connections, subscribers and channels, to check that the benchmark of many works."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from bench.__main__ import main
from bench.builds import SOURCES
from bench.many import command
from bench.many.command import QUICK, measure
from bench.many.crowd import shares
from bench.many.picture import Panel, picture
from bench.many.report import PARTS, Run, as_markdown, as_picture
from bench.network.processes import Failed

BRIEF = replace(QUICK, connections=(2, 5), trips=2, idle=0.05, subscribers=(2, 3), seconds=0.05)


@pytest.mark.parametrize("transport", ["quic", "tcp"])
def test_every_part_yields_all_of_its_figures(transport: str) -> None:
    run = Run(["a machine"])
    for part in PARTS:
        measure(run, part, transport, BRIEF, SOURCES)
    assert run.failures == []
    for part, rows in PARTS.items():
        by_count = run.found[part][transport]
        assert tuple(by_count) == getattr(BRIEF, part)
        for result in by_count.values():
            assert result.keys() >= rows.keys()
            assert all(result[name] >= 0 for name in rows if name != "memory")
    text = as_markdown(run)
    assert text.count(f"| {transport.upper()} |") == 6
    ElementTree.fromstring(as_picture(run))


def test_a_failed_part_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Failed("the client ended early")

    monkeypatch.setattr(command, "measure_channels", fail)
    run = Run(["a machine"])
    measure(run, "channels", "tcp", BRIEF, SOURCES)
    assert "Failed: channels over TCP: the client ended early" in as_markdown(run)


def test_no_more_connections_are_opened_than_files_are_allowed() -> None:
    run = Run(["a machine"])
    too_many = replace(BRIEF, connections=(2, 10_000_000))
    measure(run, "connections", "tcp", too_many, SOURCES)
    assert tuple(run.found["connections"]["tcp"]) == (2,)
    assert "Fewer than 10,000,000 connections" in as_markdown(run)


def test_the_clients_share_what_there_is() -> None:
    assert [sum(shares(count)) for count in range(5)] == [0, 1, 2, 3, 4]


def test_a_picture_escapes_its_texts_and_has_a_line_for_each_name() -> None:
    panel = Panel("a < b", "x & y", {"one": [(1, 2), (10, 4)], "two": [(1, 0), (1_000, 1)]})
    text = picture("<&>", [panel, panel])
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == "<&>"
    assert text.count("<polyline") == 4
    assert text.count(">1,000<") == 2


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["many", "--help"])
    assert "python -m bench many --only" in capsys.readouterr().out
