"""Install the package with its compiled core into build/compiled, or quickly for tests.

``PYTHONPATH=build/compiled`` makes Python use the copy: an extension module is found before the
Python file beside it. The sources under src stay as they are.

``--quick`` compiles without optimization into build/compiled-quick, and only if a source that
matters to the compiler has changed since the last time. Other sources are copied each time.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
BUILD = ROOT / "build"
TARGET = BUILD / "compiled"
QUICK = BUILD / "compiled-quick"
# Packages are built here and then renamed, so that a target is always complete.
WORK = BUILD / "compiling"
CACHE = BUILD / "extensions"
"""Extension modules of the last quick build, and the key of their sources."""

READ = (
    *("wire", "protocol", "ipc/core", "transport", "runtime", "codec", "observe"),
    *("errors.py", "security.py", "settings.py"),
)
"""What the compiler reads: the compiled modules, and the packages that these import."""


def main() -> int:
    """Build a compiled copy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without optimization, if needed")
    started = time.monotonic()
    if parser.parse_args().quick:
        failure = build_quick()
        target = QUICK
    else:
        print("compile: the hot path, this may take some minutes", flush=True)
        failure = install("3")
        target = TARGET
        if not failure:
            shutil.rmtree(TARGET, ignore_errors=True)
            WORK.rename(TARGET)
    if failure:
        print(f"compile: {failure}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - started
    print(f"compile: done in {seconds:.0f} s; use it with PYTHONPATH={target.relative_to(ROOT)}")
    return 0


def install(optimize: str) -> str:
    """Install the package into WORK; return why that failed, if it did."""
    for stale in (WORK, *BUILD.glob("lib*"), *BUILD.glob("bdist*")):
        shutil.rmtree(stale, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    result = subprocess.run(
        [*pip, "install", "--no-deps", "--no-build-isolation", "--target", str(WORK), str(ROOT)],
        env={**os.environ, "AQUEDUCT_CORE": "compiled", "AQUEDUCT_OPTIMIZE": optimize},
        capture_output=True,
        text=True,
        check=False,
    )
    if not result.returncode:
        return ""
    output = (result.stdout + result.stderr).splitlines()
    reasons = [line.strip() for line in output if "cannot be compiled" in line]
    return (reasons or output or ["pip failed"])[-1]


def build_quick() -> str:
    """Bring QUICK up to date; return why that failed, if it did."""
    key = source_key()
    stamp = CACHE / "key"
    if not stamp.exists() or stamp.read_text() != key:
        shutil.rmtree(CACHE, ignore_errors=True)
        if failure := install("0"):
            return failure
        for extension in WORK.rglob("*.so"):
            kept = CACHE / extension.relative_to(WORK)
            kept.parent.mkdir(parents=True, exist_ok=True)
            extension.rename(kept)
        shutil.rmtree(WORK)
        stamp.write_text(key)
    shutil.rmtree(QUICK, ignore_errors=True)
    shutil.copytree(SOURCES, QUICK, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(CACHE, QUICK, dirs_exist_ok=True)
    return ""


def source_key() -> str:
    """Return a hash of everything that the extension modules depend on."""
    found = hashlib.sha256(sys.version.encode())
    roots = [SOURCES / "aqueduct" / name for name in READ]
    paths = [path for root in roots for path in (root.rglob("*.py") if root.is_dir() else [root])]
    for path in sorted([*paths, ROOT / "setup.py", ROOT / "requirements" / "build.lock"]):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
