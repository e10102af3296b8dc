"""The first three hundred seeds of ScalableIPC: no promise is broken in any of them."""

import pytest

from aqueduct.testing.ipc import simulate

CHUNK = 10


@pytest.mark.parametrize("start", range(0, 300, CHUNK))
def test_no_seed_breaks_a_promise(start: int) -> None:
    broken = {
        seed: [str(violation) for violation in outcome.violations]
        for seed in range(start, start + CHUNK)
        if (outcome := simulate(seed)).violations
    }
    assert broken == {}


def test_the_seeds_reach_the_failure_modes() -> None:
    codes: set[int | None] = {0, 1, -2, -3, -4, -6}
    kinds = {
        "LifeStopped",
        "IpcSendFailed",
        "IpcRefused",
        "IpcWithdrawn",
        "Resized",
        "RemoteFailed",
    }
    for seed in range(100):
        for entry in simulate(seed).record.entries:
            kinds.discard(type(entry).__name__)
            codes.discard(getattr(entry, "code", None))
        if not codes and not kinds:
            break
    assert (codes, kinds) == (set(), set())
