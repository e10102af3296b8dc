"""The first three hundred seeds of the simulator: no promise is broken in any of them."""

import pytest

from aqueduct.testing.simulation import simulate

CHUNK = 10


@pytest.mark.parametrize("start", range(0, 300, CHUNK))
def test_no_seed_breaks_a_promise(start: int) -> None:
    broken = {
        seed: [str(violation) for violation in outcome.violations]
        for seed in range(start, start + CHUNK)
        if (outcome := simulate(seed)).violations
    }
    assert broken == {}
