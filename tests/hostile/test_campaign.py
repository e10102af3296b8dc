"""A few seconds of the campaigns, with attacks drawn from a seed.

These tests check errors and memory, not latency, so that they pass on a busy machine; `make soak`
checks latency.
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


def test_every_attack_is_drawn_eventually() -> None:
    drawn = {name for chosen, _, _ in draw_rounds(1, 3_000, set(BUDGETS)) for name in chosen}
    assert drawn == set(all_attacks())


def test_every_attack_has_a_summary_and_a_client_beside_it() -> None:
    attended = {kind.area for kind in KINDS}
    for attack in all_attacks().values():
        assert attack.summary
        assert attack.area in attended & set(BUDGETS)
