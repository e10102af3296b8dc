"""Runs the simulator on a copy of the sources, with one module from another file.

python -m tests.sim.mutated SOURCES MODULE FILE, then the arguments of the simulator.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Instead:
    """Finds one module in another file."""

    def __init__(self, module: str, file: str) -> None:
        self._module = module
        self._file = file
        self.is_used = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        self.is_used = True
        return importlib.util.spec_from_file_location(name, self._file)


def main(sources: str, module: str, file: str) -> None:
    # A forked process has the modules of the process that runs the tests.
    for name in list(sys.modules):
        if name.partition(".")[0] == "aqueduct":
            del sys.modules[name]
    sys.path.insert(0, sources)
    instead = Instead(module, file)
    sys.meta_path.insert(0, instead)
    import aqueduct.testing.simulate

    assert aqueduct.__file__.startswith(sources)
    assert instead.is_used, f"the simulator does not import {module}"
    code = aqueduct.testing.simulate.main()
    sys.stdout.flush()
    # Freeing all objects would take longer than most runs.
    os._exit(code)


if __name__ == "__main__":
    arguments = sys.argv[1:4]
    del sys.argv[1:4]
    main(*arguments)
