"""Tests of the transcript of endpoints."""

from __future__ import annotations

from aqueduct.testing.ipc import simulate, transcript
from aqueduct.testing.ipc.record import IpcFault, IpcRecord
from tests.testing.ipc.quiet import quiet_run


def test_a_story_has_one_line_for_each_entry() -> None:
    record = quiet_run().run().record
    lines = list(transcript(record))
    assert len(lines) == len(record.entries)
    assert all("\n" not in line for line in lines)


def test_a_story_names_time_life_and_what_happened() -> None:
    text = "\n".join(transcript(quiet_run().run().record))
    assert "   0.000000 ann/1     begins: Config(" in text
    assert ">> bob HEADER " in text
    assert "<< ann DATA 1 " in text
    assert "INVALID_DESTINATION" in text
    assert " is whole\n" in text
    assert " ended: SUCCESS\n" in text


def test_a_broken_core_is_told() -> None:
    record = IpcRecord(entries=[IpcFault(1.5, "core", 0, "KeyError: 7")])
    assert list(transcript(record)) == ["   1.500000 core/0 ✗  KeyError: 7"]


def test_every_entry_of_many_runs_can_be_told() -> None:
    for seed in range(30):
        assert all(len(line) > 20 for line in transcript(simulate(seed).record))
