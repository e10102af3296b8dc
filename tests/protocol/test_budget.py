"""Budgets of bytes that connections share."""

from aqueduct.protocol.budget import Budget, Share


def test_shares_have_an_allowance_each_and_share_the_rest() -> None:
    budget = Budget(100, 10)
    one, two = Share(budget), Share(budget)
    assert one.hold(110)
    assert budget.used == 100
    assert two.hold(10)
    assert not two.hold(11)
    assert budget.used == 100


def test_a_share_that_shrinks_returns_the_rest() -> None:
    budget = Budget(100, 10)
    one, two = Share(budget), Share(budget)
    assert one.hold(110)
    assert one.hold(60)
    assert two.hold(60)
    assert not one.hold(61)
    assert one.hold(0)
    assert budget.used == 50
    assert two.hold(0)
    assert budget.used == 0


def test_a_denied_share_keeps_its_bytes() -> None:
    budget = Budget(100, 0)
    share = Share(budget)
    assert share.hold(70)
    assert not share.hold(101)
    assert budget.used == 70
    assert share.hold(0)
    assert budget.used == 0
