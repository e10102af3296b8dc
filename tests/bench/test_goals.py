import pytest

from bench.network import goals, suite
from bench.network.figures import Summary, summary
from bench.network.goals import Goal, judge


def results(**rows: float) -> dict[str, dict[str, Summary]]:
    """Return figures by names such as ``ours_R100`` and ``tls_R100``."""
    peers = {"ours": goals.OURS, "tls": "zenoh-tls"}
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


@pytest.mark.parametrize("of", [suite.CHANNELS, suite.IPC, suite.INGEST])
def test_every_goal_is_about_a_row_and_a_peer_that_exist(of: suite.Suite) -> None:
    peers = {peer.name for peer in of.peers}
    assert of.ours in peers
    assert set(of.compared) <= peers
    assert {goal.row for goal in of.goals} <= {row.name for row in of.rows}
    assert {goal.of for goal in of.goals if goal.of} <= peers
