"""Tests of the transcripts of both protocols."""

import pytest

from aqueduct.testing.ipc.record import IpcFault, IpcRecord
from aqueduct.testing.simulate import PROTOCOLS
from aqueduct.testing.transcript import transcript, transcript_hash
from tests.testing import scenes
from tests.testing.ipc.quiet import quiet_run


def test_a_transcript_has_one_line_per_entry() -> None:
    for record in (scenes.three_messages(), quiet_run().run().record):
        lines = list(transcript(record))
        assert len(lines) == len(record.entries)
        assert all("\n" not in line for line in lines)


def test_a_line_has_the_time_the_side_and_what_happened() -> None:
    lines = list(transcript(scenes.three_messages()))
    assert "   0.100000 client    sends message 0 on entrypoint: 4 B" in lines
    assert "   0.100000 client >> s2 entrypoint MESSAGE 0 (4 B)" in lines
    assert "   0.110000 server << s2 entrypoint MESSAGE 0 (4 B)" in lines
    assert "   0.150000 server    takes message 0 from entrypoint: 4 B" in lines
    assert any("ended: finished" in line for line in lines)


def test_a_line_has_the_time_the_endpoint_with_its_life_and_what_happened() -> None:
    text = "\n".join(transcript(quiet_run().run().record))
    assert "   0.000000 ann/1     starts: IpcSettings(" in text
    assert ">> bob HEADER " in text
    assert "<< ann DATA 1 " in text
    assert "INVALID_DESTINATION" in text
    assert " is complete\n" in text
    assert " ended: SUCCESS\n" in text


def test_a_loss_is_shown_with_its_lineage() -> None:
    lines = list(transcript(scenes.a_loss_that_spreads()))
    assert any("lost in transit (under client#1>, entrypoint)" in line for line in lines)


def test_a_fault_of_a_core_is_marked() -> None:
    record = IpcRecord(entries=[IpcFault(1.5, "core", 0, "KeyError: 7")])
    assert list(transcript(record)) == ["   1.500000 core/0 ✗  KeyError: 7"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_entry_of_many_runs_has_a_line(protocol: str) -> None:
    for seed in range(30):
        assert all(len(line) > 20 for line in transcript(PROTOCOLS[protocol](seed).record))


def test_the_hash_changes_with_any_line() -> None:
    assert transcript_hash(["a", "b"]) == transcript_hash(["a", "b"])
    assert transcript_hash(["a", "b"]) != transcript_hash(["ab"])
    assert transcript_hash(["a", "b"]) != transcript_hash(["b", "a"])
