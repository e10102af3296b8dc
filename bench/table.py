"""The Markdown table of a run."""

from dataclasses import dataclass

from bench.builds import Build
from bench.measure import Benchmark, Measured


@dataclass(frozen=True)
class Result:
    """The result of one build of the core in one benchmark."""

    benchmark: Benchmark
    build: Build
    measured: Measured
    ratio: Measured | None
    """The ratio to the reference."""


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
