"""Tests of the plans that seeds draw for endpoints."""

from random import Random

from aqueduct.testing.ipc.plan import draw_plan, draw_size


def test_the_same_seed_draws_the_same_plan() -> None:
    assert draw_plan(Random(7)) == draw_plan(Random(7))


def test_every_plan_satisfies_the_safety_conditions() -> None:
    for seed in range(200):
        configs = draw_plan(Random(seed)).configs
        assert 2 <= len(configs) <= 4
        longest_timeout = max(config.ack_timeout for config in configs)
        assert longest_timeout <= min(config.receive_timeout for config in configs)


def test_plans_vary() -> None:
    plans = [draw_plan(Random(seed)) for seed in range(200)]
    assert {len(plan.configs) for plan in plans} == {2, 3, 4}
    assert any(config.max_receives == 1 for plan in plans for config in plan.configs)
    assert any(config.max_pdu == 30_000 for plan in plans for config in plan.configs)
    assert any(any(plan.reports_sent) for plan in plans)
    assert any(plan.deaf for plan in plans)


def test_sizes_range_from_empty_to_many_pdus() -> None:
    sizes = [draw_size(Random(seed), 512, 5) for seed in range(300)]
    assert 0 in sizes
    assert 470 in sizes
    assert 471 in sizes
    assert 2_000 < max(sizes) <= 5 * 470 + 1
