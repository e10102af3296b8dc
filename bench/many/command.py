"""Measure many connections, subscribers and channels over QUIC and over TCP; print three tables."""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.builds import ROOT, best, pure
from bench.many.crowd import SPARE_DESCRIPTORS, Crowd, started
from bench.many.report import PARTS, Run, as_markdown, as_picture
from bench.network import machine
from bench.network.command import RESULTS, say, versions
from bench.network.processes import Failed, write_certificate

TRANSPORTS = ("quic", "tcp")
PICTURE = ROOT / "docs" / "many.svg"


@dataclass(frozen=True)
class Effort:
    """How many, and for how long."""

    connections: tuple[int, ...] = (100, 500, 1_000, 2_000, 5_000)
    busy: int = 100
    """Connections with a round trip in flight."""
    trips: int = 50
    """Round trips of each of them."""
    idle: float = 5.0
    """Seconds in which idle connections are watched."""
    subscribers: tuple[int, ...] = (10, 100, 1_000)
    channels: tuple[int, ...] = (1, 10, 100, 1_000)
    seconds: float = 3.0
    """Seconds of sending."""
    quiet_timeout: float = 10.0
    """Seconds to wait for a quiet machine before each measurement."""


QUICK = Effort(
    connections=(10, 20),
    busy=10,
    trips=5,
    idle=0.2,
    subscribers=(2, 5),
    channels=(1, 20),
    seconds=0.2,
    quiet_timeout=0.0,
)


def main(words: list[str]) -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench many",
        description=__doc__,
        epilog="""\
parts: connections (to one server process: memory, round trips, time to accept), subscribers (of
one publisher, a connection each), channels (that send at once on one connection)

examples:
  python -m bench many                              everything; about five minutes
  python -m bench many --quick                      checks that everything works
  python -m bench many --only channels --transport tcp
""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--transport", choices=TRANSPORTS, help="one transport")
    parser.add_argument("--quick", action="store_true", help="small numbers")
    parser.add_argument("--pure", action="store_true", help="do not compile the core")
    parser.add_argument(
        "--picture", action="store_true", help=f"also write {PICTURE.relative_to(ROOT)}"
    )
    arguments = parser.parse_args(words)
    began = time.monotonic()
    build = pure() if arguments.pure else best()
    names = ", ".join(f"{name} {text}" for name, text in versions(()).items())
    run = Run([f"{platform.system()} {platform.machine()}, {machine.CORES} cores; {names}."])
    if build.missing or arguments.pure:
        run.about.append(f"The core is not compiled{build.missing and f': {build.missing}'}.")
    effort = QUICK if arguments.quick else Effort()
    for part in [arguments.only] if arguments.only else PARTS:
        for transport in [arguments.transport] if arguments.transport else TRANSPORTS:
            measure(run, part, transport, effort, build.path)
    print(as_markdown(run))
    save(run, effort)
    if arguments.picture:
        PICTURE.write_text(as_picture(run))
    say(f"bench: {time.monotonic() - began:.0f} s; written to build/bench/many.json and many.md")
    return 1 if run.failures else 0


def measure(run: Run, part: str, transport: str, effort: Effort, sources: Path) -> None:
    """Measure one part over one transport, with processes of its own."""
    if effort.quiet_timeout and not machine.wait_until_quiet(effort.quiet_timeout):
        say("bench: the machine is busy; measuring anyway")
    steps: dict[str, Callable[[Run, Crowd, str, Effort], None]] = {
        "connections": measure_connections,
        "subscribers": measure_subscribers,
        "channels": measure_channels,
    }
    with tempfile.TemporaryDirectory(prefix="aqueduct-bench-") as directory:
        log = Path(directory) / "log"
        setting = write_certificate(Path(directory), {})
        try:
            with started(transport, setting, log, sources) as crowd:
                steps[part](run, crowd, transport, effort)
        except Failed as failure:
            run.failures.append(f"{part} over {transport.upper()}: {failure}")
            say(f"bench: failed: {failure}\n{log.read_text(errors='replace')[-2000:]}")


def measure_connections(run: Run, crowd: Crowd, transport: str, effort: Effort) -> None:
    """Measure a growing number of connections, of which some are busy."""
    for count in effort.connections:
        if count + SPARE_DESCRIPTORS > crowd.descriptors:
            run.about.append(
                f"Fewer than {count:,} connections: a process may open {crowd.descriptors:,} files."
            )
            break
        result = crowd.connect(count)
        result |= crowd.idle(effort.idle)
        result |= crowd.trips(effort.busy, effort.trips)
        run.add("connections", transport, count, result)
        say(
            f"{transport}, {count:,} connections: {result['memory']:.0f} KB each, "
            f"p99 {result['trip_p99']:.1f} ms"
        )


def measure_subscribers(run: Run, crowd: Crowd, transport: str, effort: Effort) -> None:
    """Measure one publisher with a growing number of subscribers."""
    for count in effort.subscribers:
        crowd.connect(count)
        result = crowd.publish(effort.seconds)
        run.add("subscribers", transport, count, result)
        say(f"{transport}, {count:,} subscribers: {result['rate']:,.0f} messages/s")


def measure_channels(run: Run, crowd: Crowd, transport: str, effort: Effort) -> None:
    """Measure a growing number of channels that send at once."""
    crowd.connect(2)
    for count in effort.channels:
        result = crowd.channels(count, effort.seconds)
        run.add("channels", transport, count, result)
        say(f"{transport}, {count:,} channels: {result['rate']:,.0f} messages/s")


def save(run: Run, effort: Effort) -> None:
    """Write the result to build/bench."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {**asdict(run), "effort": asdict(effort)}
    (RESULTS / "many.json").write_text(json.dumps(document, indent=2) + "\n")
    (RESULTS / "many.md").write_text(as_markdown(run))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
