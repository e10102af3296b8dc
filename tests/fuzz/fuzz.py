"""Run the fuzzer: atheris, which mutates inputs towards code that no input has reached.

    python tests/fuzz/fuzz.py -max_total_time=60               all targets, the time shared out
    python tests/fuzz/fuzz.py connection -max_total_time=600   one target
    python tests/fuzz/fuzz.py connection crash-1234            run one input again
    python tests/fuzz/fuzz.py --keep connection                keep what adds coverage

Options with one dash are libFuzzer's. New inputs collect in build/fuzz/<target> until ``--keep``
copies the few that reach more than those in tests/fuzz/corpus/<target> there. An input that fails
is written to build/fuzz/crashes.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import atheris  # noqa: E402

with atheris.instrument_imports(include=["aqueduct"]):
    import aqueduct
    from tests.fuzz import targets

CORPUS = ROOT / "tests" / "fuzz" / "corpus"
COLLECTED = ROOT / "build" / "fuzz"
CRASHES = COLLECTED / "crashes"
MAX_LENGTH = 2048
"""Bytes. Longer inputs find nothing more, and are slower."""

TraceFunction = Callable[[FrameType, str, Any], Any]

TIME = re.compile(r"-max_total_time=(\d+)")


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        print(f"Targets: {', '.join(targets.TARGETS)}")
        return 0
    names = [argument for argument in arguments if argument in targets.TARGETS]
    others = [argument for argument in arguments if argument not in targets.TARGETS]
    if "--keep" in others:
        for name in names or targets.TARGETS:
            keep(name)
        return 0
    unknown = [each for each in others if not each.startswith("-") and not Path(each).is_file()]
    if unknown:
        print(f"fuzz: there is no target or file {unknown[0]}", file=sys.stderr)
        return 2
    if len(names) != 1:
        return run_each(names or list(targets.TARGETS), others)
    fuzz(names[0], others)
    return 0


def run_each(names: list[str], options: list[str]) -> int:
    """Run each target in its own process, because libFuzzer ends the process it runs in."""
    seconds = next((int(found[1]) for each in options if (found := TIME.fullmatch(each))), 60)
    share = max(seconds // len(names), 1)
    options = [each for each in options if not TIME.fullmatch(each)]
    for name in names:
        print(f"fuzz: {name} for {share} s", flush=True)
        command = [sys.executable, __file__, name, f"-max_total_time={share}", *options]
        result = subprocess.run(command, check=False)
        if result.returncode:
            print(f"fuzz: {name} failed; run it again with tests/fuzz/fuzz.py {name} <file above>")
            return result.returncode
    return 0


def fuzz(name: str, options: list[str]) -> None:
    """Run libFuzzer in this process; it does not return."""
    collected = COLLECTED / name
    collected.mkdir(parents=True, exist_ok=True)
    CRASHES.mkdir(parents=True, exist_ok=True)
    files = [each for each in options if not each.startswith("-")]
    defaults = [f"-artifact_prefix={CRASHES}/{name}-", f"-max_len={MAX_LENGTH}", "-timeout=20"]
    # libFuzzer writes new inputs to the first directory.
    inputs = files or [str(collected), str(CORPUS / name)]
    given = [each for each in options if each.startswith("-")]
    atheris.Setup([sys.argv[0], *defaults, *given, *inputs], targets.TARGETS[name])
    atheris.Fuzz()


def keep(name: str) -> None:
    """Keep the collected inputs, smallest first, that reach new lines or jumps."""
    kept = CORPUS / name
    reached: set[tuple[CodeType, int, int]] = set()
    for path in sorted(kept.iterdir()):
        reached |= jumps(name, path.read_bytes())
    before = len(reached)
    added = 0
    collected = [path.read_bytes() for path in (COLLECTED / name).glob("*")]
    for data in sorted(collected, key=lambda data: (len(data), data)):
        found = jumps(name, data)
        if found <= reached:
            continue
        reached |= found
        digest = hashlib.sha256(data).hexdigest()[:12]
        (kept / f"found-{digest}").write_bytes(data)
        added += 1
    print(f"fuzz: {name}: {added} inputs kept, jumps reached {before} -> {len(reached)}")


def jumps(name: str, data: bytes) -> set[tuple[CodeType, int, int]]:
    """Return the jumps between lines of the package when the target runs an input."""
    found: set[tuple[CodeType, int, int]] = set()
    package = str(Path(aqueduct.__file__).parent)

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        code = frame.f_code
        if not code.co_filename.startswith(package):
            return None
        last = 0

        def trace_lines(frame: FrameType, event: str, argument: object) -> TraceFunction:
            nonlocal last
            if event == "line":
                found.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return trace_lines

        return trace_lines

    sys.settrace(trace)
    try:
        targets.TARGETS[name](data)
    finally:
        sys.settrace(None)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
