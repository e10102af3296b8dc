"""Measure bulk and small messages over long and lossy paths, and print tables and pictures."""

import argparse
import contextlib
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from aqueduct.observe.charts import COLOURS, Chart, LineSeries
from bench.builds import ROOT, best, pure
from bench.network import machine
from bench.network.command import positive, versions
from bench.network.figures import percentile
from bench.network.peer import HOST, Json, Setting
from bench.network.processes import Failed, Process, write_certificate
from bench.network.report import number, table
from bench.paths import link
from bench.paths.worker import BIN

RESULTS = ROOT / "build" / "bench"
PER_BIN = 5
"""Bins of a point in a picture: half a second."""


@dataclass(frozen=True)
class Route:
    """A path between client and server."""

    rtt: float
    """Seconds."""
    loss: float
    """The probability that a packet is lost, either way."""

    @property
    def name(self) -> str:
        return f"{self.rtt * 1e3:g} ms, {self.loss:.1%} loss".replace(".0%", "%").replace("%", " %")


CONTROLS = ("cubic", "bbr")
"""Congestion controls of the kernel's TCP that are compared, where it has them."""
ROUTES = (Route(0.04, 0.0), Route(0.04, 0.001), Route(0.04, 0.01), Route(0.2, 0.0))


@dataclass(frozen=True)
class Carrier:
    """A way to send: ours over a transport, or streams of asyncio with TLS."""

    name: str
    transport: str
    control: str = ""
    """The congestion control of the kernel's TCP, if it is not that of the host."""


@dataclass(frozen=True)
class Effort:
    """The seconds of each part of a measurement."""

    idle: float = 2.0
    warm: float = 4.0
    """Bulk before it is measured: the start has its own picture."""
    seconds: float = 10.0


QUICK = Effort(idle=0.2, warm=0.3, seconds=0.5)


def carriers(through_relays: bool) -> tuple[Carrier, ...]:
    """Return the ways to send that can be compared here."""
    found = [Carrier("aqueduct, QUIC", "quic")]
    controls = [""]
    if not through_relays:
        controls = [each for each in CONTROLS if each in link.controls()] or controls
    for control in controls:
        suffix = f", {control}" if control else ""
        found += [
            Carrier(f"aqueduct, TCP{suffix}", "tcp", control),
            Carrier(f"streams, TCP{suffix}", "streams", control),
        ]
    return tuple(found)


# Measuring


@contextlib.contextmanager
def connected(
    route: Route, carrier: Carrier, directory: Path, sources: Path, through_relays: bool
) -> Iterator[tuple[Process, Process, Process]]:
    """Start a server, a client and the path between them; stop them in the end."""
    options = {
        "transport": carrier.transport,
        "control": carrier.control,
        "link": "" if through_relays else str(directory / "link"),
        "delay": route.rtt / 2,
        "loss": route.loss,
        "seed": 1,
    }
    setting = write_certificate(directory, options, [link.SERVER])
    with (directory / "log").open("wb") as log, contextlib.ExitStack() as stack:

        def start(role: str, worker: str, given: Setting) -> Process:
            process = Process(role, carrier.name, given, log, sources, worker)
            stack.callback(process.end)
            return process

        path = None
        if not through_relays:
            path = start("link", "bench.paths.link", setting)
            path.read()  # it listens for the devices
        server = start("server", "bench.paths.worker", setting)
        client = start("client", "bench.paths.worker", setting)
        if path is not None:
            path.read()  # it has both
        address = server.read()["address"]
        if path is None:
            to = replace(setting, options={**options, "to": address})
            path = start("relay", "bench.paths.relays", to)
            address = path.read()["address"]
        client.write(address=address)
        client.read()
        yield server, client, path


def measure(
    route: Route, carrier: Carrier, effort: Effort, sources: Path, through_relays: bool
) -> Json:
    """Return the figures of one way to send over one path."""
    with tempfile.TemporaryDirectory(prefix="aqueduct-bench-") as name:
        try:
            with connected(route, carrier, Path(name), sources, through_relays) as processes:
                return figures(*processes, route, effort)
        except Failed as failure:
            log = (Path(name) / "log").read_text(errors="replace")[-2_000:]
            raise Failed(f"{failure}\n{log}") from None


