"""Tests of the plans that seeds draw for their applications."""

from random import Random

from aqueduct.protocol.connection import Mode
from aqueduct.testing.plan import draw_limits, draw_plan


def test_the_same_seed_draws_the_same_plan() -> None:
    assert draw_plan(Random(3)) == draw_plan(Random(3))


def test_plans_leave_out_different_features() -> None:
    plans = [draw_plan(Random(seed)) for seed in range(300)]
    assert {plan.modes for plan in plans} >= {(mode,) for mode in Mode}
    assert any(plan.lost_at is not None for plan in plans)
    assert any(plan.close_at is not None for plan in plans)
    assert any(plan.leave_at is not None for plan in plans)
    assert any(plan.refuse for plan in plans)
    assert any(dict(plan.weights)["cancel"] == 0 for plan in plans)
    assert any(plan.unclaimed > 0 for plan in plans)


def test_windows_are_reached_in_many_runs() -> None:
    limits = [draw_limits(Random(seed)) for seed in range(200)]
    small = [each for each in limits if each.channel_window < 5000]
    assert 50 < len(small) < 150
    assert all(each.connection_window >= 1 for each in limits)
