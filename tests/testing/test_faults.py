"""Tests of the faults that seeds draw."""

from random import Random

from aqueduct.testing.faults import CALM, Faults, draw_faults


def test_the_same_seed_draws_the_same_network() -> None:
    assert draw_faults(Random(7), 1.0) == draw_faults(Random(7), 1.0)


def test_seeds_draw_networks_from_calm_to_severe() -> None:
    drawn = [draw_faults(Random(seed), 1.0) for seed in range(200)]
    assert any(faults.loss == 0 and faults.jitter == 0 for faults in drawn)
    assert any(faults.loss == 0.4 for faults in drawn)
    assert any(faults.jitter == 2.0 for faults in drawn)
    assert any(faults.blackouts for faults in drawn)


def test_a_blackout_ends_at_its_end_time() -> None:
    faults = Faults(blackouts=((1.0, 2.0),))
    assert faults.blackout_end(0.9) is None
    assert faults.blackout_end(1.0) == 2.0
    assert faults.blackout_end(2.0) is None


def test_a_calm_network_has_no_faults() -> None:
    assert CALM.loss == CALM.jitter == CALM.late_timer == 0
    assert CALM.blackouts == ()
