"""Plants a fault in the sources, and runs the simulator on them.

`QUICKEST` has the seed that finds each fault. A fault that this seed does not find, because the
workload or the core has changed, is searched for in all its seeds, which takes longer.
``python -m tests.sim.planting`` searches for all faults and writes the file again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import aqueduct
from tests.forking import Forked

SOURCE = Path(aqueduct.__file__).parent
SEEDS = "0:1000"
SECONDS = 600
QUICKEST = Path(__file__).with_name("quickest.json")
_FOUND = re.compile(r"--seed (\d+)")


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
def sources() -> tempfile.TemporaryDirectory[str]:
    """Copy the sources with their bytecode.

    Compiled modules would hide the fault from the interpreter.
    """
    directory = tempfile.TemporaryDirectory(prefix="sources-")
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "*.pyc.*")
    shutil.copytree(SOURCE, Path(directory.name) / "aqueduct", ignore=ignored)
    return directory


def applies(mutant: Mutant) -> bool:
    """Return whether the text that the fault replaces occurs exactly once in the sources."""
    return (SOURCE / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1


@cache
def quickest() -> dict[str, dict[str, int]]:
    """Return the seeds that find faults, by protocol and name of the fault."""
    found: dict[str, dict[str, int]] = json.loads(QUICKEST.read_text())
    return found


def search(mutant: Mutant, directory: Path, protocol: str, seeds: str) -> tuple[int | None, str]:
    """Run the simulator with the fault; return the first seed that finds it, and what it says."""
    assert applies(mutant), f"{mutant.file} has changed: adapt {mutant.name!r}"
    text = (SOURCE / mutant.file).read_text(encoding="utf-8")
    file = directory / Path(mutant.file).name
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    module = ".".join(("aqueduct", *Path(mutant.file).with_suffix("").parts))
    where = (sources().name, module, str(file))
    arguments = ("--protocol", protocol, "--seeds", seeds, "--stop-at-first")
    run = Forked("tests.sim.mutated", (*where, *arguments), os.environ, stdin=False)
    try:
        out, err = run.communicate(timeout=SECONDS)
    finally:
        run.kill()
    found = _FOUND.search(out)
    assert (run.returncode, found is None) in {(0, True), (1, False)}, out + err
    return int(found[1]) if found else None, out


def assert_found(mutant: Mutant, directory: Path, protocol: str) -> None:
    """Fail unless the simulator finds a violation with the fault in the core."""
    seed = quickest()[protocol].get(mutant.name)
    if seed is not None and search(mutant, directory, protocol, f"{seed}:{seed + 1}")[0] == seed:
        return
    found, said = search(mutant, directory, protocol, mutant.seeds)
    assert found is not None, f"not found: {mutant.name}\n{said}"


def main() -> None:
    from tests.sim.ipc_mutants import IPC_MUTANTS
    from tests.sim.mutants import MUTANTS

    found: dict[str, dict[str, int | None]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for protocol, mutants in (("channels", MUTANTS), ("ipc", IPC_MUTANTS)):
            found[protocol] = {
                mutant.name: search(mutant, Path(directory), protocol, mutant.seeds)[0]
                for mutant in mutants
            }
    QUICKEST.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
