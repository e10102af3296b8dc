"""Measure the core, pure and compiled, and print one table."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.builds import ROOT, Build, compiled, pure
from bench.catalogue import all_benchmarks
from bench.measure import Benchmark, Measured

RESULTS = ROOT / "build" / "bench"

EXAMPLES = """\
examples:
  python -m bench core                        everything; a few minutes
  python -m bench core --only send            one benchmark
  python -m bench core --only memory-         all with this prefix
  python -m bench core --repeat 9             more rounds, on a busy machine
  python -m bench core --only receive --json  for a program to read
"""


@dataclass(frozen=True)
class Result:
    """The result of one build of the core in one benchmark."""

    benchmark: Benchmark
    build: Build
    measured: Measured
    ratio: Measured | None
    """The ratio to the reference."""


def main(words: list[str]) -> int:
    arguments = parse_arguments(words)
    chosen = choose(arguments.only)
    if not chosen:
        names = ", ".join(all_benchmarks())
        text = f"bench: no benchmark begins with {arguments.only!r}; there are {names}"
        print(text, file=sys.stderr)
        return 2
    builds = [pure(), compiled()]
    started = time.monotonic()
    rows = [(each, run_in_all(each, builds, arguments.repeat)) for each in chosen]
    seconds = time.monotonic() - started
    document = as_document(rows, builds, arguments.repeat, seconds)
    saved = save(document)
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        print(render(rows, builds, explanation(arguments.repeat)))
    print(f"bench: {seconds:.0f} s; written to {saved.relative_to(ROOT)}", file=sys.stderr)
    return 0


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench core",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", metavar="NAME", default="", help="benchmarks whose names have this prefix"
    )
    parser.add_argument(
        "--repeat", metavar="N", type=positive, default=5, help="rounds after the warm-up (5)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args(words)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def choose(prefix: str) -> list[Benchmark]:
    """Return the benchmark of this name, or all with this prefix."""
    benchmarks = all_benchmarks()
    if prefix in benchmarks:
        return [benchmarks[prefix]]
    return [each for name, each in benchmarks.items() if name.startswith(prefix)]


def run_in_all(benchmark: Benchmark, builds: list[Build], repeat: int) -> list[Result]:
    """Measure each build in its own process, one right after the other to limit drift."""
    results = []
    for build in builds if benchmark.uses_core else builds[:1]:
        if build.missing:
            continue
        print(f"bench: {benchmark.name}, {build.name} ... ", end="", file=sys.stderr, flush=True)
        result = run(benchmark, build, repeat)
        print(f"{result.measured.median:,.4g} {benchmark.unit}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def run(benchmark: Benchmark, build: Build, repeat: int) -> Result:
    path = os.pathsep.join([str(build.path), str(ROOT)])
    process = subprocess.run(
        [sys.executable, "-m", "bench.worker", benchmark.name, str(repeat)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(process.stdout)
    if found["compiled"] != (build.name == "compiled"):
        raise RuntimeError(f"Python did not import the {build.name} build")
    ratio = Measured(**found["ratio"]) if found["ratio"] else None
    return Result(benchmark, build, Measured(**found["measured"]), ratio)


def explanation(repeat: int) -> str:
    return (
        f"Medians of {repeat} rounds after a warm-up round, and half the distance between the "
        "slowest and the fastest; seconds are of processor time. *of ref.*: divided by the bare "
        "loop that does the same without a protocol, measured alternately in the same process. "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}."
    )


def as_document(
    rows: list[tuple[Benchmark, list[Result]]], builds: list[Build], repeat: int, seconds: float
) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "repeat": repeat,
        "seconds": round(seconds, 1),
        "missing": {build.name: build.missing for build in builds if build.missing},
        "results": [
            {
                "name": benchmark.name,
                "what": benchmark.what,
                "unit": benchmark.unit,
                "build": result.build.name,
                **asdict(result.measured),
                "of_reference": result.ratio.median if result.ratio else None,
            }
            for benchmark, results in rows
            for result in results
        ],
    }


def save(document: dict[str, object]) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def render(rows: list[tuple[Benchmark, list[Result]]], builds: list[Build], note: str) -> str:
    names = [build.name for build in builds]
    head = ["benchmark", "", *(cell for name in names for cell in (name, "of ref."))]
    lines = [head, ["---", "---", *["---:"] * (2 * len(names))]]
    for benchmark, results in rows:
        found = {result.build.name: result for result in results}
        cells = [benchmark.what, benchmark.unit]
        for build in builds:
            result = found.get(build.name)
            cells += figures(result) if result else [absence(benchmark, build), ""]
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    missing = [f"No {build.name} column: {build.missing}" for build in builds if build.missing]
    return "\n\n".join([table, note, *missing])


def figures(result: Result) -> list[str]:
    measured = result.measured
    spread = f" ±{measured.spread * 50:.0f} %" if result.benchmark.repeats else ""
    ratio = f"{result.ratio.median:.2f}" if result.ratio is not None else ""
    return [f"{number(measured.median)}{spread}", ratio]


def absence(benchmark: Benchmark, build: Build) -> str:
    if not benchmark.uses_core:
        return "the same"
    return "not built" if build.missing else ""


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
