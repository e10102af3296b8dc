"""Run seeded simulations of a protocol: one seed as a transcript, or many with a summary."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from aqueduct.testing import ipc
from aqueduct.testing.simulation import RunOutcome, simulate
from aqueduct.testing.transcript import transcript, transcript_hash

COMMAND = "python -m aqueduct.testing.simulate"
CHUNK = 10
SHOWN_SEEDS = 20

EXAMPLES = f"""\
examples:
  {COMMAND} --seed 7                     print the transcript of one run
  {COMMAND} --seed 7 --grep client#3     only the lines about one channel
  {COMMAND} --seeds 0:1000 --jobs 2      many runs in two processes
  {COMMAND} --seeds 0:1000 --stop-at-first --json
  {COMMAND} --protocol ipc --seed 7      the same for ScalableIPC

The same seed gives the same run; the hash below a transcript shows it.
Exit code 1 means that a promise of the protocol was broken."""


CHANNELS = "channels"
PROTOCOLS: dict[str, Callable[[int], RunOutcome[Any]]] = {CHANNELS: simulate, "ipc": ipc.simulate}


@dataclass
class SeedResult:
    """The result of one run among many."""

    seed: int
    counts: dict[str, int]
    virtual_time: float
    violations: list[str]


@dataclass
class SeedSummary:
    """The results of many runs."""

    seeds: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    virtual_seconds: float = 0.0
    seconds: float = 0.0
    failed: dict[int, list[str]] = field(default_factory=dict)

    def add(self, result: SeedResult) -> None:
        """Add the result of one run."""
        self.seeds += 1
        for name, count in result.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.virtual_seconds += result.virtual_time
        if result.violations:
            self.failed[result.seed] = result.violations


def run_seed(seed: int, protocol: str = CHANNELS) -> SeedResult:
    """Run one seed and return its result."""
    outcome = PROTOCOLS[protocol](seed)
    return SeedResult(
        seed,
        outcome.counts,
        outcome.virtual_time,
        [str(violation) for violation in outcome.violations],
    )


def run_seeds(seeds: Sequence[int], jobs: int, protocol: str = CHANNELS) -> Iterator[SeedResult]:
    """Run seeds in ``jobs`` processes; yield the results in order."""
    run = partial(run_seed, protocol=protocol)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    # A forked child would inherit the threads and locks of its parent.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run, seeds, chunksize=CHUNK)


def print_transcript(seed: int, grep: str, console: Console, protocol: str = CHANNELS) -> bool:
    """Print the transcript of one run; return whether it kept all promises."""
    outcome = PROTOCOLS[protocol](seed)
    lines = list(transcript(outcome.record))
    for line in lines:
        if grep in line:
            console.print(_coloured(line), soft_wrap=True, highlight=False)
    console.print(
        f"seed {seed}: {format_counts(outcome.counts)}, "
        f"{outcome.virtual_time:.3f} s of virtual time, transcript {transcript_hash(lines)}",
        soft_wrap=True,
        highlight=False,
    )
    for violation in outcome.violations:
        console.print(Text(str(violation), style="bold red"), soft_wrap=True)
    return not outcome.violations


def _coloured(line: str) -> Text:
    mark = line[19:21]
    styles = {">>": "cyan", "<<": "blue", "! ": "yellow", "✗ ": "bold red"}
    return Text(line, style=styles.get(mark, ""))


def format_counts(counts: dict[str, int]) -> str:
    """Return the counts as text."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def judge(
    seeds: Sequence[int],
    jobs: int,
    stop_at_first: bool,
    quiet: bool,
    protocol: str = CHANNELS,
) -> SeedSummary:
    """Run many seeds, with a progress line on a terminal."""
    summary = SeedSummary()
    start = time.monotonic()
    console = Console(stderr=True)
    watched = console.is_terminal and not quiet
    shown = start
    for result in run_seeds(seeds, jobs, protocol):
        summary.add(result)
        now = time.monotonic()
        if watched and now - shown > 0.2:
            shown = now
            rate = summary.seeds / (now - start)
            console.print(
                f"{summary.seeds}/{len(seeds)} seeds, {rate:.0f}/s, {len(summary.failed)} failed ",
                end="\r",
                highlight=False,
            )
        if stop_at_first and result.violations:
            break
    summary.seconds = time.monotonic() - start
    return summary


def report(summary: SeedSummary, console: Console, protocol: str = CHANNELS) -> None:
    """Print the results of many runs."""
    which = "" if protocol == CHANNELS else f" --protocol {protocol}"
    for seed, violations in list(summary.failed.items())[:SHOWN_SEEDS]:
        console.print(Text(f"seed {seed}: {violations[0]}", style="red"), soft_wrap=True)
        if len(violations) > 1:
            console.print(f"  and {len(violations) - 1} more", highlight=False)
        console.print(f"  {COMMAND}{which} --seed {seed}", soft_wrap=True, highlight=False)
    rate = summary.seeds / summary.seconds if summary.seconds else 0.0
    verdict = f"{len(summary.failed)} failed" if summary.failed else "all promises kept"
    console.print(
        f"{summary.seeds} seeds, {verdict}: {format_counts(summary.counts)}, "
        f"{summary.virtual_seconds:.0f} s of virtual time "
        f"in {summary.seconds:.1f} s ({rate:.0f} seeds/s)",
        soft_wrap=True,
        highlight=False,
    )


def parse_range(text: str) -> range:
    """Parse ``A:B`` as the seeds from A up to, but not including, B."""
    try:
        start, stop = (int(part) for part in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form A:B") from None
    return range(start, stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="print the transcript of this seed")
    what.add_argument("--seeds", type=parse_range, metavar="A:B", help="run the seeds A to B-1")
    parser.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        default=CHANNELS,
        help="protocol (default channels)",
    )
    parser.add_argument("--grep", default="", help="with --seed: only lines with this text")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (default 1)")
    parser.add_argument("--stop-at-first", action="store_true", help="stop at the first violation")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args(arguments)
    protocol = options.protocol
    console = Console()
    if options.seed is not None:
        return 0 if print_transcript(options.seed, options.grep, console, protocol) else 1
    summary = judge(options.seeds, options.jobs, options.stop_at_first, options.json, protocol)
    if options.json:
        values = asdict(summary)
        print(json.dumps(values | values.pop("counts")))
    else:
        report(summary, console, protocol)
    return 1 if summary.failed else 0


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:
        # The reader closed the pipe: discard what is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
