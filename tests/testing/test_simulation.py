"""Tests of a whole run: set up by its seed, checked at its end."""

import pytest

from aqueduct.testing import CALM, Simulation
from aqueduct.testing.simulation import simulate


def test_a_run_is_drained_and_checked() -> None:
    outcome = simulate(1)
    assert outcome.record.drained
    assert outcome.record.leftovers == ([], [])
    assert outcome.violations == []
    assert outcome.counts["messages"] > 0


def test_a_caller_can_choose_the_faults() -> None:
    simulation = Simulation(1, faults=CALM)
    assert simulation.pair.network.faults is CALM
    assert simulation.run().violations == []


def test_an_error_in_a_core_is_a_violation_of_its_side(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(1)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(simulation.pair.server.core, "handle_stream_data", broken)
    outcome = simulation.run()
    (first, *_) = [v for v in outcome.violations if v.checker == "only documented errors"]
    assert "a bug" in first.text
    assert first.side is simulation.pair.server.side
