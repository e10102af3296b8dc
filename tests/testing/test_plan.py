"""Tests of the plans that seeds draw for their applications."""

from random import Random

from aqueduct.protocol.connection import Mode
from aqueduct.protocol.priorities import CLASSES
from aqueduct.testing.plan import DRAFT_SHARE, draw_limits, draw_plan
from aqueduct.testing.record import CommandCalled
from aqueduct.testing.simulation import Simulation
from aqueduct.wire.chanid import ENTRYPOINT, Side, creator_of


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


def test_one_side_knows_only_the_draft_in_fifteen_percent_of_the_plans() -> None:
    drafts = [draw_plan(Random(seed)).draft for seed in range(2_000)]
    sides = [draft for draft in drafts if draft is not None]
    assert abs(len(sides) / len(drafts) - DRAFT_SHARE) < 0.03
    assert 0.4 < sides.count(Side.CLIENT) / len(sides) < 0.6


def test_senders_have_priorities_in_half_of_the_runs_and_room_is_short_in_most_of_those() -> None:
    simulations = [Simulation(seed) for seed in range(400)]
    ranked = [each for each in simulations if each.plan.priorities]
    assert 0.4 < len(ranked) / len(simulations) < 0.6
    assert {one for each in ranked for one in each.plan.priorities} == set(range(CLASSES))
    short = [each.pair.network.faults for each in ranked if each.pair.network.faults.room]
    assert 0.6 < len(short) / len(ranked) < 0.9
    assert {faults.holds_datagrams for faults in short} == {True, False}
    assert any(each.plan.draft is not None for each in ranked)


def test_applications_set_how_fast_they_ack_in_a_third_of_the_runs() -> None:
    plans = [Simulation(seed).plan for seed in range(400)]
    chosen = [plan.delivery for plan in plans if plan.delivery is not None]
    assert 0.25 < len(chosen) / len(plans) < 0.45
    assert {each.ack_delay for pair in chosen for each in pair} == {0.0, 0.002, 0.03, 0.3}
    (seed, *_) = [seed for seed, plan in enumerate(plans) if plan.delivery is not None]
    simulation = Simulation(seed)
    delivery = simulation.plan.delivery
    assert delivery is not None
    assert simulation.pair.record.ack_delays == (delivery[0].ack_delay, delivery[1].ack_delay)
    for endpoint, one in zip(simulation.pair.endpoints, delivery, strict=True):
        if not endpoint.knows_draft_only:
            assert endpoint.core.config.receipt_deadline_min == one.receipt_deadline_min


def test_every_kind_of_sender_is_given_every_mode() -> None:
    """AQ-SEND-3: the entrypoint, senders that stayed, and senders that were received."""
    given = set()
    for seed in range(100):
        for entry in Simulation(seed).run().record.entries:
            if isinstance(entry, CommandCalled) and entry.verb == "set mode":
                kind = "received"
                if entry.channel == ENTRYPOINT:
                    kind = "entrypoint"
                elif creator_of(entry.channel) == entry.side:
                    kind = "made"
                given.add((kind, entry.detail))
    kinds = ("entrypoint", "made", "received")
    assert given == {(kind, mode.name) for kind in kinds for mode in Mode}
