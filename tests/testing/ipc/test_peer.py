"""Tests of a simulated endpoint across restarts, and of its application."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aqueduct.ipc.core.exchange import Exchange
from aqueduct.testing.ipc.plan import IpcPlan
from aqueduct.testing.ipc.record import (
    Cancelled,
    IpcEnded,
    IpcRefused,
    IpcTaken,
    LifeStarted,
    LifeStopped,
    OwnerIdChanged,
    PduSent,
    Reported,
)
from tests.testing.ipc.quiet import PLAN, quiet_run


def test_a_new_life_keeps_only_the_name() -> None:
    simulation = quiet_run()
    ann, bob = simulation.peers
    bob.begin()
    ann.begin()
    ann.send("bob", 10)
    ann.crash(life=1)
    assert ann.exchange is None
    assert not ann.open_sends
    simulation.clock.run(1.0)
    entries = simulation.record.entries
    assert [entry.life for entry in entries if isinstance(entry, LifeStarted)] == [1, 1, 2]
    assert [entry.how for entry in entries if isinstance(entry, LifeStopped)] == ["crashed"]
    owners = {entry.owner[:8] for entry in entries if isinstance(entry, OwnerIdChanged)}
    assert len(owners) == 3


def test_a_crash_after_the_life_ended_has_no_effect() -> None:
    simulation = quiet_run()
    ann = simulation.peers[0]
    ann.begin()
    ann.crash(life=7)
    assert ann.exchange is not None


def test_a_close_sends_its_aborts_before_the_stop() -> None:
    simulation = quiet_run()
    ann, bob = simulation.peers
    bob.begin()
    ann.begin()
    ann.send("bob", 10)
    ann.turn_over()
    ann.close()
    kinds = [type(entry) for entry in simulation.record.entries]
    assert kinds.index(IpcEnded) < kinds.index(LifeStopped)


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (replace(PLAN, cancel=1.0, eager=0.0, take_delay=9.0), Cancelled),
        (replace(PLAN, refuse=1.0), IpcRefused),
        (replace(PLAN, crash_after_take=1.0), LifeStopped),
        (replace(PLAN, reports_sent=(True, True), report_delay=0.1), Reported),
    ],
)
def test_applications_follow_their_plan(plan: IpcPlan, kind: type) -> None:
    outcome = quiet_run(plan).run()
    assert outcome.violations == []
    assert any(isinstance(entry, kind) for entry in outcome.record.entries)


def test_a_pdu_may_be_reported_as_sent_and_be_dropped() -> None:
    simulation = quiet_run(replace(PLAN, reports_sent=(True, True), report_fails=1.0))
    ann, bob = simulation.peers
    bob.begin()
    ann.begin()
    ann.send("bob", 10)
    ann.turn_over()
    simulation.clock.run(0.5)
    entries = simulation.record.entries
    assert sum(isinstance(entry, PduSent) for entry in entries) > 1
    assert not any(isinstance(entry, IpcTaken) for entry in entries)


def test_a_stuck_timer_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "next_timer", lambda self: 0.0)
    violations = quiet_run().run().violations
    assert "StuckTimer" in str(violations[0])
