"""Connections survive loss and address changes: a few here, hundreds in `make soak`."""

from __future__ import annotations

import os

import pytest

from aqueduct.protocol.connection import Mode
from aqueduct.testing.faults import Faults
from tests.transport.quic.survival import full, lossy, moving

SEEDS = int(os.environ.get("SURVIVAL_SEEDS", "8"))
"""Connections of each kind; `make soak` has 200."""


@pytest.mark.parametrize("loss", [0.05, 0.1])
def test_connections_survive_loss(loss: float) -> None:
    fates = [lossy(seed, loss=loss, channels=200) for seed in range(SEEDS)]
    assert [fate for fate in fates if fate.reason is not None or fate.done < 200] == []


@pytest.mark.parametrize("hosts", [1, 2, 11])
@pytest.mark.parametrize("pause", [0.0, 8.0])
def test_connections_survive_ten_address_changes(hosts: int, pause: float) -> None:
    seeds = range(max(2, SEEDS // 4))
    fates = [moving(seed, hosts=hosts, pause=pause) for seed in seeds]
    assert [fate for fate in fates if fate.reason is not None or fate.done < 55] == []


@pytest.mark.parametrize("packet", [1_452, 16_000])
@pytest.mark.parametrize("mode", [Mode.ORDERED, Mode.UNORDERED])
def test_two_busy_sides_do_not_deadlock_under_loss(mode: Mode, packet: int) -> None:
    darkness = ((0.7, 10.7),)
    for seed in range(max(1, SEEDS // 4)):
        for faults in (Faults(delay=0.01, loss=0.1), Faults(loss=0.02, blackouts=darkness)):
            fate = full(seed, mode=mode, faults=faults, packet=packet)
            assert (fate.reason, fate.done) == (None, 3_200 if mode is Mode.UNORDERED else 160)
            assert fate.seconds < 60.0, "no wait is longer than a blackout"
