"""Plants a fault in a copy of the sources, and runs the simulator on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import aqueduct

SOURCE = Path(aqueduct.__file__).parent
SEEDS = "0:1000"


@dataclass(frozen=True)
class Mutant:
    """A replacement in one file under ``src/aqueduct``; ``old`` must be there exactly once."""

    name: str
    file: str
    old: str
    new: str
    seeds: str = SEEDS
    """The seeds to run; others for a fault in a rare state."""


def plant(mutant: Mutant, place: Path) -> Path:
    """Copy the sources with the fault in them."""
    copy = place / "aqueduct"
    # Compiled modules would hide the fault from the interpreter.
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
    file = copy / mutant.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has changed: adapt {mutant.name!r}"
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return place


def assert_found(mutant: Mutant, place: Path, protocol: str) -> None:
    """Fail unless the simulator finds a violation with the fault in the core."""
    plant(mutant, place)
    command = [sys.executable, "-m", "aqueduct.testing.simulate", "--protocol", protocol]
    run = subprocess.run(
        [*command, "--seeds", mutant.seeds, "--stop-at-first"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 1, f"not found: {mutant.name}\n{run.stdout}{run.stderr}"
    assert "--seed " in run.stdout, run.stderr