def figures(server: Process, client: Process, path: Process, route: Route, effort: Effort) -> Json:
    """Measure small messages alone, and bulk with small messages beside it."""

    def run(order: str, warm: float, seconds: float) -> tuple[Json, Json]:
        client.write(order=order, warm=warm, seconds=seconds)
        sent = client.read()
        time.sleep(2 * route.rtt)
        server.write(order="report")
        return sent, server.read()

    _, idle = run("idle", 0.0, effort.idle)
    sent, received = run("bulk", effort.warm, effort.seconds)
    begun = sent["begun"] + effort.warm * 1e9
    bulk = sum(size for at, size in received["bins"] if begun <= at * BIN < sent["ended"])
    found: Json = {
        "megabytes": bulk / 1e6 / ((sent["ended"] - begun) / 1e9),
        "curve": curve(received["bins"], sent["begun"], effort.warm + effort.seconds),
        "statistics": sent["statistics"],
    }
    for mode, delays in idle["delays"].items():
        found[f"{mode}_idle"] = percentile(delays, 50) / 1e6
    for mode, delays in received["delays"].items():
        found[f"{mode}_p50"] = percentile(delays, 50) / 1e6
        found[f"{mode}_p99"] = percentile(delays, 99) / 1e6
        count = sent["sent"][mode]
        found[f"{mode}_lost"] = 100 * (count - len(delays)) / count
    path.write(order="quit")
    found["path"] = path.read()
    return found


def curve(bins: Sequence[tuple[int, int]], begun: int, seconds: float) -> list[list[float]]:
    """Return the megabytes per second that arrived in each half second."""
    sizes = dict(bins)
    first = begun // BIN
    width = PER_BIN * BIN / 1e9
    points = []
    for at in range(int(seconds / width)):
        size = sum(sizes.get(first + at * PER_BIN + each, 0) for each in range(PER_BIN))
        points.append([(at + 0.5) * width, size / 1e6 / width])
    return points


# The report

COLUMNS = (
    ("megabytes", "bulk, MB/s"),
    ("ordered_idle", "ordered alone, p50 ms"),
    ("ordered_p99", "ordered beside bulk, p99 ms"),
    ("unordered_p99", "unordered, p99 ms"),
    ("unreliable_p99", "unreliable, p99 ms"),
    ("unreliable_lost", "of these lost, %"),
)


def medians(runs: Sequence[Json]) -> Json:
    """Return the median of each figure over the runs that have it."""
    names = {name: None for run in runs for name in run if isinstance(run[name], float)}
    return {name: median(run[name] for run in runs if name in run) for name in names}


def as_markdown(document: Json) -> str:
    lines = [["path", "", *(title for _, title in COLUMNS)]]
    lines.append(["---", "---", *["---:"] * len(COLUMNS)])
    for route, carried in document["medians"].items():
        for name, found in carried.items():
            cells = [number(found.get(column)) for column, _ in COLUMNS]
            lines.append([route, name, *cells])
    notes = "\n".join(f"- {note}" for note in document["notes"])
    return f"{table(lines)}\n\n{notes}\n"


def pictures(document: Json) -> dict[str, str]:
    """Return a picture for each path, by the name of its file: what arrives over time."""
    found = {}
    for route, carried in document["runs"].items():
        lines = [
            LineSeries(name, [(x, y) for x, y in runs[0]["curve"]], COLOURS[at % len(COLOURS)])
            for at, (name, runs) in enumerate(carried.items())
        ]
        chart = Chart(f"Bulk over {route}", "seconds", f"MB/s, {route}", lines, height=240)
        name = "-".join("".join(c if c.isalnum() else " " for c in route).split())
        found[f"paths-{name}.svg"] = standalone(chart.svg())
    return found


