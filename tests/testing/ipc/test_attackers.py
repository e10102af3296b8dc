"""Tests of the attackers on the network."""

from __future__ import annotations

from dataclasses import replace

from aqueduct.testing.ipc.attackers import FORGER, HOARDERS
from aqueduct.testing.ipc.record import IpcTaken, PduArrived
from aqueduct.testing.ipc.simulation import simulate
from tests.testing.ipc.quiet import PLAN, quiet_run

MEDDLED = replace(PLAN, garbage=0.9, messages=60, turn=0.02)


def test_forged_pdus_break_no_promise() -> None:
    simulation = quiet_run(MEDDLED)
    outcome = simulation.run()
    assert outcome.violations == []
    strange = [
        entry
        for entry in outcome.record.entries
        if isinstance(entry, PduArrived) and entry.source == FORGER
    ]
    assert len(strange) > 20
    for peer in simulation.peers:
        assert peer.exchange is not None
        assert peer.exchange.statistics.malformed > 0
        assert peer.exchange.statistics.ignored > 0


def test_excess_bytes_in_pdus_are_cut_off() -> None:
    took = [
        entry
        for entry in quiet_run(MEDDLED).run().record.entries
        if isinstance(entry, IpcTaken) and entry.remote == FORGER
    ]
    assert {len(entry.payload) for entry in took} == {8, 40, 60}


def test_the_forger_is_off_by_default() -> None:
    assert quiet_run().network.on_datagram is None


def test_a_hoarder_starts_messages_without_effect_on_others() -> None:
    dripped = 0
    for seed in range(20):
        outcome = simulate(seed)
        assert outcome.violations == []
        for entry in outcome.record.entries:
            if isinstance(entry, PduArrived) and entry.source in HOARDERS:
                dripped += entry.pdu[0] == 1  # DATA: its HEADER was accepted
    assert dripped > 100
