"""The simulator finds every planted fault, which shows that its checkers are effective."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.ipc_mutants import IPC_MUTANTS
from tests.sim.mutants import MUTANTS
from tests.sim.planting import Mutant, applies, assert_found


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant, tmp_path: Path) -> None:
    assert_found(mutant, tmp_path, "channels")


@pytest.mark.slow
@pytest.mark.parametrize("mutant", IPC_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_planted_in_scalable_ipc_is_found(mutant: Mutant, tmp_path: Path) -> None:
    assert_found(mutant, tmp_path, "ipc")


@pytest.mark.parametrize("mutants", [MUTANTS, IPC_MUTANTS], ids=["channels", "ipc"])
def test_the_names_of_the_faults_are_unique(mutants: list[Mutant]) -> None:
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 15


@pytest.mark.parametrize("mutants", [MUTANTS, IPC_MUTANTS], ids=["channels", "ipc"])
def test_every_fault_fits_the_sources_as_they_are(mutants: list[Mutant]) -> None:
    assert [mutant.name for mutant in mutants if not applies(mutant)] == []