def standalone(svg: str) -> str:
    """Return an SVG element as a file of its own, readable on light and dark backgrounds."""
    style = "text{font:11px ui-monospace,monospace;fill:#888}.grid{stroke:#8884}.axis{stroke:#888a}"
    return (
        svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
            "<title>", f"<style>{style}</style><title>", 1
        )
        + "\n"
    )


def save(document: Json) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "paths.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    path.with_suffix(".md").write_text(as_markdown(document))
    for name, picture in pictures(document).items():
        (RESULTS / name).write_text(picture)
    return path


# The command line


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench paths",
        description=__doc__,
        epilog=(
            "The paths are between network namespaces, which needs root on Linux. Without it, or "
            "with --relays, user-space relays on loopback delay the bytes of TCP, which then "
            "cannot be lost, and the packets of UDP."
        ),
    )
    parser.add_argument("--runs", metavar="N", type=positive, default=1, help="of each (1)")
    parser.add_argument("--relays", action="store_true", help="use relays on loopback")
    parser.add_argument("--only", metavar="NAME,...", help="ways to send, such as quic or tcp")
    parser.add_argument(
        "--quick", action="store_true", help="a short run that checks that everything works"
    )
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    arguments = parse_arguments(words)
    effort = QUICK if arguments.quick else Effort()
    reason = "" if arguments.relays else link.missing()
    through_relays = arguments.relays or bool(reason)
    chosen = carriers(through_relays)
    if arguments.only:
        wanted = arguments.only.split(",")
        chosen = tuple(each for each in chosen if each.transport in wanted)
    build = pure() if arguments.quick else best()
    runs: dict[str, dict[str, list[Json]]] = {route.name: {} for route in ROUTES}
    failures: list[str] = []
    started = time.monotonic()
    for round_number in range(arguments.runs):
        for route in ROUTES:
            for carrier in chosen:
                if through_relays and route.loss and carrier.transport != "quic":
                    continue  # no user-space relay can lose segments of the kernel's TCP
                label = f"round {round_number + 1}, {route.name}, {carrier.name}:"
                try:
                    found = measure(route, carrier, effort, build.path, through_relays)
                except Failed as failure:
                    failures.append(f"{label} {failure}")
                    say(f"{label} failed: {failure}")
                    continue
                runs[route.name].setdefault(carrier.name, []).append(found)
                say(f"{label} {number(found['megabytes'])} MB/s")
    document: Json = {
        "platform": f"{platform.system()} {platform.machine()}, {machine.CORES} cores",
        "versions": versions(()),
        "effort": asdict(effort),
        "quick": arguments.quick,
        "failures": failures,
        "notes": notes(arguments.quick, through_relays, reason or "", build.missing, effort),
        "medians": {
            route: {name: medians(each) for name, each in carried.items()}
            for route, carried in runs.items()
        },
        "runs": runs,
    }
    print(as_markdown(document))
    saved = save(document)
    seconds = time.monotonic() - started
    say(f"bench: {seconds:.0f} s; written to {saved.relative_to(ROOT)}, paths.md and paths-*.svg")
    return 1 if failures else 0


def notes(
    quick: bool, through_relays: bool, reason: str, missing: str, effort: Effort
) -> list[str]:
    """Return what a reader has to know of a run."""
    how = "a path between two network namespaces, with the kernel's UDP and TCP at its ends"
    if through_relays:
        how = f"relays between sockets on {HOST}; TCP ends at its relay, and loses nothing"
    found = [
        f"Three processes; {how}. Bulk is measured for {effort.seconds:g} s after "
        f"{effort.warm:g} s, one message of each mode leaves every 20 ms meanwhile.",
        f"{platform.system()} {platform.machine()}, {machine.CORES} cores; "
        + ", ".join(f"{name} {text}" for name, text in versions(()).items())
        + ".",
    ]
    if reason:
        found.append(f"No network namespace was used: {reason}.")
    if missing:
        found.append(f"The core is not compiled: {missing}.")
    if quick:
        found.append("A quick run, which only checks that everything works.")
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
