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


def test_another_life_has_the_name_and_nothing_else() -> None:
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


def test_a_crash_that_comes_too_late_hits_nobody() -> None:
    simulation = quiet_run()
    ann = simulation.peers[0]
    ann.begin()
    ann.crash(life=7)
    assert ann.exchange is not None


def test_a_close_is_sent_before_the_end() -> None:
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
def test_applications_do_what_their_plan_says(plan: IpcPlan, kind: type) -> None:
    outcome = quiet_run(plan).run()
    assert outcome.violations == []
    assert any(isinstance(entry, kind) for entry in outcome.record.entries)


def test_a_pdu_may_be_reported_and_not_go() -> None:
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


def test_a_timer_that_does_not_move_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "next_timer", lambda self: 0.0)
    violations = quiet_run().run().violations
    assert "StuckTimer" in str(violations[0])
