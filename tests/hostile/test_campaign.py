"""A short share of the campaigns: attacks drawn from a seed, with well-behaved clients beside.

No time is judged here, so that a busy machine does not matter; `make soak` does that.
"""

from __future__ import annotations

import os

import pytest

from tests.hostile.attackers import all_attacks
from tests.hostile.bystanders import KINDS
from tests.hostile.campaign import BUDGETS, draw_rounds, play_mixed, show
from tests.processes.peers import bounded

SEED = int(os.environ.get("HOSTILE_SEED", "12"))
SECONDS = 5.0


@pytest.mark.parametrize("area", sorted(BUDGETS))
@bounded
async def test_clients_beside_an_attack_see_no_error_and_servers_stay_within_budget(
    area: str,
) -> None:
    report = await play_mixed(SEED, SECONDS, {area}, idle=0.5, length=SECONDS / 2)
    show(report.rows, judge_time=False)
    assert report.failures(judge_time=False) == []
    assert all(row.answers for row in report.rows)


def test_a_seed_draws_the_same_campaign_again() -> None:
    areas = set(BUDGETS)
    assert list(draw_rounds(7, 60, areas)) == list(draw_rounds(7, 60, areas))
    assert list(draw_rounds(7, 60, areas)) != list(draw_rounds(8, 60, areas))


def test_every_attack_is_drawn_sooner_or_later() -> None:
    drawn = {name for chosen, _, _ in draw_rounds(1, 3_000, set(BUDGETS)) for name in chosen}
    assert drawn == set(all_attacks())


def test_every_attack_says_what_it_is_about_and_somebody_is_beside_it() -> None:
    attended = {kind.area for kind in KINDS}
    for attack in all_attacks().values():
        assert attack.summary
        assert attack.area in attended & set(BUDGETS)
