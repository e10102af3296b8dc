"""The two builds of the core that are measured: the sources, and their compiled copy."""

import filecmp
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
COMPILED = ROOT / "build" / "compiled"


@dataclass(frozen=True)
class Build:
    name: str
    path: Path
    missing: str = ""
    """Why the build is not available here, or ""."""


def pure() -> Build:
    return Build("pure", SOURCES)


def compiled() -> Build:
    """Return the compiled copy; compile it if it is missing or older than the sources."""
    if not is_up_to_date():
        command = [sys.executable, str(ROOT / "tools" / "compile.py")]
        print("bench: compiling the core", file=sys.stderr, flush=True)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["tools/compile.py failed"]
            return Build("compiled", COMPILED, lines[-1].removeprefix("compile: aqueduct: "))
    return Build("compiled", COMPILED)


def best() -> Build:
    """Return the build that pip installs here: compiled, or the sources and the reason."""
    build = compiled()
    return Build("pure", SOURCES, build.missing) if build.missing else build


def is_up_to_date() -> bool:
    package = SOURCES / "aqueduct"
    if not any(COMPILED.rglob("*.so")) and not any(COMPILED.rglob("*.pyd")):
        return False
    for source in package.rglob("*.py"):
        copy = COMPILED / source.relative_to(SOURCES)
        if not copy.exists() or not filecmp.cmp(source, copy, shallow=False):
            return False
    return True
