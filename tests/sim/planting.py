"""Plants a fault in a copy of the sources, and runs the simulator on it."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

import aqueduct

SOURCE = Path(aqueduct.__file__).parent
SEEDS = "0:1000"


@dataclass(frozen=True)
class Mutant:
    """A replacement in one file under ``src/aqueduct``; ``old`` must occur exactly once."""

    name: str
    file: str
    old: str
    new: str
    seeds: str = SEEDS
    """The seeds to run; others for a fault in a rare state."""


@cache
def sources(beside: Path) -> tempfile.TemporaryDirectory[str]:
    """Copy the sources with their bytecode, which halves the time that a simulator takes to start.

    Compiled modules would hide the fault from the interpreter.
    """
    directory = tempfile.TemporaryDirectory(prefix="sources-", dir=beside)
    copy = Path(directory.name) / "aqueduct"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
    assert compileall.compile_dir(copy, quiet=1)
    return directory


def applies(mutant: Mutant) -> bool:
    """Return whether the text that the fault replaces occurs exactly once in the sources."""
    return (SOURCE / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1


def plant(mutant: Mutant, directory: Path) -> Path:
    """Link the sources into ``directory``, with the fault in one of them."""
    shutil.copytree(
        sources(directory.parent).name, directory, copy_function=os.link, dirs_exist_ok=True
    )
    assert applies(mutant), f"{mutant.file} has changed: adapt {mutant.name!r}"
    file = directory / "aqueduct" / mutant.file
    text = file.read_text(encoding="utf-8")
    file.unlink()
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return directory


def assert_found(mutant: Mutant, directory: Path, protocol: str) -> None:
    """Fail unless the simulator finds a violation with the fault in the core."""
    plant(mutant, directory)
    command = [sys.executable, "-m", "aqueduct.testing.simulate", "--protocol", protocol]
    run = subprocess.run(
        [*command, "--seeds", mutant.seeds, "--stop-at-first"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 1, f"not found: {mutant.name}\n{run.stdout}{run.stderr}"
    assert "--seed " in run.stdout, run.stderr
