"""Builds the package; its core is compiled to C where that can be done, and else runs as Python.

Whoever installs it with pip gets the compiled core if there is a C compiler and Python's headers.
``AQUEDUCT_CORE=python`` asks for none, ``AQUEDUCT_CORE=compiled`` for nothing less. In an editable
installation the sources are what runs.
"""

import contextlib
import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

COMPILED = (
    "aqueduct/wire",
    "aqueduct/protocol",
    "aqueduct/ipc/core",
)
"""The pure modules, and packages all of whose modules are."""
WORK = Path(__file__).resolve().parent / "build" / "mypyc"


WANTED = os.environ.get("AQUEDUCT_CORE", "")


def main() -> None:
    """Set up with extensions, or without."""
    reason = why_not()
    if reason:
        do_without(reason)
        setup()
    else:
        setup(ext_modules=compiled_modules(), cmdclass={"build_ext": OptionalBuild})


def do_without(reason: object) -> None:
    """Say why nothing is compiled; fail if something had to be."""
    if WANTED == "compiled" and "bdist_wheel" in sys.argv:
        raise SystemExit(f"aqueduct: the core cannot be compiled: {reason}")
    sys.stderr.write(f"aqueduct: the core stays Python: {reason}\n")


def why_not() -> str | None:
    """What stands against compiling, if anything."""
    if WANTED == "python":
        return "AQUEDUCT_CORE says so"
    if "bdist_wheel" not in sys.argv:
        return "only a wheel has room for extensions"
    if importlib.util.find_spec("mypyc") is None:
        return "mypyc, which comes with mypy, is not installed"
    if sys.implementation.name != "cpython":
        return "only CPython has a compiler for it"
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"no C compiler was found (looked for {command[0]})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of this Python (Python.h) are not installed"
    return None


def compiled_modules() -> list[Extension]:
    """The extensions of everything but the ``__init__`` files, which only re-export."""
    from mypyc.build import mypycify

    # The project's own settings for mypy are for its development, and what the rest of the package
    # imports is not there when a wheel is built.
    settings = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    with contextlib.chdir("src"):  # names of modules are made from paths
        modules = sorted(
            str(path)
            for name in COMPILED
            for path in (Path(name).rglob("*.py") if Path(name).is_dir() else [Path(name)])
            if path.name != "__init__.py"
        )
        try:
            return mypycify(
                [*settings, f"--cache-dir={WORK / 'cache'}", *modules],
                opt_level="3",
                debug_level="0",
                target_dir=str(WORK / "c"),
            )
        except SystemExit as failure:  # mypy has said why
            do_without(f"mypyc failed with {failure.code}")
            return []


class OptionalBuild(build_ext):  # type: ignore[misc]
    """A build that fails leaves the sources, which do the same."""

    def run(self) -> None:
        """Build, or say why not."""
        try:
            super().run()
        except (CCompilerError, ExecError, PlatformError) as error:
            do_without(error)
            self.extensions: list[Extension] = []


main()
