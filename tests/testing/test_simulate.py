"""Tests of the command that runs simulations."""

import json

import pytest

from aqueduct.testing import simulate as command
from aqueduct.testing.checkers import Violation
from aqueduct.testing.record import Record
from aqueduct.testing.simulation import RunOutcome
from aqueduct.testing.simulation import simulate as real_simulate


def fail(seed: int) -> RunOutcome[Record]:
    outcome = real_simulate(seed)
    if seed == 2:
        outcome.violations.append(Violation("was taken twice", checker="at most once"))
    return outcome


def test_a_seed_is_printed_as_a_transcript(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "CONNECTION_HEADERS" in out
    assert "transcript " in out.splitlines()[-1]


def test_a_transcript_can_be_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--seed", "3", "--grep", "CONNECTION_HEADERS"])
    lines = capsys.readouterr().out.splitlines()
    assert all("CONNECTION_HEADERS" in line for line in lines[:-1])


def test_many_seeds_are_summarized(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "0:5"]) == 0
    assert "5 seeds, all promises kept" in capsys.readouterr().out


def test_a_broken_promise_is_shown_with_the_command_to_replay_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(command.PROTOCOLS, "channels", fail)
    assert command.main(["--seeds", "0:5"]) == 1
    out = capsys.readouterr().out
    assert "seed 2: [at most once]: was taken twice" in out
    assert "python -m aqueduct.testing.simulate --seed 2" in out


def test_stop_at_first_stops_at_the_first_violation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(command.PROTOCOLS, "channels", fail)
    assert command.main(["--seeds", "0:50", "--stop-at-first", "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["seeds"] == 3
    assert summary["messages"] > 0
    assert summary["failed"] == {"2": ["[at most once]: was taken twice"]}


def test_the_number_of_processes_does_not_change_the_results() -> None:
    alone = list(command.run_seeds(range(4), jobs=1))
    together = list(command.run_seeds(range(4), jobs=2))
    assert alone == together


def test_scalable_ipc_can_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--protocol", "ipc", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "HEADER_ACK" in out
    assert " restarts, " in out.splitlines()[-1]
    assert command.main(["--protocol", "ipc", "--seeds", "0:5", "--jobs", "2"]) == 0
    assert "5 seeds, all promises kept" in capsys.readouterr().out


def test_the_command_to_replay_names_the_protocol(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(command.PROTOCOLS, "ipc", fail)
    assert command.main(["--protocol", "ipc", "--seeds", "0:5"]) == 1
    assert "simulate --protocol ipc --seed 2" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--seeds", "7"], ["--seed", "x"]])
def test_invalid_arguments_are_rejected(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        command.main(arguments)
    assert refusal.value.code == 2


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "--seeds 0:1000 --jobs 2" in capsys.readouterr().out
