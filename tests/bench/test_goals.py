from dataclasses import replace

import pytest

from bench.network import goals, suite
from bench.network.figures import Summary, summary
from bench.network.goals import Goal, judge


def results(**rows: float) -> dict[str, dict[str, Summary]]:
    """Return figures by names such as ``ours_R100`` and ``tls_R100``."""
    peers = {"ours": goals.OURS, "tcp": goals.OVER_TCP, "tls": "zenoh-tls"}
    found: dict[str, dict[str, Summary]] = {}
    for name, value in rows.items():
        peer, _, row = name.partition("_")
        found.setdefault(peers[peer], {})[row] = summary([value])
    return found


FASTER = Goal("R", "rate", 1.0, at_least=True, of="zenoh-tls")
SOONER = Goal("L", "round trip", 0.7, at_least=False, of="zenoh-tls")
SMALL = Goal("M", "memory", 600, at_least=False)


def test_a_rate_is_compared_by_its_ratio_to_the_peer() -> None:
    assert judge(FASTER, results(ours_R=200, tls_R=100)).word == "met"
    assert judge(FASTER, results(ours_R=100, tls_R=100)).word == "met"
    verdict = judge(FASTER, results(ours_R=99, tls_R=100))
    assert (verdict.reached, verdict.word) == (0.99, "not met")


def test_a_time_must_be_below_its_bound() -> None:
    assert judge(SOONER, results(ours_L=69, tls_L=100)).met
    assert judge(SOONER, results(ours_L=71, tls_L=100)).met is False


def test_memory_must_be_below_its_bound() -> None:
    assert judge(SMALL, results(ours_M=599.9)).met
    assert judge(SMALL, results(ours_M=600)).met is False


def test_a_goal_judges_the_peer_that_it_names() -> None:
    found = results(ours_R=90, tcp_R=150, tls_R=100)
    assert judge(FASTER, found).reached == 0.9
    assert judge(replace(FASTER, ours=goals.OVER_TCP), found).reached == 1.5


def test_a_figure_can_be_compared_with_another_row() -> None:
    goal = Goal("CALL", "call", 1.3, at_least=False, of=goals.OURS, of_row="L")
    assert goal.text == "≤ 1.3 times L of aqueduct"
    assert judge(goal, results(ours_CALL=130, ours_L=100)).met
    assert judge(goal, results(ours_CALL=131, ours_L=100)).met is False
    assert judge(goal, results(ours_CALL=130)).met is None


def test_channels_have_the_same_goals_over_each_transport_beside_the_peer_that_uses_it() -> None:
    bounds = {
        ours: {(goal.row, goal.what, goal.at_least) for goal in goals.GOALS if goal.ours == ours}
        for ours in suite.CHANNELS.ours
    }
    assert bounds[goals.OURS] == bounds[goals.OVER_TCP]
    compared = {(goal.ours, goal.of) for goal in goals.GOALS if goal.of and not goal.of_row}
    assert compared == {(goals.OURS, "zenoh-quic"), (goals.OVER_TCP, "zenoh-tls")}


def test_a_goal_without_its_figures_is_neither_met_nor_missed() -> None:
    for found in (results(), results(ours_R=100), results(tls_R=100)):
        verdict = judge(FASTER, found)
        assert verdict.met is None
        assert verdict.word == "not measured"


def test_a_goal_shows_its_bound() -> None:
    assert [goal.text for goal in (FASTER, SOONER, SMALL)] == [
        "≥ 1 times zenoh-tls",
        "≤ 0.7 times zenoh-tls",
        "< 600",
    ]
    assert Goal("T", "typed", 250_000, at_least=True).text == "≥ 250,000"


@pytest.mark.parametrize("of", [suite.CHANNELS, suite.IPC, suite.INGEST, suite.SPARK])
def test_every_goal_is_about_a_row_and_a_peer_that_exist(of: suite.Suite) -> None:
    peers = {peer.name for peer in of.peers}
    rows = {row.name for row in of.rows}
    assert set(of.ours) <= peers
    assert {peer for compared in of.ours.values() for peer in compared} <= peers
    assert {goal.ours for goal in of.goals} == set(of.ours)
    assert {goal.row for goal in of.goals} <= rows
    assert {goal.of for goal in of.goals if goal.of} <= peers
    assert {goal.of_row for goal in of.goals if goal.of_row} <= rows
