"""The hoarder starts messages that it does not finish, without effect on other senders."""

from __future__ import annotations

from aqueduct.testing.ipc.hoarder import NAMES
from aqueduct.testing.ipc.record import PduArrived
from aqueduct.testing.ipc.simulation import simulate


def test_a_hoarder_gets_messages_begun_and_never_finishes_one() -> None:
    dripped = 0
    for seed in range(20):
        outcome = simulate(seed)
        assert outcome.violations == []
        for entry in outcome.record.entries:
            if isinstance(entry, PduArrived) and entry.source in NAMES:
                dripped += entry.pdu[0] == 1  # DATA: its HEADER was accepted
    assert dripped > 100
