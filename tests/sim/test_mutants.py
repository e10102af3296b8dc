"""The simulator finds every fault planted in the core: proof that its silence means something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aqueduct
from tests.sim.mutants import MUTANTS, Mutant

pytestmark = pytest.mark.slow

SOURCE = Path(aqueduct.__file__).parent
SEEDS = "0:1000"


def plant(mutant: Mutant, place: Path) -> Path:
    """A copy of the sources with the fault in it."""
    copy = place / "aqueduct"
    # Compiled modules would hide the fault from the interpreter.
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
    file = copy / mutant.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has changed: adapt {mutant.name!r}"
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return place


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant, tmp_path: Path) -> None:
    place = plant(mutant, tmp_path)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "aqueduct.testing.simulate",
            "--seeds",
            SEEDS,
            "--stop-at-first",
        ],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 1, f"nobody noticed that {mutant.name}\n{run.stdout}{run.stderr}"
    assert "--seed " in run.stdout, run.stderr


def test_the_names_of_the_faults_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
