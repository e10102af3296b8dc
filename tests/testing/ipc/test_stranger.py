"""Tests of the attacker on the network."""

from __future__ import annotations

from dataclasses import replace

from aqueduct.testing.ipc.record import IpcTaken, PduArrived
from aqueduct.testing.ipc.stranger import STRANGER
from tests.testing.ipc.quiet import PLAN, quiet_run

MEDDLED = replace(PLAN, garbage=0.9, messages=60, turn=0.02)


def test_what_a_stranger_sends_breaks_no_promise() -> None:
    simulation = quiet_run(MEDDLED)
    outcome = simulation.run()
    assert outcome.violations == []
    strange = [
        entry
        for entry in outcome.record.entries
        if isinstance(entry, PduArrived) and entry.source == STRANGER
    ]
    assert len(strange) > 20
    for peer in simulation.peers:
        assert peer.exchange is not None
        assert peer.exchange.statistics.malformed > 0
        assert peer.exchange.statistics.ignored > 0


def test_a_message_with_too_much_in_its_pdus_is_received_as_long_as_it_said() -> None:
    took = [
        entry
        for entry in quiet_run(MEDDLED).run().record.entries
        if isinstance(entry, IpcTaken) and entry.remote == STRANGER
    ]
    assert {len(entry.payload) for entry in took} == {8, 40, 60}


def test_nobody_meddles_unless_asked_to() -> None:
    assert quiet_run().network.on_datagram is None
