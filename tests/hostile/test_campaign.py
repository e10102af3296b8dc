"""A few seconds of the campaigns, with attacks drawn from a seed.

These tests check errors and memory, not latency, so that they pass on a busy machine; `make soak`
checks latency.
"""

from __future__ import annotations

import asyncio
import os
from random import Random

import pytest

from tests.hostile.attackers import Addresses, Attack, all_attacks, keep_playing, outcome
from tests.hostile.bystanders import KINDS
from tests.hostile.campaign import BUDGETS, Report, Row, draw_rounds, play_mixed, show
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


@pytest.mark.parametrize("in_group", [False, True])
async def test_an_attack_with_a_defect_is_a_failure(in_group: bool) -> None:
    async def defective(_: Addresses, __: Random) -> None:
        if not in_group:
            raise KeyError("ipc_udp")
        async with asyncio.TaskGroup() as group:
            group.create_task(defect())

    async def defect() -> None:
        raise KeyError("ipc_udp")

    task = asyncio.ensure_future(keep_playing(Attack("x", "ipc", defective, 0), {}, Random(1)))
    await asyncio.wait([task], timeout=30)
    report = Report(1, ends={"x": outcome(task)})
    assert report.failures(judge_time=False) == [
        "x: FAILED: the attack crashed: KeyError: 'ipc_udp'"
    ]


async def test_a_peer_that_is_rejected_reconnects_until_the_attack_is_cancelled() -> None:
    runs = 0

    async def rejected(_: Addresses, __: Random) -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(3_600))
        raise ConnectionResetError

    task = asyncio.ensure_future(keep_playing(Attack("x", "ipc", rejected, 0), {}, Random(1)))
    async with asyncio.timeout(30):
        while runs < 3:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        task.cancel()
        await task
    assert outcome(task) == {"ConnectionResetError": 2}
    assert Report(1, ends={"x": outcome(task)}).failures(judge_time=False) == []


def test_latency_is_judged_only_where_asked_for() -> None:
    row = Row("x", "caller", idle=0.010, attacked=0.101, answers=100, grown=0)
    assert Report(1, [row]).failures(judge_time=True) == ["x, caller: FAILED: slow"]
    assert Report(1, [row]).failures(judge_time=False) == []
    row.attacked = 0.099
    assert Report(1, [row]).failures(judge_time=True) == []


def test_errors_are_always_judged() -> None:
    row = Row("x", "caller", idle=0.010, attacked=0.010, answers=100, grown=0, problems=["bad"])
    assert Report(1, [row]).failures(judge_time=False) == ["x, caller: FAILED: bad"]
