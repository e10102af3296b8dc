"""Budgets that connections share, per address and per server."""

from __future__ import annotations


class Budget:
    """So many bytes for all, past a little that each has whatever the others hold."""

    __slots__ = ("allowance", "limit", "used")

    def __init__(self, limit: int, allowance: int) -> None:
        self.limit = limit
        self.allowance = allowance
        self.used = 0


class Share:
    """What one connection holds of a budget."""

    __slots__ = ("_budget", "_used")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._used = 0

    def hold(self, held: int) -> bool:
        """The connection holds so many bytes now; False if that is more than there is."""
        budget = self._budget
        used = max(0, held - budget.allowance)
        more = used - self._used
        if more > 0 and budget.used + more > budget.limit:
            return False
        budget.used += more
        self._used = used
        return True


class Account:
    """The budgets of one address, before and after acceptance of its connections."""

    __slots__ = ("accepted", "early")

    def __init__(self, early: Budget, accepted: Budget) -> None:
        self.early = early
        self.accepted = accepted
