"""Tests of the demonstration."""

import io

import pytest
from rich.console import Console

from aqueduct.testing import demo


def test_the_demonstration_shows_every_fate(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main([]) == 0
    out = capsys.readouterr().out
    for mark in "✓✗☠⌫":
        assert mark in out
    assert "entrypoint" in out
    assert "All promises were kept" in out


def test_it_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main([])
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_a_seed_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--seed", "4"]) == 0
    assert "seed 4" in capsys.readouterr().out


def test_the_chosen_run_is_an_interesting_one() -> None:
    _, facts = demo.find_interesting()
    assert demo.is_interesting(facts)


def test_it_can_be_drawn_in_ascii() -> None:
    outcome, facts = demo.find_interesting()
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    demo.show(outcome, facts, Console(file=screen, width=80))
    screen.seek(0)
    assert "->" in screen.read()
