"""Compile the pure core to C with mypyc, as a copy of the package under build/compiled.

The sources under src stay the only ones and stay as they are. ``PYTHONPATH=build/compiled`` makes
Python use the copy: an extension module is found before the Python file beside it.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "aqueduct"
COMPILED_PACKAGES = ("wire", "protocol")
TARGET = ROOT / "build" / "compiled"
# Built here and then renamed, so that TARGET is always whole.
WORK = ROOT / "build" / "compiling"


def main() -> int:
    """Build the compiled copy and check that Python imports it."""
    problem = missing_tool()
    if problem:
        print(f"compile: {problem}", file=sys.stderr)
        return 1
    started = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    copied = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "src" / PACKAGE, WORK / PACKAGE, ignore=copied)
    modules = compilable_modules(WORK)
    if not modules:
        print("compile: there is nothing to compile yet", file=sys.stderr)
        return 1
    print(f"compile: {len(modules)} modules, this may take a minute", flush=True)
    compile_in_place(WORK, modules)
    shutil.rmtree(WORK / "temporary", ignore_errors=True)
    check_that_python_uses_the_extensions(WORK, modules)
    shutil.rmtree(TARGET, ignore_errors=True)
    WORK.rename(TARGET)
    seconds = time.monotonic() - started
    print(f"compile: done in {seconds:.0f} s; use it with PYTHONPATH={TARGET.relative_to(ROOT)}")
    return 0


def missing_tool() -> str | None:
    """Say in one sentence what this machine lacks to build extension modules, if anything."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"no C compiler was found (looked for {command[0]}); install one, or set CC."
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return "the headers of this Python (Python.h) are not installed."
    return None


def compilable_modules(directory: Path) -> list[Path]:
    """List the files to compile, relative to ``directory``; an ``__init__`` only re-exports."""
    return sorted(
        path.relative_to(directory)
        for name in COMPILED_PACKAGES
        for path in (directory / PACKAGE / name).rglob("*.py")
        if path.name != "__init__.py"
    )


def compile_in_place(directory: Path, modules: list[Path]) -> None:
    """Put extension modules beside the files they were compiled from."""
    os.chdir(directory)
    # The project's own settings point at src, where the same modules would be found again.
    settings = ["--config-file=", "--cache-dir=temporary/mypy", "--ignore-missing-imports"]
    extensions = mypycify(
        [*settings, *map(str, modules)],
        opt_level="3",
        debug_level="0",
        target_dir="temporary/c",
    )
    distribution = Distribution({"name": PACKAGE, "ext_modules": extensions})
    build = distribution.get_command_obj("build_ext")
    build.inplace = True
    build.build_lib = "temporary/lib"
    build.build_temp = "temporary/objects"
    build.ensure_finalized()
    build.run()


def check_that_python_uses_the_extensions(directory: Path, modules: list[Path]) -> None:
    """Import every compiled module in a fresh Python and look where it came from."""
    names = [".".join(path.with_suffix("").parts) for path in modules]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    origin = importlib.import_module(name).__file__\n"
        "    assert origin and not origin.endswith('.py'), (name, origin)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    subprocess.run([sys.executable, "-c", code, *names], env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
