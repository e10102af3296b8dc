"""Tests of the transcript of a run."""

from aqueduct.testing.simulation import simulate
from aqueduct.testing.transcript import transcript, transcript_hash
from tests.testing import scenes


def test_a_story_has_one_line_for_each_entry() -> None:
    record = scenes.three_messages()
    assert len(list(transcript(record))) == len(record.entries)


def test_a_story_names_time_side_and_what_happened() -> None:
    lines = list(transcript(scenes.three_messages()))
    assert "   0.100000 client    sends message 0 on entrypoint: 4 B" in lines
    assert "   0.100000 client >> s2 entrypoint MESSAGE 0 (4 B)" in lines
    assert "   0.110000 server << s2 entrypoint MESSAGE 0 (4 B)" in lines
    assert "   0.150000 server    takes message 0 from entrypoint: 4 B" in lines
    assert any("ended: finished" in line for line in lines)


def test_a_loss_is_told_with_its_lineage() -> None:
    lines = list(transcript(scenes.a_loss_that_spreads()))
    assert any("lost in transit (under client#1>, entrypoint)" in line for line in lines)


def test_every_entry_of_many_runs_can_be_told() -> None:
    for seed in range(30):
        assert all(len(line) > 20 for line in transcript(simulate(seed).record))


def test_the_hash_changes_with_any_line() -> None:
    assert transcript_hash(["a", "b"]) == transcript_hash(["a", "b"])
    assert transcript_hash(["a", "b"]) != transcript_hash(["ab"])
    assert transcript_hash(["a", "b"]) != transcript_hash(["b", "a"])
