"""The result of a run, as Markdown and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.builds import Build
from bench.network.figures import Summary, summary
from bench.network.goals import Results, Verdict, judge, ratio
from bench.network.measures import CHANNELS, Row
from bench.network.pair import Effort
from bench.network.peer import Json
from bench.network.roster import Peer
from bench.network.suite import Suite

NOISY = 0.1
"""The fraction of the machine used by others above which the report mentions it."""


@dataclass
class Run:
    """The results of a run, and what was left out."""

    suite: Suite
    peers: Sequence[Peer]
    """The selected peers of the suite."""
    effort: Effort
    rounds: int
    platform: str
    versions: Mapping[str, str]
    build: Build
    """The build of ours."""
    quick: bool = False
    found: dict[str, list[Json]] = field(default_factory=dict)
    """The figures of each round, by peer."""
    left_out: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, peer: str, measurements: Json) -> None:
        self.found.setdefault(peer, []).append(measurements)

    def results(self) -> dict[str, dict[str, Summary]]:
        rows = self.suite.rows
        return {peer: summaries(rounds, rows) for peer, rounds in self.found.items()}

    def verdicts(self) -> list[Verdict]:
        results = self.results()
        if self.effort.channels < CHANNELS:
            # With fewer channels than the goal names, it counts as not measured.
            for peer, rows in results.items():
                kept = (row for row in rows if not row.startswith("MEMORY."))
                results[peer] = {row: rows[row] for row in kept}
        return [judge(goal, results) for goal in self.suite.goals]


def summaries(rounds: Sequence[Json], rows: Sequence[Row]) -> dict[str, Summary]:
    """Return the median of each row over the rounds that have it."""
    found = {}
    for row in rows:
        measured = (one[row.measure] for one in rounds if row.measure in one)
        values = [float(figures[row.figure]) for figures in measured if row.figure in figures]
        if values:
            found[row.name] = summary(values)
    return found


def as_document(run: Run) -> Json:
    results = run.results()
    return {
        "platform": run.platform,
        "versions": dict(run.versions),
        "rounds": run.rounds,
        "quick": run.quick,
        "effort": asdict(run.effort),
        "left_out": run.left_out,
        "failures": run.failures,
        "goals": [
            {**asdict(verdict.goal), "reached": verdict.reached, "met": verdict.met}
            for verdict in run.verdicts()
        ],
        "medians": {
            peer: {name: asdict(found) for name, found in rows.items()}
            for peer, rows in results.items()
        },
        "runs": run.found,
    }


def as_markdown(run: Run) -> str:
    results = run.results()
    parts = [
        figures_table(run, results),
        *(
            goals_table(run.verdicts(), peer.name)
            for peer in run.peers
            if peer.name in run.suite.ours
        ),
        "\n".join(f"- {line}" for line in notes(run)),
    ]
    return "\n\n".join(parts) + "\n"


def figures_table(run: Run, results: Results) -> str:
    """Return the figures: each of ours with its ratios to the peers, then the peers."""
    ours = {
        name: [peer for peer in compared if peer in results]
        for name, compared in run.suite.ours.items()
        if name in results
    }
    others = [peer.name for peer in run.peers if peer.name in results and peer.name not in ours]
    head = ["", ""]
    for name, compared in ours.items():
        head += [name, *(f"of {peer}" for peer in compared)]
    head += others
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    for row in run.suite.rows:
        found = {name: rows[row.name] for name, rows in results.items() if row.name in rows}
        if not found:
            continue
        cells = []
        for name, compared in ours.items():
            cells.append(cell(found.get(name)))
            cells += [times(ratio(found.get(name), found.get(peer))) for peer in compared]
        cells += [cell(found.get(name)) for name in others]
        lines.append([what(row, run.effort), row.unit, *cells])
    return table(lines)


def what(row: Row, effort: Effort) -> str:
    return f"{effort.channels:,} {row.what}" if row.measure == "MEMORY" else row.what


def goals_table(verdicts: Sequence[Verdict], ours: str) -> str:
    """Return the goals of one of ours."""
    lines = [[f"goal of {ours}", "", "reached", ""], ["---", "---", "---:", "---"]]
    for verdict in verdicts:
        if verdict.goal.ours != ours:
            continue
        reached = times(verdict.reached) if verdict.goal.of else number(verdict.reached)
        lines.append([verdict.goal.what, verdict.goal.text, reached, verdict.word])
    return table(lines)


def notes(run: Run) -> list[str]:
    effort = run.effort
    made = f"medians of {run.rounds} runs" if run.rounds > 1 else "one run"
    lines = [
        f"{run.suite.processes}, {made}, a stream lasts {effort.seconds:g} s; ± is half the "
        "distance between the extremes.",
        f"{run.platform}; {', '.join(f'{name} {text}' for name, text in run.versions.items())}.",
    ]
    lines += [f"{peer.name}: {peer.label}." for peer in run.peers if peer.name in run.found]
    lines += remarks(run)
    if run.build.missing:
        ours = " and ".join(run.suite.ours)
        lines.append(f"The core of {ours} is not compiled: {run.build.missing}.")
    if run.quick:
        lines.append(
            "A quick run, which only checks that everything works; its figures mean little."
        )
    worst = worst_disturbance(run)
    if worst > NOISY:
        lines.append(
            f"Other work had up to {worst:.0%} of the machine meanwhile: measure again when it "
            "is quiet."
        )
    lines += [f"Left out: {name}, since {why}." for name, why in run.left_out.items()]
    lines += [f"Failed: {failure}" for failure in run.failures]
    return lines


def remarks(run: Run) -> list[str]:
    """Return the remarks of peers, once each."""
    found: dict[str, None] = {}
    for peer, rounds in run.found.items():
        for measurements in rounds:
            for figures in measurements.values():
                if figures.get("remark"):
                    found[f"{peer}: {figures['remark']}."] = None
    return list(found)


def worst_disturbance(run: Run) -> float:
    """Return the highest load of others over the rows of the table; 0 if unknown."""
    shares = (
        figures.get("disturbance") or 0.0
        for rounds in run.found.values()
        for measurements in rounds
        for figures in measurements.values()
    )
    return max(shares, default=0.0)


def table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell(found: Summary | None) -> str:
    if found is None:
        return ""
    spread = f" ±{100 * found.spread:.0f} %" if found.runs > 1 else ""
    return number(found.median) + spread


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
