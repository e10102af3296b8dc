"""Run a suite: measure ours and its peers in separate processes, and print one table."""

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import aqueduct
from bench.builds import ROOT, SOURCES, best
from bench.network import machine, processes
from bench.network.goals import OURS, OVER_TCP, PURE
from bench.network.measures import Measure, Row
from bench.network.peer import Json
from bench.network.report import Run, as_document, as_markdown, number
from bench.network.roster import Peer
from bench.network.suite import Suite

RESULTS = ROOT / "build" / "bench"


def main(suite: Suite, words: list[str]) -> int:
    arguments = parse_arguments(suite, words)
    run = Run(
        suite,
        arguments.peer,
        suite.quick if arguments.quick else suite.effort,
        arguments.runs,
        f"{platform.system()} {platform.machine()}, {machine.CORES} cores",
        versions(arguments.peer),
        best(),
        quick=arguments.quick,
    )
    started = time.monotonic()
    try:
        measure_all(run, arguments.only)
    except KeyboardInterrupt:
        say("\nbench: interrupted; partial results follow")
    print(as_markdown(run))
    saved = save(run)
    seconds = time.monotonic() - started
    say(f"bench: {seconds:.0f} s; written to {saved.relative_to(ROOT)} and {saved.stem}.md")
    return 1 if run.failures else 0


def parse_arguments(suite: Suite, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {suite.name}",
        description=suite.what,
        epilog=suite.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(peer.name for peer in suite.peers)
    parser.add_argument(
        "--only",
        metavar="NAME,...",
        type=partial(choose_measures, suite),
        default=suite.measures,
        help="measures to run",
    )
    parser.add_argument(
        "--peer",
        metavar="NAME,...",
        type=partial(choose_peers, suite),
        default=suite.peers,
        help=f"these peers, and ours unless one of ours is named; there are {names}",
    )
    parser.add_argument("--runs", metavar="N", type=positive, default=3, help="of each (3)")
    parser.add_argument(
        "--quick", action="store_true", help="a short run that checks that everything works"
    )
    return parser.parse_args(words)


def choose_measures(suite: Suite, text: str) -> tuple[Measure, ...]:
    names = chosen(text, suite.measures)
    return tuple(each for each in suite.measures if each.name in names)


def choose_peers(suite: Suite, text: str) -> tuple[Peer, ...]:
    return suite.named([*chosen(text, suite.peers)])


def chosen(text: str, all_there: Sequence[Measure] | Sequence[Peer]) -> set[str]:
    names = {name.strip() for name in text.split(",")}
    known = [each.name for each in all_there]
    for name in names - set(known):
        raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(known)}")
    return names


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def measure_all(run: Run, wanted: Sequence[Measure]) -> None:
    """Measure all peers once per round, so that the medians include the drift of the machine."""
    for peer in run.peers:
        if peer.missing is not None:
            run.left_out[peer.name] = peer.missing
            say(f"bench: {peer.name} is left out: {peer.missing}")
    present = [peer for peer in run.peers if peer.missing is None]
    for number_ in range(1, run.rounds + 1):
        for peer in present:
            label = f"round {number_} of {run.rounds}, {peer.name}:"
            mine = [each for each in wanted if takes_part(peer, each)]
            repeated = [each for each in mine if not each.once]
            if repeated:
                measure_one(run, peer, repeated, label)
            for each in mine:
                if each.once and number_ == 1 and peer.name in run.suite.ours:
                    measure_one(run, peer, [each], label)  # its memory must start small
            save(run)


def takes_part(peer: Peer, measure: Measure) -> bool:
    if measure.name in peer.skips:
        return False
    return peer.name in (OURS, OVER_TCP, PURE) or not measure.ours_only


def measure_one(run: Run, peer: Peer, wanted: Sequence[Measure], label: str) -> None:
    """Start the processes of one peer, measure, and stop them."""
    if run.effort.quiet_timeout and not machine.wait_until_quiet(run.effort.quiet_timeout):
        say("bench: the machine is busy; measuring anyway")
    with tempfile.TemporaryDirectory(prefix="aqueduct-bench-") as directory:
        setting = processes.write_certificate(Path(directory), peer.options)
        log = Path(directory) / "log"
        measurements: Json = {}
        say(label, end="")
        try:
            sources = run.build.path if peer.compiled else SOURCES
            meeting = run.suite.meet(peer.name, setting, log, sources, run.effort)
            with meeting as measured:
                for each in wanted:
                    measurements[each.name] = found = measured.measure(each)
                    say(f" {each.name} {in_short(run.suite.first_row(each), found)}", end="")
        except processes.Failed as failure:
            run.failures.append(f"{peer.name}: {failure}")
            say(f" failed: {failure}\n{log.read_text(errors='replace')[-2000:]}", end="")
        finally:
            say("")
            run.add(peer.name, measurements)


def in_short(row: Row, found: Json) -> str:
    noisy = "!" if (found.get("disturbance") or 0.0) > 0.1 else ""
    return f"{number(found[row.figure])} {row.unit}{noisy}"


def versions(peers: Sequence[Peer]) -> dict[str, str]:
    """Return the versions of the libraries involved."""
    found = {"Aqueduct": aqueduct.__version__, "Python": platform.python_version()}
    names = ["qh3", "uvloop", *(peer.distribution for peer in peers if peer.distribution)]
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def save(run: Run) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{run.suite.name}.json"
    path.write_text(json.dumps(as_document(run), indent=2) + "\n")
    path.with_suffix(".md").write_text(as_markdown(run))
    return path


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
