"""Write requirements/*.lock: exact versions and hashes for every platform, and no addresses."""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = "3.11"
LOCKS = {
    "requirements/build.lock": ["requirements/build.in"],
    "requirements/dev.lock": ["pyproject.toml", "requirements/dev.in"],
    "requirements/fuzz.lock": ["requirements/fuzz.in"],
    "requirements/bench.lock": ["requirements/bench.in"],
}


def main() -> int:
    """Resolve each set of inputs with uv, and check what it wrote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uv", help="path of the uv program")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    options = parser.parse_args()
    uv = Path(options.uv).absolute()
    for lock, inputs in LOCKS.items():
        write(ROOT / lock, inputs, uv, upgrade=options.upgrade)
        print(f"lock: wrote {lock}")
    return 0


def write(lock: Path, inputs: list[str], uv: Path, *, upgrade: bool) -> None:
    """Write one lock file; versions already in it stay unless ``upgrade`` is asked for."""
    command = [str(uv), "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    command += ["--python-version", OLDEST_PYTHON, "--no-header", "--no-emit-index-url"]
    command += ["--upgrade"] * upgrade
    command += ["--output-file", str(lock), *inputs]
    subprocess.run(command, cwd=ROOT, check=True)
    pins = lock.read_text()
    if "://" in pins:
        lock.unlink()
        sys.exit(f"lock: {lock.name} would hold an address; it was removed")
    lock.write_text(f"# Written by `make lock` from {' and '.join(inputs)}.\n{pins}")


if __name__ == "__main__":
    sys.exit(main())
