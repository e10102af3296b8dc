"""Tests of whole runs of endpoints."""

from __future__ import annotations

import pytest

from aqueduct.ipc.core.exchange import Exchange
from aqueduct.testing.ipc.record import IpcEnded, IpcSent, IpcTaken
from aqueduct.testing.ipc.simulation import simulate
from tests.testing.ipc.quiet import quiet_run


def test_everything_sent_in_a_quiet_run_is_taken() -> None:
    outcome = quiet_run().run()
    entries = outcome.record.entries
    sent = sorted(entry.payload for entry in entries if isinstance(entry, IpcSent))
    assert sent == sorted(entry.payload for entry in entries if isinstance(entry, IpcTaken))
    assert {entry.code for entry in entries if isinstance(entry, IpcEnded)} == {0}
    assert outcome.counts == {"messages": len(sent), "restarts": 0}


def test_a_run_ends_with_a_message_from_each_endpoint_to_the_next() -> None:
    farewells = [
        (entry.endpoint, entry.remote)
        for entry in quiet_run().run().record.entries
        if isinstance(entry, IpcSent) and entry.must_arrive
    ]
    assert farewells == [("ann", "bob"), ("bob", "ann")]


def test_runs_end_with_nothing_held() -> None:
    for seed in range(10):
        record = simulate(seed).record
        assert record.drained
        assert not any(record.leftovers.values())
        assert not any(record.processed.values())


def test_an_error_of_a_core_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Exchange, message: bytes) -> bool:
        raise KeyError(7)

    monkeypatch.setattr(Exchange, "take", fail)
    violations = quiet_run().run().violations
    assert "KeyError: 7" in str(violations[0])
