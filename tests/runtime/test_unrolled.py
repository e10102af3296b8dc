"""Recursion turned into a loop."""

import pytest

from aqueduct.runtime.unrolled import Unrolled


def test_items_that_a_call_adds_are_processed_after_it() -> None:
    seen: list[str] = []

    def process(number: int) -> None:
        seen.append(f"begin {number}")
        if number < 3:
            work.add(number + 1)
        seen.append(f"end {number}")

    work = Unrolled(process)
    work.add(1)
    assert seen == [f"{what} {number}" for number in (1, 2, 3) for what in ("begin", "end")]


def test_an_error_leaves_the_rest_for_the_next_call() -> None:
    seen: list[int] = []

    def process(number: int) -> None:
        if number == 0:
            work.add(1)
            raise ZeroDivisionError
        seen.append(number)

    work = Unrolled(process)
    with pytest.raises(ZeroDivisionError):
        work.add(0)
    work.add(2)
    assert seen == [1, 2]
