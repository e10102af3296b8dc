"""Install the package with its compiled core into build/compiled.

The sources under src stay the only ones and stay as they are. ``PYTHONPATH=build/compiled`` makes
Python use the copy: an extension module is found before the Python file beside it.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
TARGET = BUILD / "compiled"
# Built here and then renamed, so that TARGET is always whole.
WORK = BUILD / "compiling"


def main() -> int:
    """Build the compiled copy."""
    started = time.monotonic()
    print("compile: wire, protocol and ipc, this may take a minute", flush=True)
    for stale in (WORK, *BUILD.glob("lib*"), *BUILD.glob("bdist*")):
        shutil.rmtree(stale, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    result = subprocess.run(
        [*pip, "install", "--no-deps", "--no-build-isolation", "--target", str(WORK), str(ROOT)],
        env={**os.environ, "AQUEDUCT_CORE": "compiled"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        said = (result.stdout + result.stderr).splitlines()
        reasons = [line.strip() for line in said if "cannot be compiled" in line]
        print(f"compile: {(reasons or said or ['pip failed'])[-1]}", file=sys.stderr)
        return 1
    shutil.rmtree(TARGET, ignore_errors=True)
    WORK.rename(TARGET)
    seconds = time.monotonic() - started
    print(f"compile: done in {seconds:.0f} s; use it with PYTHONPATH={TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
